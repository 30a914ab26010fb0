package pods_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	streamspdy "k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// agent stands in for a node agent: it answers logs with the query it saw,
// echoes what is typed into exec and attach, and forwards ports to an echo.
type agent struct {
	*httptest.Server
	ca *apitest.AgentCA
	// follow feeds the followed log line by line.
	follow chan string
}

func newAgent(t *testing.T) *agent {
	a := &agent{follow: make(chan string)}
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/", a.logs)
	mux.HandleFunc("/exec/", a.session)
	mux.HandleFunc("/attach/", a.session)
	mux.HandleFunc("/portForward/", a.ports)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path) })
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != "kube-apiserver-kubelet-client" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	a.ca = apitest.NewAgentCA(t)
	a.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{a.ca.Serving(t, "here", "127.0.0.1")}}
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

// trust makes the server verify this agent.
func (a *agent) trust() func(*api.Config) {
	return func(c *api.Config) {
		c.PKI.KubeletCA = a.ca.File()
		c.ProxyToLoopback = true
	}
}

// register creates the node "here" with the agent's address.
func (a *agent) register(t *testing.T, f *fixture) {
	t.Helper()
	u, err := url.Parse(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.CoreV1().Nodes().Create(bg(), &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "here"},
		Status: v1.NodeStatus{
			Addresses:       []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: u.Hostname()}},
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: int32(port)}},
			Allocatable:     v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("8Gi")},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func (a *agent) logs(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("follow") != "true" {
		fmt.Fprintf(w, "%s?%s\n", r.URL.Path, r.URL.RawQuery)
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case line, ok := <-a.follow:
			if !ok {
				return
			}
			fmt.Fprintln(w, line)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// session serves exec and attach over SPDY: stdout gets the request, then what
// comes in on stdin.
func (a *agent) session(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q := r.URL.Query()
	want := 1 // error
	for _, name := range []string{"input", "output", "error"} {
		if q.Get(name) == "1" {
			want++
		}
	}
	arrived := make(chan httpstream.Stream, 8)
	conn := streamspdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, reply <-chan struct{}) error {
		arrived <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for range want {
		select {
		case s := <-arrived:
			streams[s.Headers().Get("streamType")] = s
		case <-r.Context().Done():
			return
		}
	}
	if out := streams["stdout"]; out != nil {
		fmt.Fprintf(out, "%s %s|", r.URL.Path, strings.Join(q["command"], ","))
		if in := streams["stdin"]; in != nil {
			io.Copy(out, in) //nolint:errcheck // the client went away
		}
		out.Close()
	}
	fmt.Fprint(streams["error"], `{"metadata":{},"status":"Success"}`)
	streams["error"].Close()
	<-conn.CloseChan()
}

// ports echoes each forwarded connection, after naming the port.
func (a *agent) ports(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	conn := streamspdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			if s.Headers().Get("streamType") == "data" {
				fmt.Fprintf(s, "%s:", s.Headers().Get("port"))
				io.Copy(s, s) //nolint:errcheck // the client went away
			}
			s.Close()
		}()
		return nil
	})
	if conn != nil {
		<-conn.CloseChan()
		conn.Close()
	}
}

func testLog(t *testing.T, f *fixture) {
	f.running(t, "logging", true, func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "example.test/side:1"})
	})
	pods := f.CoreV1().Pods(ns)
	tail, since := int64(5), int64(60)
	got, err := pods.GetLogs("logging", &v1.PodLogOptions{Container: "side", Previous: true, Timestamps: true, TailLines: &tail,
		SinceSeconds: &since}).DoRaw(bg())
	if want := "/containerLogs/default/logging/side?previous=true&sinceSeconds=60&tailLines=5&timestamps=true\n"; err != nil ||
		string(got) != want {
		t.Errorf("log gave %q, %v; want %q", got, err, want)
	}
	for _, c := range []struct {
		o    v1.PodLogOptions
		code int32
		text string
	}{
		{v1.PodLogOptions{}, 400, "a container name must be specified for pod logging, choose one of: [main side]"},
		{v1.PodLogOptions{Container: "no"}, 400, "container no is not valid for pod logging"},
		{v1.PodLogOptions{Container: "side", TailLines: new(int64(-1))}, 422, ""},
		{v1.PodLogOptions{Container: "side", SinceSeconds: &since, SinceTime: &metav1.Time{Time: time.Unix(1, 0)}}, 422, ""},
	} {
		err := pods.GetLogs("logging", &c.o).Do(bg()).Error()
		if s := status(t, err); s.Code != c.code || c.text != "" && s.Message != c.text {
			t.Errorf("log with %+v gave %d %s, want %d %s", c.o, s.Code, s.Message, c.code, c.text)
		}
	}
	f.create(t, newPod("silent"))
	if got, err := pods.GetLogs("silent", &v1.PodLogOptions{}).DoRaw(bg()); err != nil || len(got) > 0 {
		t.Errorf("log of a pod without node gave %q, %v", got, err)
	}
	if _, err := pods.GetLogs("absent", &v1.PodLogOptions{}).DoRaw(bg()); !apierrors.IsNotFound(err) {
		t.Errorf("log of a missing pod gave %v", err)
	}
}

func testLogFollow(t *testing.T, f *fixture) {
	f.running(t, "following", true)
	stream, err := f.CoreV1().Pods(ns).GetLogs("following", &v1.PodLogOptions{Follow: true}).Stream(bg())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	for _, want := range []string{"one", "two"} {
		f.agent.follow <- want // the next line is only written once this one has been read
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("followed %q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
}

// sessions runs one exec or attach over each protocol a client may speak.
func sessions(t *testing.T, f *fixture, sub, want string, query url.Values) {
	u := f.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name("sessions").SubResource(sub).URL()
	u.RawQuery = query.Encode()
	overSPDY, err := remotecommand.NewSPDYExecutor(f.config, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	overWebSocket, err := remotecommand.NewWebSocketExecutor(f.config, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]remotecommand.Executor{"spdy": overSPDY, "websocket": overWebSocket} {
		var out bytes.Buffer
		err := e.StreamWithContext(bg(), remotecommand.StreamOptions{Stdin: strings.NewReader("typed"), Stdout: &out})
		if err != nil || out.String() != want {
			t.Errorf("%s over %s gave %q, %v; want %q", sub, name, out.String(), err, want)
		}
	}
}

func testExec(t *testing.T, f *fixture) {
	f.running(t, "sessions", true)
	sessions(t, f, "exec", "/exec/default/sessions/main sh,-c|typed",
		url.Values{"command": {"sh", "-c"}, "stdin": {"true"}, "stdout": {"true"}})
	f.create(t, newPod("nowhere"))
	err := f.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("nowhere").SubResource("exec").Param("stdout",
		"true").Do(bg()).Error()
	if s := status(t, err); s.Code != 400 || s.Message != "pod nowhere does not have a host assigned" {
		t.Errorf("exec without a node gave %d %s", s.Code, s.Message)
	}
	if err := f.CoreV1().Pods(ns).Delete(bg(), "sessions", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
}

func testAttach(t *testing.T, f *fixture) {
	f.running(t, "attached", true)
	u := f.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("attached").SubResource("attach").
		Param("stdin", "true").Param("stdout", "true").Param("container", "main").URL()
	e, err := remotecommand.NewSPDYExecutor(f.config, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = e.StreamWithContext(bg(), remotecommand.StreamOptions{Stdin: strings.NewReader("x"), Stdout: &out})
	if err != nil || out.String() != "/attach/default/attached/main |x" {
		t.Errorf("attach gave %q, %v", out.String(), err)
	}
}

func testPortForward(t *testing.T, f *fixture) {
	f.running(t, "forwarded", true)
	u := f.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("forwarded").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, "POST", u)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, f.config)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{"spdy": overSPDY, "websocket": overWebSocket} {
		stop, ready := make(chan struct{}), make(chan struct{})
		fw, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard,
			io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- fw.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("forwarding over %s: %v", name, err)
		}
		ports, err := fw.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "ping")
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "8080:ping" {
			t.Errorf("forwarding over %s gave %q, %v", name, got, err)
		}
		conn.Close()
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("forwarding over %s ended with %v", name, err)
		}
	}
}

func testProxy(t *testing.T, f *fixture) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s?%s %s", r.Method, r.URL.Path, r.URL.RawQuery, body)
	}))
	t.Cleanup(web.Close)
	u, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := f.running(t, "web", true)
	f.setStatus(t, p, func(s *v1.PodStatus) { s.PodIP, s.PodIPs = u.Hostname(), nil })
	got, err := f.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("http:web:"+u.Port()).SubResource("proxy").
		Suffix("a/b").Param("q", "1").Body([]byte("hello")).DoRaw(bg())
	if err != nil || string(got) != "POST /a/b?q=1 hello" {
		t.Errorf("proxy gave %q, %v", got, err)
	}
	// Every method is passed on. Without a slash at the end, GET and HEAD are
	// led to the address with one.
	client, err := rest.HTTPClientFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base := f.config.Host + "/api/v1/namespaces/" + ns + "/pods/http:web:" + u.Port() + "/proxy"
	for _, method := range []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"} {
		for path, want := range map[string]string{"/some/path?method=" + method: "/some/path", "?method=" + method: "/"} {
			req, err := http.NewRequest(method, base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			switch {
			case want == "/" && (method == "GET" || method == "HEAD"):
				if resp.StatusCode != 301 || !strings.HasSuffix(resp.Header.Get("Location"), "/proxy/?method="+method) {
					t.Errorf("%s %s: %d to %q", method, path, resp.StatusCode, resp.Header.Get("Location"))
				}
			case resp.StatusCode != 200 || method != "HEAD" && string(body) != fmt.Sprintf("%s %s?method=%s ", method, want, method):
				t.Errorf("%s %s: %d %q", method, path, resp.StatusCode, body)
			}
		}
	}
	f.setStatus(t, f.get(t, "web"), func(s *v1.PodStatus) { s.PodIP, s.PodIPs = "169.254.169.254", nil })
	if _, err := f.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name("web").SubResource("proxy").DoRaw(bg()); status(t,
		err).Code != 400 {
		t.Errorf("proxy to a link-local address gave %v, want 400", err)
	}
}

func testNodeProxy(t *testing.T, f *fixture) {
	got, err := f.CoreV1().RESTClient().Get().Resource("nodes").Name("here").SubResource("proxy").Suffix("stats/summary").DoRaw(bg())
	if err != nil || string(got) != "GET /stats/summary" {
		t.Errorf("proxy to the agent gave %q, %v", got, err)
	}
}
