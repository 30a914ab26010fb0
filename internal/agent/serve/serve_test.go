package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	olddialer "k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/streaming/pkg/httpstream"
	streamspdy "k8s.io/streaming/pkg/httpstream/spdy"
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

// permissions maps tokens to what their user may do: "verb subresource".
var permissions = map[string][]string{
	"metrics-server": {"get metrics", "get stats"},
	"api-server":     {"get proxy", "create proxy", "update proxy", "get log", "create checkpoint"},
	"pod-viewer":     {"get pods"},
	"prometheus":     {"get metrics", "get proxy"},
	"operator":       {"create exec"},
	"provisioner":    {"create localvolumes"},
	"nobody":         nil,
}

// newClient asks a server that answers reviews from permissions.
func newClient(t *testing.T) kubernetes.Interface {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, req *http.Request) {
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		_, review.Status.Authenticated = permissions[review.Spec.Token]
		review.Status.User.Username = review.Spec.Token
		writeJSON(w, review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, req *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		attributes := review.Spec.ResourceAttributes
		for _, allowed := range permissions[review.Spec.User] {
			if attributes.Resource == "nodes" && attributes.Name == "n1" && attributes.Verb+" "+attributes.Subresource == allowed {
				review.Status.Allowed = true
			}
		}
		writeJSON(w, review)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
}

// fakePods holds one running pod, p in default.
type fakePods struct {
	pod    *v1.Pod
	exited chan struct{}
}

func (f *fakePods) List() []*v1.Pod { return []*v1.Pod{f.pod} }

func (f *fakePods) Get(namespace, name string) (*v1.Pod, bool) {
	if namespace == f.pod.Namespace && name == f.pod.Name {
		return f.pod, true
	}
	return nil, false
}

func (f *fakePods) Exited(context.Context, string) <-chan struct{} { return f.exited }

// fakeCRI has one container whose streams are served by streaming.
type fakeCRI struct {
	logPath    string
	streaming  string
	mu         sync.Mutex
	lastExec   *runtimeapi.ExecRequest
	checkpoint error // what CheckpointContainer fails with
}

func (f *fakeCRI) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	if filter.LabelSelector[labelPodUID] != "uid-p" {
		return nil, nil
	}
	return []*runtimeapi.PodSandbox{{Id: "sandbox"}}, nil
}

func (f *fakeCRI) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	if name, ok := filter.LabelSelector[labelContainerName]; ok && name != "c" {
		return nil, nil
	}
	return []*runtimeapi.Container{{Id: "id-c", Image: &runtimeapi.ImageSpec{Image: "i"},
		Labels: map[string]string{labelPodUID: "uid-p", labelPodName: "p", labelPodNamespace: "default", labelContainerName: "c"}}}, nil
}

func (f *fakeCRI) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if id != "id-c" {
		return nil, fmt.Errorf("no container %s", id)
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: f.logPath}}, nil
}

func (f *fakeCRI) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastExec = req
	return &runtimeapi.ExecResponse{Url: f.streaming + "/exec?" + streamQuery(req.Stdin, req.Stdout, req.Stderr)}, nil
}

func (f *fakeCRI) ExecSync(_ context.Context, _ string, cmd []string, _ time.Duration) (stdout, stderr []byte, err error) {
	return []byte(strings.Join(cmd, "+")), nil, nil
}

func (f *fakeCRI) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return &runtimeapi.AttachResponse{Url: f.streaming + "/attach?" + streamQuery(req.Stdin, req.Stdout, req.Stderr)}, nil
}

func (f *fakeCRI) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return &runtimeapi.PortForwardResponse{Url: f.streaming + "/portforward"}, nil
}

func (f *fakeCRI) CheckpointContainer(_ context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	if f.checkpoint != nil {
		return f.checkpoint
	}
	return os.WriteFile(req.Location, []byte("state"), 0o600)
}

func streamQuery(stdin, stdout, stderr bool) string {
	return fmt.Sprintf("stdin=%v&stdout=%v&stderr=%v", stdin, stdout, stderr)
}

// streamingServer stands in for the runtime's: exec echoes stdin to stdout,
// writes "err" to stderr and exits with 3; portforward echoes.
func streamingServer(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/exec", serveCommand)
	mux.HandleFunc("/attach", serveCommand)
	mux.HandleFunc("/portforward", servePortForward)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func upgrade(w http.ResponseWriter, req *http.Request, protocol string) (chan httpstream.Stream, httpstream.Connection) {
	if _, err := httpstream.Handshake(req, w, []string{protocol}); err != nil {
		return nil, nil
	}
	arrived := make(chan httpstream.Stream, 10)
	conn := streamspdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, sent <-chan struct{}) error {
		go func() { <-sent; arrived <- stream }()
		return nil
	})
	return arrived, conn
}

func serveCommand(w http.ResponseWriter, req *http.Request) {
	arrived, conn := upgrade(w, req, "v4.channel.k8s.io")
	if conn == nil {
		return
	}
	defer conn.Close()
	want := 1
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		if req.URL.Query().Get(name) == "true" {
			want++
		}
	}
	byType := map[string]httpstream.Stream{}
	for range want {
		stream := <-arrived
		byType[stream.Headers().Get("streamType")] = stream
	}
	if byType["stdin"] != nil {
		io.Copy(byType["stdout"], byType["stdin"])
	}
	if byType["stderr"] != nil {
		io.WriteString(byType["stderr"], "err")
	}
	status, _ := json.Marshal(metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
		Message: "command terminated with non-zero exit code",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "3"}}}})
	byType["error"].Write(status)
	for _, stream := range byType {
		stream.Close()
	}
}

func servePortForward(w http.ResponseWriter, req *http.Request) {
	arrived, conn := upgrade(w, req, "portforward.k8s.io")
	if conn == nil {
		return
	}
	defer conn.Close()
	for {
		select {
		case stream := <-arrived:
			if stream.Headers().Get("streamType") == "data" {
				go func() {
					io.Copy(stream, stream)
					stream.Close()
				}()
			} else {
				stream.Close()
			}
		case <-conn.CloseChan():
			return
		}
	}
}

type harness struct {
	url  string
	pods *fakePods
	cri  *fakeCRI
	cfg  Config
}

// start serves the API on a free port until the test ends.
func start(t *testing.T, change func(*Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	h := &harness{
		pods: &fakePods{exited: make(chan struct{}), pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}, {Name: "waiting"}}},
			Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
				{Name: "c", ContainerID: "containerd://id-c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
				{Name: "waiting", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
			}},
		}},
		cri: &fakeCRI{logPath: filepath.Join(dir, "0.log"), streaming: streamingServer(t)},
	}
	if err := os.WriteFile(h.cri.logPath, []byte("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:06Z stdout F two\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("n1", nil, []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.url = "https://" + listener.Addr().String()
	h.cfg = Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "n1", Kubelet: &kubeletv1beta1.KubeletConfiguration{}, Client: newClient(t),
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}}, Pods: h.pods, Runtime: h.cri, RootDir: dir, Logs: SystemLogs{Dir: dir},
		Listeners: Listeners{API: listener},
		Flags:     map[string]string{"node-ip": "192.0.2.7"},
	}
	if change != nil {
		change(&h.cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, h.cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return h
}

func (h *harness) rest(token string) *rest.Config {
	return &rest.Config{Host: h.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func (h *harness) do(t *testing.T, token, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
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

func TestFollowedLogEndsWithItsContainer(t *testing.T) {
	h := start(t, nil)
	file, err := os.OpenFile(h.cri.logPath, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	go func() {
		io.WriteString(file, "2026-01-02T03:04:07Z stdout F three\n")
		close(h.pods.exited)
	}()
	if _, body := h.do(t, "api-server", "GET", "/containerLogs/default/p/c?follow=true", ""); body != "one\ntwo\nthree\n" {
		t.Errorf("got %q", body)
	}
}

func TestExecAndAttach(t *testing.T) {
	h := start(t, nil)
	for _, path := range []string{"/exec/default/p/c?command=cat&command=-&input=1&output=1&error=1",
		"/attach/default/p/c?stdin=true&stdout=true&stderr=true"} {
		for _, kind := range []string{"SPDY", "WebSocket"} {
			location, err := url.Parse(h.url + path)
			if err != nil {
				t.Fatal(err)
			}
			var executor remotecommand.Executor
			if kind == "SPDY" {
				executor, err = remotecommand.NewSPDYExecutor(h.rest("api-server"), "POST", location)
			} else {
				executor, err = remotecommand.NewWebSocketExecutor(h.rest("api-server"), "GET", location.String())
			}
			if err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &stdout,
				Stderr: &stderr})
			var exit exec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 3 {
				t.Errorf("%s %s: %v, want exit code 3", kind, path, err)
			}
			if stdout.String() != "hello" || stderr.String() != "err" {
				t.Errorf("%s %s: stdout %q stderr %q", kind, path, stdout.String(), stderr.String())
			}
		}
	}
	if got := h.cri.lastExec.Cmd; len(got) != 2 || got[0] != "cat" {
		t.Errorf("command is %q", got)
	}
}

func TestPortForward(t *testing.T) {
	h := start(t, nil)
	location, err := url.Parse(h.url + "/portForward/default/p")
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(h.rest("api-server"))
	if err != nil {
		t.Fatal(err)
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", location)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(location, h.rest("api-server"))
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]olddialer.Dialer{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		stop, ready := make(chan struct{}), make(chan struct{})
		forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("%s: %v", name, err)
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "ping")
		conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil || string(answer) != "ping" {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		conn.Close()
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
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

// TestLogQuery asks for logs of services: a file in the log directory first,
// else the journal; the answer is cut as asked.
func TestLogQuery(t *testing.T) {
	on := true
	var asked []string
	h := start(t, func(cfg *Config) {
		cfg.Kubelet.EnableSystemLogQuery = &on
		cfg.Logs.Journal = func(_ context.Context, args []string, out io.Writer) error {
			if asked = args; strings.Contains(strings.Join(args, " "), "unit=broken") {
				return errors.New("no journal files were found")
			}
			_, err := io.WriteString(out, "first of containerd\nsecond of containerd\nthird\n")
			return err
		}
	})
	if err := os.WriteFile(filepath.Join(h.cfg.Logs.Dir, "kubelet.log"), []byte("a 1\nb 2\na 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(h.cfg.Logs.Dir, "out.log")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		query string
		code  int
		want  string
		args  string
	}{
		{"query=kubelet", 200, "a 1\nb 2\na 3\n", ""},
		{"query=kubelet&pattern=%5Ea", 200, "a 1\na 3\n", ""},
		{"query=kubelet&pattern=%5Ea&tailLines=1", 200, "a 3\n", ""},
		{"query=/kubelet.log&tailLines=1", 200, "a 3\n", ""},
		{"query=/../../etc/passwd", 404, "opening log", ""},
		{"query=/out.log", 404, "escapes", ""},
		{"query=/kubelet.log&boot=0", 400, "only apply to the journal", ""},
		{"query=containerd&tailLines=2", 200, "second of containerd\nthird\n", "--unit=containerd"},
		{"query=containerd&query=cri&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-02T03:04:05Z&boot=-1", 200, "first",
			"--since=2026-01-02 02:04:05 --until=2026-01-02 03:04:05 --boot -1 --unit=containerd --unit=cri"},
		{"query=broken", 500, "no journal files were found", ""},
		{"query=-u%20x", 400, "neither the name of a service", ""},
		{"query=--root", 400, "neither the name of a service", ""},
		{"query=", 400, "neither the name of a service", ""},
		{"query=/a&query=b", 400, "only one file", ""},
		{"query=a&tailLines=-1", 400, "tailLines", ""},
		{"query=a&boot=1", 400, "boot", ""},
		{"query=a&pattern=(", 400, "pattern", ""},
		{"query=a&sinceTime=now", 400, "sinceTime", ""},
		{"query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2025-01-02T03:04:05Z", 400, "untilTime must not be before", ""},
	} {
		asked = nil
		code, body := h.do(t, "api-server", "GET", "/logs/?"+test.query, "")
		if code != test.code || !strings.Contains(body, test.want) || test.code == 200 && !strings.HasPrefix(body, test.want) {
			t.Errorf("%s: got %d %q, want %d with %q", test.query, code, body, test.code, test.want)
		}
		if got := strings.Join(asked, " "); !strings.HasSuffix(got, test.args) {
			t.Errorf("%s: the journal was asked %q", test.query, got)
		}
	}
}

// TestLogDirKeepsLinksInside: a pod that may write below the log directory
// plants links and FIFOs; what lies inside is still shown, the absolute links
// of containers/ included.
func TestLogDirKeepsLinksInside(t *testing.T) {
	on := true
	h := start(t, func(cfg *Config) { cfg.Kubelet.EnableSystemLogQuery = &on })
	dir := h.cfg.Logs.Dir
	secret := filepath.Join(t.TempDir(), "shadow")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret, "root:secret")
	write(filepath.Join(dir, "pods/p/0.log"), "a line\n")
	for name, target := range map[string]string{
		"evil": secret, "deep/evil": filepath.Dir(secret), "containers/c.log": filepath.Join(dir, "pods/p/0.log"),
		"near.log": "pods/p/0.log",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		code int
		want string
	}{
		{"/logs/evil", 500, ""},
		{"/logs/deep/evil/shadow", 500, ""},
		{"/logs/fifo", 403, ""},
		{"/logs/?query=/evil", 404, "escapes"},
		{"/logs/?query=/fifo", 404, "neither a file nor a directory"},
		{"/logs/none", 404, ""},
		{"/logs/pods/p/0.log", 200, "a line\n"},
		{"/logs/containers/c.log", 200, "a line\n"},
		{"/logs/near.log", 200, "a line\n"},
		{"/logs/?query=/containers/c.log", 200, "a line\n"},
		{"/logs/", 200, "pods/"},
	} {
		code, body := h.do(t, "api-server", "GET", test.path, "")
		if code != test.code || !strings.Contains(body, test.want) || strings.Contains(body, "secret") {
			t.Errorf("%s: got %d %q, want %d with %q", test.path, code, body, test.code, test.want)
		}
	}
}

// TestLogLinesAreBounded: neither a line without an end nor a long tail makes
// the agent hold what somebody else wrote.
func TestLogLinesAreBounded(t *testing.T) {
	var out bytes.Buffer
	f := &lineFilter{out: &out, tail: 100000}
	block := bytes.Repeat([]byte("x"), 1<<16)
	for range 1024 { // 64 MiB in one line
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if cap(f.line) > 4*maxLogLine {
		t.Errorf("a line takes %d bytes", cap(f.line))
	}
	line := append(bytes.Repeat([]byte("y"), 1<<16), '\n')
	for range 1024 {
		if _, err := f.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if f.held > maxLogTail {
		t.Errorf("the tail holds %d bytes", f.held)
	}
	for _, text := range []string{"one\ntw", "o\nthree"} {
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.close(); err != nil || !strings.HasSuffix(out.String(), "one\ntwo\nthree") {
		t.Errorf("the end of the tail: %v, %q", err, out.String()[max(0, out.Len()-20):])
	}
}

// FuzzLogQuery takes in any query of logs, and any text for it to filter.
func FuzzLogQuery(f *testing.F) {
	f.Add("query=kubelet&pattern=a&tailLines=3", "a\nb\nca")
	f.Add("query=/x/../y&sinceTime=2026-01-02T03:04:05Z&boot=-1", "\n\n")
	f.Fuzz(func(t *testing.T, query, text string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := readLogQuery(values["query"], values)
		if err != nil {
			return
		}
		for _, arg := range journalArgs(q, q.services)[3:] {
			if strings.ContainsAny(arg, "\n\x00") {
				t.Errorf("%q reaches the command line", arg)
			}
		}
		if strings.Contains(q.file, "/../") {
			t.Errorf("%q leaves the log directory", q.file)
		}
		var out bytes.Buffer
		lines := q.lines(&out)
		if _, err := io.WriteString(lines, text); err != nil || lines.close() != nil {
			t.Fatal(err)
		}
		if q.pattern == nil && q.tail < 0 && out.String() != text {
			t.Errorf("%q became %q", text, out.String())
		}
	})
}
