package ask

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// server answers paths with bodies, refuses what begins with 403, and does not
// find the rest.
type server struct {
	bodies map[string]string

	mu      sync.Mutex
	asked   []string
	accepts map[string]string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.accepts[r.URL.Path] = r.Header.Get("Accept")
	s.mu.Unlock()
	body, ok := s.bodies[r.URL.Path]
	switch {
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","message":"not found"}`)
	case strings.HasPrefix(body, "403"):
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"kind":"Status","message":%q}`, body[4:])
	default:
		fmt.Fprint(w, body)
	}
}

func answer(t *testing.T, bodies map[string]string, kind, namespace, name string) (why.Answer, *server) {
	t.Helper()
	s := &server{bodies: bodies, accepts: map[string]string{}}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	a, err := Why(t.Context(), Config{Client: &rest.Config{Host: ts.URL}, Now: time.Now()},
		journal.Ref{Kind: kind, Namespace: namespace, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return a, s
}

// TestReadsWithTheCallersRights: it only gets, follows what it read, and names
// what the caller may not read.
func TestReadsWithTheCallersRights(t *testing.T) {
	a, s := answer(t, map[string]string{
		"/api/v1/namespaces/ns/pods/p": `{"metadata":{"name":"p","namespace":"ns","uid":"1"},"spec":{"nodeName":"n",` +
			`"containers":[{"name":"c"}]},
			"status":{"phase":"Pending","containerStatuses":[{"name":"c","state":{"waiting":{"reason":"CreateContainerConfigError",
			"message":"secret \"k\" not found"}}}]}}`,
		"/api/v1/namespaces/ns/events": `{"items":[]}`,
		"/api/v1/nodes/n":              `403 nodes "n" is forbidden`,
	}, "Pod", "ns", "p")
	if a.Code != "SecretMissing" || !slices.ContainsFunc(a.Unread, func(u string) bool { return u == `Node n: nodes "n" is forbidden` }) {
		t.Errorf("%s: %s; not read: %q", a.Code, a.Cause, a.Unread)
	}
	for _, r := range s.asked {
		if !strings.HasPrefix(r, "GET ") {
			t.Errorf("it writes: %s", r)
		}
	}
}

// TestSecretsAreReadAsMetadata: the content of a Secret is never asked for.
func TestSecretsAreReadAsMetadata(t *testing.T) {
	a, s := answer(t, map[string]string{
		"/apis/networking.k8s.io/v1/namespaces/ns/ingresses/i": `{"metadata":{"name":"i","namespace":"ns"},` +
			`"spec":{"tls":[{"secretName":"k"}]}}`,
	}, "Ingress", "ns", "i")
	if a.Code != "SecretMissing" {
		t.Errorf("%s: %s", a.Code, a.Cause)
	}
	if accept := s.accepts["/api/v1/namespaces/ns/secrets/k"]; !strings.Contains(accept, "as=PartialObjectMetadata;") {
		t.Errorf("a Secret was asked for as %q", accept)
	}
}

// TestNamespaceNamesTheHeldObject: the resource of any group is found in the
// version that its group prefers.
func TestNamespaceNamesTheHeldObject(t *testing.T) {
	a, _ := answer(t, map[string]string{
		"/api/v1/namespaces/x": `{"metadata":{"name":"x","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"conditions":[{"type":
			"NamespaceContentRemaining","status":"True","message":"Some resources are remaining: widgets.e.com. has 1 resource ` +
			`instances"}]}}`,
		"/apis/e.com":    `{"preferredVersion":{"groupVersion":"e.com/v2"}}`,
		"/apis/e.com/v2": `{"resources":[{"name":"widgets","kind":"Widget"}]}`,
		"/apis/e.com/v2/namespaces/x/widgets": `{"items":[
			{"kind":"PartialObjectMetadata","metadata":{"name":"w","namespace":"x","finalizers":["e.com/f"],
			"deletionTimestamp":"2026-01-01T00:00:00Z"}}]}`,
	}, "Namespace", "", "x")
	if a.Code != "Finalizer" || !strings.HasPrefix(a.Cause, "widget w holds the namespace: finalizer e.com/f is not removed") {
		t.Errorf("%s: %s; not read: %q", a.Code, a.Cause, a.Unread)
	}
}

// TestWithoutAPI: an API that does not answer leaves the journal and the host.
func TestWithoutAPI(t *testing.T) {
	ts := httptest.NewServer(http.NotFoundHandler())
	ts.Close()
	ref := journal.Ref{Kind: "Pod", Namespace: "ns", Name: "p"}
	for _, cfg := range []Config{{Client: &rest.Config{Host: ts.URL}}, {APIError: errors.New("no kubeconfig")}} {
		cfg.Records = func(context.Context, journal.Ref) ([]journal.Record, error) {
			return []journal.Record{{Part: "agent", Object: ref, Decision: "image not available"}}, nil
		}
		cfg.Host = func(context.Context) []journal.Fact { return []journal.Fact{{Name: "api", Value: "process ended"}} }
		a, err := Why(t.Context(), cfg, ref)
		if err != nil || a.Code != "APIDown" || !strings.Contains(a.Cause,
			"(api: process ended); last decision about Pod ns/p: image not") {
			t.Errorf("%v, %s: %s", err, a.Code, a.Cause)
		}
	}
}
