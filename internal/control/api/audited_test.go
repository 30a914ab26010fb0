package api_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestAuditLogOfMetadata: what the log says of a request at level Metadata is what
// the library's own handlers note, which is seen at level Request; only the object
// is missing.
func TestAuditLogOfMetadata(t *testing.T) {
	metadata, full := auditedEvents(t, "Metadata"), auditedEvents(t, "Request")
	for i := range min(len(metadata), len(full)) {
		if diff := cmp.Diff(full[i], metadata[i]); diff != "" {
			t.Errorf("%s %s: - level Request, + level Metadata:\n%s", full[i].Verb, full[i].RequestURI, diff)
		}
	}
	if len(metadata) != len(full) || len(metadata) < 12 {
		t.Errorf("%d events at level Metadata, %d at level Request", len(metadata), len(full))
	}
}

// auditedEvents sends requests of all sorts to a server with that level and
// returns what its log says of them.
func auditedEvents(t *testing.T, level string) []auditv1.Event {
	t.Helper()
	dir := t.TempDir()
	file, policy := filepath.Join(dir, "audit.log"), filepath.Join(dir, "policy.yaml")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: " + level +
		", users: [ann]}\n- level: None\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Audit.PolicyFile, c.Options.Audit.LogOptions.Path = policy, file
	}))
	rest := kubernetes.NewForConfigOrDie(env.As(t, "ann", "system:masters")).Discovery().RESTClient()
	const maps, pods = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
	account := `{"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}}`
	pod := `{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}`
	for _, r := range []struct{ method, path, kind, body string }{
		{"POST", "/api/v1/namespaces/default/serviceaccounts", "", account},
		{"POST", maps, "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c", "uid": "mine"}}`},
		{"POST", maps, "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}}`},          // exists
		{"POST", maps, "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"generateName": "g-"}}`}, //
		{"POST", maps, "", `{"kind": "ConfigMap", "metadata": {`},                                           // no JSON
		{"POST", maps, "", `{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}}`},             // another kind
		{"POST", maps, "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c", "namespace": "x"}}`},
		{"POST", maps, "text/plain", `hello`},
		{"POST", maps + "?dryRun=All", "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "dry"}}`},
		{"POST", maps, "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "Not Valid"}}`},
		{"POST", "/api/v1/namespaces/nowhere/configmaps", "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}}`},
		{"PUT", maps + "/c", "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}, "data": {"a": "b"}}`},
		// conflict
		{"PUT", maps + "/c", "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c", "resourceVersion": "1"}}`},
		// another name
		{"PUT", maps + "/c", "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "d"}}`},
		// another UID
		{"PUT", maps + "/c", "", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c", "uid": "mine"}}`},
		{"POST", pods, "", pod},
		{"POST", pods + "/p/binding", "", `{"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p"}, "target": {"name": "n"}}`},
		{"PUT", pods + "/p/status", "", strings.Replace(pod, `"spec"`, `"status": {"phase": "Running"}, "spec"`, 1)},
		{"PATCH", maps + "/c", string(types.MergePatchType), `{"data": {"c": "d"}}`},
		{"DELETE", maps + "/c", "", ""},
	} {
		if r.kind == "" {
			r.kind = "application/json"
		}
		_, _ = rest.Verb(r.method).RequestURI(r.path).SetHeader("Content-Type", r.kind).Body([]byte(r.body)).DoRaw(t.Context())
	}
	env.Stop()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []auditv1.Event
	for line := range bytes.Lines(data) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, normalized(t, &e, level))
	}
	return out
}

// normalized is an event without what differs from run to run.
func normalized(t *testing.T, e *auditv1.Event, level string) auditv1.Event {
	t.Helper()
	if (e.RequestObject != nil) && level == "Metadata" || string(e.Level) != level {
		t.Errorf("an event of level %s has level %s and object %v", level, e.Level, e.RequestObject)
	}
	same := auditv1.Event{Verb: e.Verb, RequestURI: e.RequestURI, Stage: e.Stage, ObjectRef: e.ObjectRef, ResponseStatus: e.ResponseStatus,
		Annotations: e.Annotations, User: e.User, UserAgent: e.UserAgent}
	same.User.Extra = nil
	if ref := same.ObjectRef; ref != nil {
		if ref.UID = ""; e.Verb == "create" && e.ResponseStatus.Code == http.StatusBadRequest {
			ref.Name = "" // see audited.go
		}
	}
	if same.ResponseStatus != nil {
		if same.ResponseStatus.Details != nil {
			same.ResponseStatus.Details.UID = ""
		}
		for _, quoted := range strings.Split(same.ResponseStatus.Message, " ") {
			if len(quoted) == 36 { // a UID in the text of a conflict
				same.ResponseStatus.Message = strings.ReplaceAll(same.ResponseStatus.Message, quoted, "UID")
			}
		}
	}
	return same
}
