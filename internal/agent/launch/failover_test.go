package launch_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/agent/reach"
	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/store"
)

// takeover is the longest a client may be without an API server.
const takeover = 2 * time.Second

// ledger counts the requests of a client by what they ask for.
type ledger struct {
	http.RoundTripper
	mu    sync.Mutex
	count map[string]int
	story []string
}

func (l *ledger) RoundTrip(req *http.Request) (*http.Response, error) {
	kind := req.Method
	if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/configmaps") {
		kind = "list"
		if query := req.URL.Query(); query.Get("watch") == "true" {
			kind = "watch"
			if query.Get("sendInitialEvents") == "true" {
				kind = "list" // a streamed one
			}
		}
	}
	l.mu.Lock()
	l.count[kind]++
	l.mu.Unlock()
	response, err := l.RoundTripper.RoundTrip(req)
	outcome := fmt.Sprint(err)
	if err == nil {
		outcome = response.Status
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.story = append(l.story, fmt.Sprintf("%s %s: %s", kind, req.URL.RawQuery, outcome))
	return response, err
}

func (l *ledger) of(kind string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[kind]
}

// pair is a client of two API servers that watches config maps and can write
// them.
type pair struct {
	t     *testing.T
	reach *reach.Reach
	calls *ledger
	maps  typedcorev1.ConfigMapInterface
	seen  chan string
}

// newPair connects to base first, and to second when that is away.
func newPair(t *testing.T, base *rest.Config, second *apitest.Env) *pair {
	t.Helper()
	r, err := reach.New(reach.Config{Log: slog.New(slog.DiscardHandler), Base: base,
		Servers: []string{"https://" + second.Server.Address().String()}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.Run(t.Context()) }()
	settings := r.Config()
	p := &pair{t: t, reach: r, calls: &ledger{RoundTripper: settings.Transport, count: map[string]int{}}, seen: make(chan string, 100)}
	settings.Transport = p.calls
	client := kubernetes.NewForConfigOrDie(settings)
	p.maps = client.CoreV1().ConfigMaps("default")
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(
		cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { p.seen <- obj.(*v1.ConfigMap).Name }}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	t.Cleanup(func() {
		close(stop)
		factory.Shutdown()
	})
	factory.WaitForCacheSync(stop)
	return p
}

// write makes a config map within the time that a takeover may last, and waits
// until the watch shows it.
func (p *pair) write(name string) {
	p.t.Helper()
	began := time.Now()
	for {
		_, err := p.maps.Create(p.t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if time.Since(began) > takeover {
			p.t.Fatalf("writing %s: no API server for %v: %v", name, takeover, err)
		}
	}
	for got := range p.seen {
		if got == name {
			return
		}
	}
}

// TestTwoAPIServers ends one of two real API servers under a client: writes go
// on within two seconds, a watch goes on where it was without a new list, and
// when the server comes back nobody returns to it.
func TestTwoAPIServers(t *testing.T) {
	etcd, err := store.Start(t.Context(), store.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	first := apitest.StartEnv(t, apitest.WithEtcd(etcd.Transport().ServerList...))
	second := apitest.StartEnv(t, apitest.Beside(first))

	p := newPair(t, first.Config, second)
	r, calls, write := p.reach, p.calls, p.write
	write("before")
	lists, watches := calls.of("list"), calls.of("watch")
	first.Stop()
	write("after")
	// A server that stops in good order may still take the new watch before it
	// closes; client-go lists once when a watch ends within its first second.
	if got := calls.of("list"); got != lists && (got != lists+1 || calls.of("watch") == watches) {
		t.Errorf("the takeover cost %d lists:\n%s", got-lists, strings.Join(calls.story, "\n"))
	}
	if got := calls.of("watch"); got <= watches {
		t.Errorf("the watch was not resumed: %d before, %d after", watches, got)
	}
	// The first server returns at its old address; what runs stays where it is.
	watches = calls.of("watch")
	again := apitest.StartEnv(t, apitest.Beside(second), apitest.At(first))
	for i := range 20 {
		write(fmt.Sprintf("calm-%d", i))
	}
	if got := calls.of("watch"); got != watches {
		t.Errorf("the return of a server cost %d watches", got-watches)
	}
	if host := r.Current(); host != second.Server.Address().String() {
		t.Errorf("in use is %s, want %s; %s came back", host, second.Server.Address(), again.Server.Address())
	}
}

// TestAPIServerKilled cuts a client off from one of two API servers as a kill
// or a dead machine does: no good-bye, every connection reset. The watch goes on
// at the other one, without any list.
func TestAPIServerKilled(t *testing.T) {
	etcd, err := store.Start(t.Context(), store.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	first := apitest.StartEnv(t, apitest.WithEtcd(etcd.Transport().ServerList...))
	second := apitest.StartEnv(t, apitest.Beside(first))
	line := newLine(t, first.Server.Address().String())
	base := rest.CopyConfig(first.Config)
	base.Host = "https://" + line.listener.Addr().String()
	p := newPair(t, base, second)
	p.write("before")
	lists, watches := p.calls.of("list"), p.calls.of("watch")
	if line.cut() == 0 {
		t.Fatal("nothing was connected to the first server: the test tests nothing")
	}
	p.write("after")
	if got := p.calls.of("list"); got != lists {
		t.Errorf("the takeover cost %d lists:\n%s", got-lists, strings.Join(p.calls.story, "\n"))
	}
	if got := p.calls.of("watch"); got <= watches {
		t.Errorf("the watch was not resumed: %d before, %d after", watches, got)
	}
	if host := p.reach.Current(); host != second.Server.Address().String() {
		t.Errorf("in use is %s, want %s", host, second.Server.Address())
	}
}

// line passes connections on until it is cut.
type line struct {
	listener net.Listener
	mu       sync.Mutex
	dead     bool
	open     []*net.TCPConn
	done     sync.WaitGroup
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{listener: listener}
	l.done.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			l.mu.Lock()
			if l.dead {
				l.mu.Unlock()
				near.Close()
				far.Close()
				return
			}
			l.open = append(l.open, near.(*net.TCPConn), far.(*net.TCPConn))
			l.mu.Unlock()
			l.done.Go(func() { _, _ = io.Copy(near, far) })
			l.done.Go(func() { _, _ = io.Copy(far, near) })
		}
	})
	t.Cleanup(func() { l.cut() })
	return l
}

// cut resets every connection and takes no more; it returns how many there
// were.
func (l *line) cut() int {
	l.listener.Close()
	l.mu.Lock()
	n := len(l.open) / 2
	l.dead = true
	for _, c := range l.open {
		_ = c.SetLinger(0)
		c.Close()
	}
	l.open = nil
	l.mu.Unlock()
	l.done.Wait()
	return n
}
