package reach

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is an API server that can stop answering.
type backend struct {
	*httptest.Server
	name  string
	stuck atomic.Pointer[chan struct{}]
	posts atomic.Int32
}

func newBackend(t *testing.T, name string) *backend {
	t.Helper()
	b := &backend{name: name}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if stuck := b.stuck.Load(); stuck != nil {
			select {
			case <-*stuck:
			case <-req.Context().Done():
			}
			return
		}
		switch {
		case req.Method == http.MethodPost:
			b.posts.Add(1)
			io.Copy(w, req.Body)
		case strings.HasSuffix(req.URL.Path, "/watch"):
			fmt.Fprintln(w, name)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		default:
			fmt.Fprint(w, name)
		}
	}))
	t.Cleanup(func() {
		b.wake()
		b.CloseClientConnections()
		b.Close()
	})
	return b
}

func (b *backend) hang() { ch := make(chan struct{}); b.stuck.Store(&ch) }

func (b *backend) wake() {
	if stuck := b.stuck.Swap(nil); stuck != nil {
		close(*stuck)
	}
}

func newReach(t *testing.T, first *backend, others ...*backend) (*Reach, *http.Client) {
	t.Helper()
	cfg := Config{Log: slog.New(slog.DiscardHandler), Base: &rest.Config{Host: first.URL}}
	for _, other := range others {
		cfg.Servers = append(cfg.Servers, other.URL)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.CloseIdleConnections()
	})
	return r, &http.Client{Transport: r}
}

func get(t *testing.T, client *http.Client, path string) string {
	t.Helper()
	response, err := client.Get("http://ignored" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestDeadServerIsReplacedAtOnce(t *testing.T) {
	a, b := newBackend(t, "a"), newBackend(t, "b")
	_, client := newReach(t, a, b)
	if got := get(t, client, "/x"); got != "a" {
		t.Fatalf("the first answer is from %s", got)
	}
	a.CloseClientConnections()
	a.Close()
	if got := get(t, client, "/x"); got != "b" {
		t.Errorf("the answer is from %s", got)
	}
	response, err := client.Post("http://ignored/x", "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "hello" || b.posts.Load() != 1 {
		t.Errorf("post: %q, sent %d times", body, b.posts.Load())
	}
}

// TestHungServerIsReplaced has a watch open on a server that stops answering:
// it must end, so that its owner goes on at the other server.
func TestHungServerIsReplaced(t *testing.T) {
	a, b := newBackend(t, "a"), newBackend(t, "b")
	_, client := newReach(t, a, b)
	response, err := client.Get("http://ignored/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	reader := bufio.NewReader(response.Body)
	if line, _ := reader.ReadString('\n'); line != "a\n" {
		t.Fatalf("the watch is on %q", line)
	}
	a.hang()
	hung := time.Now()
	if _, err := reader.ReadString('\n'); err == nil {
		t.Error("the watch went on")
	}
	if got := get(t, client, "/x"); got != "b" {
		t.Errorf("the answer is from %s", got)
	}
	t.Logf("failover took %v", time.Since(hung))
	a.wake()
	// The first server is back: no one runs to it.
	for range 3 {
		if got := get(t, client, "/x"); got != "b" {
			t.Errorf("the answer is from %s", got)
		}
	}
}

func TestWithAllServersHungTheRequestWaits(t *testing.T) {
	a, b := newBackend(t, "a"), newBackend(t, "b")
	r, client := newReach(t, a, b)
	a.hang()
	b.hang()
	answered := make(chan string, 1)
	go func() {
		response, err := client.Get("http://ignored/x")
		if err == nil {
			response.Body.Close()
		}
		answered <- "done"
	}()
	at, _, _ := r.pick()
	r.replace(t.Context(), at, io.EOF)
	if now, _, _ := r.pick(); now != at {
		t.Error("changed to a server that does not answer either")
	}
	a.wake()
	b.wake()
	<-answered
}

func TestHashKeyIsStableAndEven(t *testing.T) {
	counts := map[int]int{}
	for i := range 300 {
		cfg := Config{Log: slog.New(slog.DiscardHandler), Base: &rest.Config{Host: "https://a:1"}, Servers: []string{"https://b:1",
			"https://c:1"}, HashKey: fmt.Sprint("node-", i)}
		first, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		again, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if first.current != again.current {
			t.Error("one node begins with different servers")
		}
		counts[first.current]++
	}
	for at := range 3 {
		if counts[at] < 50 {
			t.Errorf("server %d is chosen by %d of 300", at, counts[at])
		}
	}
}

func TestBadAddressIsNamed(t *testing.T) {
	if _, err := New(Config{Base: &rest.Config{Host: "https://a"}, Servers: []string{"http://[bad"}}); err == nil ||
		!strings.Contains(err.Error(), "[bad") {
		t.Errorf("got %v", err)
	}
}
