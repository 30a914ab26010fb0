package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	olddialer "k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	streamspdy "k8s.io/streaming/pkg/httpstream/spdy"
)

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
