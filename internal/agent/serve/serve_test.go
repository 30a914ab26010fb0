package serve

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/cache.(*Expiring).gc"),
		// Idle connections of the proxies' shared transport outlive a test.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		// Closed SPDY connections of the test's own clients wait for the far end.
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// One expiry goroutine per token cache, for the life of the process.
		goleak.IgnoreAnyFunction("k8s.io/utils/clock.RealClock.After"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/authentication/token/cache.newStripedCache.func1"),
	)
}

func TestAnswers(t *testing.T) {
	h := start(t, nil)
	for _, test := range []struct {
		token, method, path string
		code                int
		want                string // a part of the body
	}{
		{"", "GET", "/pods", 401, "Unauthorized: show a client certificate"},
		{"wrong", "GET", "/pods", 401, "or a bearer token that the API server takes"},
		{"nobody", "GET", "/metrics", 403,
			"Forbidden (user=nobody, verb=get, resource=nodes, subresource(s)=[metrics]): a ClusterRole for nodes/SUBRESOURCE"},
		{"nobody", "GET", "/pods", 403, "subresource(s)=[pods proxy]"},
		{"metrics-server", "GET", "/metrics", 200, ""},
		{"metrics-server", "GET", "/pods", 403, ""},
		{"metrics-server", "POST", "/exec/default/p/c?command=id&output=1", 403, "verb=create"},
		{"pod-viewer", "GET", "/pods", 200, `"kind":"PodList"`},
		{"pod-viewer", "GET", "/exec/default/p/c", 403, ""},
		// A websocket starts with GET: get on nodes/proxy is no right to run things.
		{"prometheus", "GET", "/exec/default/p/c?command=id&output=1", 403, "verb=create, resource=nodes, subresource(s)=[exec proxy]"},
		{"prometheus", "GET", "/attach/default/p/c?output=1", 403, "subresource(s)=[attach proxy]"},
		{"prometheus", "GET", "/portForward/default/p", 403, "subresource(s)=[portforward proxy]"},
		{"prometheus", "GET", "/metrics", 200, ""},
		{"operator", "GET", "/exec/default/p/c?command=id&output=1", 400, "Upgrade request required"},
		{"operator", "GET", "/attach/default/p/c?output=1", 403, "verb=create"},
		// Who makes volumes runs nothing in pods.
		{"provisioner", "POST", "/csi/local.berth.dev/GetCapacity", 404, "this node has no local volumes"},
		{"provisioner", "POST", "/exec/default/p/c?command=id&output=1", 403, "verb=create"},
		{"provisioner", "POST", "/run/default/p/c?cmd=id", 403, "verb=create"},
		{"provisioner", "POST", "/csi/local.berth.dev/../../run/default/p/c?cmd=id", 403, ""},
		{"provisioner", "GET", "/pods", 403, ""},
		{"api-server", "GET", "/exec/default/p/c?command=id&output=1", 400, "Upgrade request required"},
		{"api-server", "GET", "/metrics", 403, ""}, // no fallback to proxy
		{"api-server", "GET", "/healthz", 200, "ok"},
		{"api-server", "GET", "/healthz/ping", 200, "ok"},
		{"api-server", "GET", "/healthz/log", 200, "ok"},
		{"api-server", "GET", "/healthz/none", 404, ""},
		{"metrics-server", "GET", "/metrics/slis", 200, `kubernetes_healthcheck{name="ping",type="healthz"} 1`},
		{"metrics-server", "GET", "/statusz", 403, "subresource(s)=[statusz proxy]"},
		{"api-server", "GET", "/statusz", 200, "kubelet statusz"},
		{"api-server", "GET", "/flagz", 200, "192.0.2.7"},
		{"api-server", "GET", "/logs/?query=kubelet", 403, "enableSystemLogQuery"},
		{"api-server", "GET", "/pods", 200, `"name":"p"`},
		{"api-server", "POST", "/pods", 405, ""},
		{"api-server", "GET", "/runningpods/", 200, `"containers":[{"name":"c","image":"i"`},
		{"api-server", "GET", "/configz", 200,
			`{"kubeletconfig":{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1"`},
		{"api-server", "GET", "/containerLogs/default/p/c", 200, "one\ntwo\n"},
		{"api-server", "GET", "/containerLogs/default/p/c?tailLines=1", 200, "two\n"},
		{"api-server", "GET", "/containerLogs/default/p/c?tail=1", 200, "two\n"},
		{"api-server", "GET", "/containerLogs/default/p/c?limitBytes=2", 200, "on"},
		{"api-server", "GET", "/containerLogs/default/p/c?timestamps=true&sinceTime=2026-01-02T03:04:06Z", 200,
			"2026-01-02T03:04:06Z two\n"},
		{"api-server", "GET", "/containerLogs/default/p/c?tailLines=-1", 422, "Invalid request."},
		{"api-server", "GET", "/containerLogs/default/p/c?tailLines=x", 400, ""},
		{"api-server", "GET", "/containerLogs/default/p/c?previous=true", 400, `previous terminated container "c" in pod "p" not found`},
		{"api-server", "GET", "/containerLogs/default/p/waiting", 400,
			`container "waiting" in pod "p" is waiting to start: ContainerCreating`},
		{"api-server", "GET", "/containerLogs/default/p/x", 404, `container "x" not found in pod "p"`},
		{"api-server", "GET", "/containerLogs/default/x/c", 404, `pod "x" does not exist`},
		{"api-server", "POST", "/exec/default/p/c?command=id&output=1", 400, "Upgrade request required"},
		{"api-server", "POST", "/exec/default/p/c?command=id", 400, "at least 1 of stdin, stdout, stderr"},
		{"api-server", "POST", "/exec/default/p/x?command=id&output=1", 404, `container not found ("x")`},
		{"api-server", "POST", "/exec/default/p/other-uid/c?command=id&output=1", 404, "pod does not exist"},
		{"api-server", "POST", "/run/default/p/c?cmd=echo%20hi", 200, "echo+hi"},
		{"api-server", "POST", "/run/default/p/uid-p/c?cmd=echo%20hi", 200, "echo+hi"},
		{"api-server", "POST", "/portForward/default/p?port=0", 400, "port"},
		{"api-server", "POST", "/checkpoint/default/p/c", 200, "checkpoint-p_default-c-"},
		{"api-server", "POST", "/checkpoint/default/x/c", 404, ""},
		{"api-server", "GET", "/logs/0.log", 200, "stdout F one"},
		{"api-server", "GET", "/debug/pprof/cmdline", 200, ""},
		{"api-server", "GET", "/none", 404, ""},
		{"nobody", "GET", "/none", 403, ""},
		{"metrics-server", "GET", "/stats/summary", 501, ""},
	} {
		code, body := h.do(t, test.token, test.method, test.path, "")
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s %s as %q: got %d %q, want %d with %q", test.method, test.path, test.token, code, body, test.code, test.want)
		}
	}
}

// TestEveryRouteNeedsPermission walks the table itself, so that a new row is
// covered by being there.
func TestEveryRouteNeedsPermission(t *testing.T) {
	h := start(t, nil)
	s, err := newServer(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range s.routes() {
		path := strings.NewReplacer("{$}", "", "{namespace}", "default", "{pod}", "p", "{container}", "c", "{uid}", "uid-p", "{check}",
			"ping").Replace(route.pattern)
		for _, method := range route.methods {
			if code, _ := h.do(t, "", method, path, ""); code != 401 {
				t.Errorf("%s %s without credentials: %d", method, path, code)
			}
			if code, _ := h.do(t, "nobody", method, path, ""); code != 403 {
				t.Errorf("%s %s without permission: %d", method, path, code)
			}
		}
	}
}

func TestDebuggingHandlersCanBeSwitchedOff(t *testing.T) {
	off := false
	h := start(t, func(cfg *Config) { cfg.Kubelet.EnableDebuggingHandlers = &off })
	for _, path := range []string{"/runningpods/", "/containerLogs/default/p/c", "/exec/default/p/c", "/attach/default/p/c",
		"/portForward/default/p", "/logs/", "/debug/pprof/"} {
		if code, body := h.do(t, "api-server", "GET", path, ""); code != 405 || !strings.Contains(body, "Debug endpoints are disabled.") {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, _ := h.do(t, "api-server", "GET", "/pods", ""); code != 200 {
		t.Errorf("/pods: %d", code)
	}
}

func TestLogLevelCanBeRaised(t *testing.T) {
	level := &slog.LevelVar{}
	h := start(t, func(cfg *Config) { cfg.LogLevel = level })
	if code, body := h.do(t, "api-server", "PUT", "/debug/flags/v", "5"); code != 200 || level.Level() != slog.LevelDebug {
		t.Errorf("%d %q, level %v", code, body, level.Level())
	}
}

func TestHealthzPortIsPlainAndOpen(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, func(cfg *Config) { cfg.Listeners.Healthz = listener })
	res, err := http.Get("http://" + listener.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(body) != "ok" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

func TestTakenPortIsReportedAtStart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	h := start(t, nil)
	cfg := h.cfg
	cfg.Listeners.API = nil
	cfg.Kubelet = &kubeletv1beta1.KubeletConfiguration{Address: "127.0.0.1", Port: int32(listener.Addr().(*net.TCPAddr).Port)}
	if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "is another agent running?") {
		t.Errorf("got %v", err)
	}
}
