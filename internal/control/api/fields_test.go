package api_test

import (
	"crypto/tls"
	b64 "encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// testFieldValidation: with fieldValidation=Strict the server names each
// unknown and duplicate field, in what is created and in what is applied.
func testFieldValidation(t *testing.T, d *definitions) {
	d.define(t, definition("fv.example.com", "closeds", "Closed",
		version("v1", true, `{type: object, properties: {spec: {type: object, properties: {cronSpec: {type: string}, replicas: {type: `+
			`integer}, ports: {type: array, x-kubernetes-list-map-keys: [containerPort, protocol], x-kubernetes-list-type: map, items: `+
			`{type: object, required: [containerPort, protocol], properties: {containerPort: {type: integer}, hostPort: {type: integer}, `+
			`name: {type: string}, protocol: {type: string}}}}, embedded: {type: object, x-kubernetes-embedded-resource: true, `+
			`x-kubernetes-preserve-unknown-fields: true}}}}}`)))
	d.define(t, definition("fv.example.com", "opens", "Open", version("v1", true, anything)))
	for _, c := range []struct {
		what, plural, kind, body string
		wrong                    []string
	}{
		{"a valid object", "closeds", "Closed", `{"spec":{"cronSpec":"a","ports":[{"containerPort":80,"protocol":"TCP"}]}}`, nil},
		{"an unknown field", "closeds", "Closed", `{"spec":{"unknown":"x","cronSpec":"a"}}`, []string{`unknown field "spec.unknown"`}},
		{"an unknown field in a list", "closeds", "Closed",
			`{"spec":{"ports":[{"containerPort":80,"protocol":"TCP","unknownNested":"x"}]}}`,
			[]string{`unknown field "spec.ports[0].unknownNested"`}},
		{"duplicates", "closeds", "Closed", `{"spec":{"cronSpec":"a","cronSpec":"b"}}`, []string{`duplicate field "spec.cronSpec"`}},
		{"no schema", "opens", "Open", `{"spec":{"anything":"x"}}`, nil},
		{"duplicates without a schema", "opens", "Open", `{"spec":{"foo":"a","foo":"b"}}`, []string{`duplicate field "spec.foo"`}},
		{"unknown metadata", "closeds", "Closed",
			`{"metadata":{"unknownMeta":"x","name":"%s"},"spec":{"embedded":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p",` +
				`"unknownSubMeta":"y"}}}}`,
			[]string{`unknown field "metadata.unknownMeta"`, `unknown field "spec.embedded.metadata.unknownSubMeta"`}},
	} {
		for _, verb := range []string{"create", "apply"} {
			name := "o-" + verb
			body := strings.ReplaceAll(c.body, "%s", name)
			if !strings.Contains(body, `"metadata":{"unk`) {
				body = `{"metadata":{"name":"` + name + `"},` + body[1:]
			}
			body = `{"apiVersion":"fv.example.com/v1","kind":"` + c.kind + `",` + body[1:]
			request := d.CoreV1().RESTClient().Post()
			path := "/apis/fv.example.com/v1/namespaces/" + d.ns + "/" + c.plural
			if verb == "apply" {
				request = d.CoreV1().RESTClient().Patch(types.ApplyPatchType)
				path += "/" + name
			}
			out, err := request.AbsPath(path).Param("fieldManager", "t").Param("fieldValidation", "Strict").Param("dryRun",
				"All").Body([]byte(body)).DoRaw(t.Context())
			if (err == nil) != (len(c.wrong) == 0) {
				t.Errorf("%s, %s: %v %s", verb, c.what, err, out)
			}
			for _, w := range c.wrong {
				w = strings.ReplaceAll(w, `"`, `\"`)
				// Of an applied object other libraries say what is wrong, in
				// words of their own.
				if verb == "apply" && strings.HasPrefix(w, "unknown") {
					w = w[strings.LastIndex(w, "."):len(w)-2] + ": field not declared in schema"
				}
				if verb == "apply" && strings.HasPrefix(w, "duplicate") {
					w = "already set in map"
				}
				if !strings.Contains(string(out), w) {
					t.Errorf("%s, %s: %s lacks %s", verb, c.what, out, w)
				}
			}
		}
	}
}

// testTypedFields: the same for built-in types, in the words clients look for.
func testTypedFields(t *testing.T, d *definitions) {
	pod := `"template":{"metadata":{"labels":{"app":"n"}},"spec":{"containers":[{"name":"n","image":"i"}]}}`
	for _, c := range []struct{ what, body, wrong string }{
		{"unknown and duplicate",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"unknownField":"a","replicas":1,"replicas":2,` +
				`"selector":{"matchLabels":{"app":"n"}},` + pod + `}}`,
			`strict decoding error: unknown field "spec.unknownField", duplicate field "spec.replicas"`},
		{"metadata", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","unknownMeta":"x"},` +
			`"spec":{"selector":{"matchLabels":{"app":"n"}},` + pod + `}}`,
			`strict decoding error: unknown field "metadata.unknownMeta"`},
	} {
		code, out := d.raw(t, "POST", "/apis/apps/v1/namespaces/"+d.ns+"/deployments?fieldValidation=Strict", "application/json",
			[]byte(c.body))
		if code != http.StatusBadRequest || !strings.Contains(string(out), strings.ReplaceAll(c.wrong, `"`, `\"`)) {
			t.Errorf("%s: %d %s", c.what, code, out)
		}
		// By default the same is a warning.
		if code, out := d.raw(t, "POST", "/apis/apps/v1/namespaces/"+d.ns+"/deployments?dryRun=All", "application/json",
			[]byte(c.body)); code != http.StatusCreated {
			t.Errorf("%s, with a warning: %d %s", c.what, code, out)
		}
	}
	if _, err := d.AppsV1().Deployments(d.ns).Create(t.Context(), deployment("d"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := d.AppsV1().Deployments(d.ns).Patch(t.Context(), "d", types.MergePatchType, []byte(`{"spec":{"unknown1":"v","replicas":2}}`),
		metav1.PatchOptions{FieldValidation: "Strict"})
	if err == nil || !strings.Contains(err.Error(), `unknown field "spec.unknown1"`) {
		t.Errorf("a patch: %v", err)
	}
	_, err = d.AppsV1().Deployments(d.ns).Patch(t.Context(), "d", types.ApplyPatchType,
		[]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"unknown":1}}`),
		metav1.PatchOptions{FieldManager: "t", FieldValidation: "Strict"})
	if err == nil || !strings.Contains(err.Error(), ".spec.unknown: field not declared in schema") {
		t.Errorf("an apply: %v", err)
	}
}

func base64(data []byte) string { return b64.StdEncoding.EncodeToString(data) }

// conversionHook converts between one field hostPort and two, host and port.
func conversionHook(t *testing.T) (apiextensionsv1.WebhookClientConfig, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			var o unstructured.Unstructured
			if err := json.Unmarshal(raw.Raw, &o.Object); err != nil {
				answer.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
				break
			}
			if o.SetAPIVersion(review.Request.DesiredAPIVersion); strings.HasSuffix(review.Request.DesiredAPIVersion, "/v2") {
				host, port, _ := strings.Cut(fmt.Sprint(o.Object["hostPort"]), ":")
				delete(o.Object, "hostPort")
				o.Object["host"], o.Object["port"] = host, port
			} else {
				o.Object["hostPort"] = fmt.Sprint(o.Object["host"], ":", o.Object["port"])
				delete(o.Object, "host")
				delete(o.Object, "port")
			}
			answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: &o})
		}
		review.Response, review.Request = answer, nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return apiextensionsv1.WebhookClientConfig{URL: &server.URL,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}, &calls
}
