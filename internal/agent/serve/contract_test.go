package serve

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestSubresources spells out, per path, which permissions on the node open it,
// in the order they are asked for. A route that is not listed here fails, and a
// listed one that is not served.
func TestSubresources(t *testing.T) {
	want := map[string]string{
		"/healthz": "healthz proxy", "/pods": "pods proxy", "/runningpods": "pods proxy", "/configz": "configz proxy",
		"/statusz": "statusz proxy", "/flagz": "configz proxy",
		"/stats/summary": "stats", "/metrics": "metrics", "/metrics/probes": "metrics", "/metrics/resource": "metrics",
		"/metrics/cadvisor": "metrics", "/metrics/slis": "metrics",
		"/checkpoint": "checkpoint", "/logs": "log", "/images": "images",
		"/containerLogs": "proxy", "/exec": "exec proxy", "/csi/local.berth.dev": "localvolumes proxy", "/attach": "attach proxy",
		"/portForward": "portforward proxy", "/run": "run proxy", "/debug/pprof": "proxy", "/debug/flags/v": "proxy",
	}
	s, err := newServer(start(t, nil).cfg)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, route := range s.routes() {
		name := "/" + routeName(route.pattern)
		seen[name] = true
		if got := strings.Join(route.subresources, " "); got != want[name] {
			t.Errorf("%s needs %q, want %q", route.pattern, got, want[name])
		}
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("%s is not served", name)
		}
	}
}

// TestReadOnlyPort shows what anybody may see, and nothing that acts, tells
// secrets or needs a name: only where readOnlyPort is set.
func TestReadOnlyPort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, func(cfg *Config) { cfg.Listeners.ReadOnly = listener })
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(path string) (int, string) {
		res, err := client.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body)
	}
	open := []string{"/healthz", "/healthz/ping", "/pods", "/metrics", "/metrics/probes", "/metrics/slis"}
	for _, path := range open {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	for _, path := range []string{"/stats/summary", "/metrics/resource", "/metrics/cadvisor"} {
		if code, _ := get(path); code != http.StatusNotImplemented { // there are no stats here
			t.Errorf("%s: %d, want 501", path, code)
		}
	}
	s, err := newServer(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range s.routes() {
		if route.readOnly {
			continue
		}
		path := strings.NewReplacer("{$}", "", "{namespace}", "default", "{pod}", "p", "{container}", "c", "{uid}",
			"uid-p").Replace(route.pattern)
		if code, _ := get(path); code != http.StatusNotFound {
			t.Errorf("%s is open to anybody: %d", path, code)
		}
	}
	if slices.ContainsFunc(s.routes(), func(r route) bool { return r.readOnly && r.gate != always }) {
		t.Error("a debugging route is read-only")
	}
}

// TestCheckpointsTheRuntimeCannotWrite: the answer says whose limit it is.
func TestCheckpointsTheRuntimeCannotWrite(t *testing.T) {
	h := start(t, nil)
	h.cri.checkpoint = status.Error(codes.Unimplemented, "unknown method CheckpointContainer")
	code, body := h.do(t, "api-server", http.MethodPost, "/checkpoint/default/p/c", "")
	if code != http.StatusInternalServerError || !strings.Contains(body, "the container runtime cannot write checkpoints") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := h.do(t, "api-server", http.MethodPost, "/checkpoint/default/p/c?timeout=soon", ""); code != http.StatusBadRequest {
		t.Errorf("a timeout that is no number: %d %s", code, body)
	}
}
