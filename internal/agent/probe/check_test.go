package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/agent/pod"
)

func portOf(t *testing.T, addr string) int32 {
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

func TestChecks(t *testing.T) {
	var seen http.Header
	var host string
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { seen, host = r.Header, r.Host; fmt.Fprint(w, "fine") })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	secure := httptest.NewTLSServer(mux)
	defer secure.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	hs := health.NewServer()
	hs.SetServingStatus("sick", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(g, hs)
	go func() { _ = g.Serve(lis) }()
	defer g.Stop()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut := portOf(t, closed.Addr().String())
	closed.Close()
	port, tls := portOf(t, srv.Listener.Addr().String()), portOf(t, secure.Listener.Addr().String())

	get := func(port int32, path, scheme string) v1.ProbeHandler {
		return v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(port), Path: path, Scheme: v1.URIScheme(scheme)}}
	}
	command := func(c ...string) v1.ProbeHandler { return v1.ProbeHandler{Exec: &v1.ExecAction{Command: c}} }
	sick := "sick"
	exec := func(_ context.Context, _ string, cmd []string, _ time.Duration) ([]byte, int, error) {
		switch cmd[0] {
		case "false":
			return []byte("no"), 1, nil
		case "late":
			return nil, 0, context.DeadlineExceeded
		case "broken":
			return nil, 0, errors.New("no such container")
		}
		return []byte(strings.Join(cmd, " ")), 0, nil
	}
	for _, tc := range []struct {
		name string
		h    v1.ProbeHandler
		want verdict
		text string
	}{
		{"http", get(port, "/ok", "HTTP"), Success, "fine"},
		{"http bad", get(port, "/bad", "HTTP"), Failure, "HTTP probe failed with statuscode: 503"},
		{"http redirected here", get(port, "/here", "HTTP"), Success, "fine"},
		{"http redirected away", get(port, "/away", "HTTP"), Warned, "Probe terminated redirects"},
		{"http named port", v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("web"), Path: "/ok"}}, Success, "fine"},
		{"http unknown port", v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("nope"), Path: "/ok"}}, Errored, ""},
		{"https", get(tls, "/ok", "HTTPS"), Success, "fine"},
		{"tcp", v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(port)}}, Success, ""},
		{"tcp closed", v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(shut)}}, Failure, "refused"},
		{"grpc", v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: portOf(t, lis.Addr().String())}}, Success, "healthy"},
		{"grpc sick", v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: portOf(t, lis.Addr().String()), Service: &sick}}, Failure,
			`service unhealthy (responded with "NOT_SERVING")`},
		{"grpc closed", v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: shut}}, Failure, "failed to connect service"},
		{"exec", command("echo", "$(WHO)", "$$x", "$(NOBODY)"), Success, "echo me $x $(NOBODY)"},
		{"exec false", command("false"), Failure, "no"},
		{"exec late", command("late"), Failure, "timed out"},
		{"exec broken", command("broken"), Errored, ""},
		{"nothing", v1.ProbeHandler{}, Errored, ""},
	} {
		c := &v1.Container{Name: "app", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: port}},
			Env: []v1.EnvVar{{Name: "WHO", Value: "me"}}}
		v, text, err := run(t.Context(), exec, subject{c: c, podIP: "127.0.0.1", probe: &v1.Probe{ProbeHandler: tc.h, TimeoutSeconds: 5}})
		if v != tc.want || !strings.Contains(text, tc.text) || (v == Errored) != (err != nil) {
			t.Errorf("%s: %v %q %v, want %v %q", tc.name, v, text, err, tc.want, tc.text)
		}
	}
	if seen.Get("User-Agent") != userAgent || seen.Get("Accept") != "*/*" || seen.Get("Accept-Encoding") != "" {
		t.Errorf("headers of a probe: %v", seen)
	}
	h := &v1.HTTPGetAction{Port: intstr.FromInt32(port), Path: "/ok", HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "my.example"},
		{Name: "Accept", Value: ""}}}
	if _, _, err := run(t.Context(), exec, subject{c: &v1.Container{}, podIP: "127.0.0.1",
		probe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: h}}}); err != nil || host != "my.example" || seen["Accept"] != nil {
		t.Errorf("headers of the pod's own: host %q, %v, %v", host, seen, err)
	}
}

func TestHooks(t *testing.T) {
	var auth string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		auth = r.Header.Get("Authorization")
		w.WriteHeader(500)
	}))
	defer srv.Close()
	warned := ""
	fallbacks := prometheus.NewCounter(prometheus.CounterOpts{Name: "fallbacks"})
	h := Hooks{
		Fallbacks: fallbacks,
		Exec: func(_ context.Context, _ string, cmd []string, timeout time.Duration) ([]byte, int, error) {
			if timeout != 0 {
				t.Errorf("a hook has a timeout of its own: %s", timeout)
			}
			return nil, len(cmd) - 1, nil
		},
		Event: func(_ *v1.Pod, _, reason, _ string) { warned = reason },
	}
	do := func(ctx context.Context, lh v1.LifecycleHandler) error {
		return h.Run(ctx, pod.Hook{Pod: &v1.Pod{}, Container: &v1.Container{Name: "app"}, PodIP: "127.0.0.1", Handler: &lh})
	}
	get := func(scheme v1.URIScheme) v1.LifecycleHandler {
		return v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(portOf(t, srv.Listener.Addr().String())),
			Scheme:      scheme,
			HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}}}}
	}
	if err := do(t.Context(), v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"x"}}}); err != nil {
		t.Error(err)
	}
	if err := do(t.Context(), v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"x", "y"}}}); err == nil {
		t.Error("a command that fails is a success")
	}
	if err := do(t.Context(), v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 0}}); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := do(ended, v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 3600}}); err == nil {
		t.Error("a sleep outlives its context")
	}
	if err := do(t.Context(), get(v1.URISchemeHTTP)); err != nil || auth != "secret" {
		t.Errorf("what an HTTP hook answers must not matter: %v, authorization %q", err, auth)
	}
	if err := do(t.Context(), get(v1.URISchemeHTTPS)); err != nil || auth != "" || warned != "LifecycleHTTPFallback" {
		t.Errorf("HTTPS against HTTP: %v, authorization %q, event %q", err, auth, warned)
	}
	if n := testutil.ToFloat64(fallbacks); n != 1 {
		t.Errorf("%v fallbacks are counted", n)
	}
	if err := do(t.Context(), v1.LifecycleHandler{}); err == nil {
		t.Error("a hook without handler is a success")
	}
}

// TestProber: results arrive, a check that hangs holds up no other.
func TestProber(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	changed := make(chan types.UID, 100)
	p := New(Config{
		Exec: func(ctx context.Context, id string, _ []string, _ time.Duration) ([]byte, int, error) {
			if id == "hangs" {
				<-ctx.Done()
				return nil, 0, ctx.Err()
			}
			return nil, 0, nil
		},
		Changed: func(uid types.UID) { changed <- uid }, Event: func(*v1.Pod, string, string, string) {},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	pr := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"x"}}}, PeriodSeconds: 3600, TimeoutSeconds: 3600}
	for _, id := range []string{"hangs", "well"} {
		p.Sync(types.UID(id), []pod.Target{targetOf(id, v1.Container{Name: "app", ReadinessProbe: pr}, time.Now())})
	}
	if uid := <-changed; uid != "well" || !p.Results("well")["well"].Ready || p.Results("hangs")["hangs"].Ready {
		t.Errorf("%s changed first: %v", uid, p.Results(uid))
	}
	cancel()
	<-done
}

// FuzzSpec reads whatever a probe may say about its target: either it is
// refused, or it asks the port that it names.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{
		`{"httpGet":{"port":80}}`,
		`{"httpGet":{"port":"web","path":"//x?a=b#c","host":"::1","scheme":"HTTPS","httpHeaders":[{"name":"Host","value":""},` +
			`{"name":"\n","value":"\u0000"}]}}`,
		`{"httpGet":{"port":"0","path":"%zz"}}`,
		`{"tcpSocket":{"port":99999}}`,
		`{"exec":{"command":["$(A)$$(B","$("]}}`,
		`{"httpGet":{"port":-1,"host":"a b"}}`,
	} {
		f.Add([]byte(s))
	}
	c := &v1.Container{Name: "app", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}},
		Env: []v1.EnvVar{{Name: "A", Value: "$(A)"}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p v1.Probe
		if json.Unmarshal(b, &p) != nil {
			return
		}
		if p.Exec != nil {
			if got := expand(p.Exec.Command, c.Env); len(got) != len(p.Exec.Command) {
				t.Errorf("%q became %q", p.Exec.Command, got)
			}
		}
		if p.HTTPGet == nil {
			return
		}
		req, err := request(context.Background(), c, "192.0.2.1", p.HTTPGet, "agent")
		if err != nil {
			return
		}
		want, err := containerPort(c, p.HTTPGet.Port)
		if err != nil || req.URL.Port() != strconv.Itoa(want) {
			t.Errorf("asks port %q, want %d (%v)", req.URL.Port(), want, err)
		}
	})
}
