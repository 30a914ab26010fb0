package launch_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
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

	r, err := reach.New(reach.Config{Log: slog.New(slog.DiscardHandler), Base: first.Config, Servers: []string{"https://" + second.Server.Address().String()}})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- r.Run(t.Context()) }()
	settings := r.Config()
	calls := &ledger{RoundTripper: settings.Transport, count: map[string]int{}}
	settings.Transport = calls
	client := kubernetes.NewForConfigOrDie(settings)
	maps := client.CoreV1().ConfigMaps("default")

	seen := make(chan string, 100)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { seen <- obj.(*v1.ConfigMap).Name }}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	defer factory.Shutdown()
	defer close(stop)
	factory.WaitForCacheSync(stop)

	write := func(name string) {
		t.Helper()
		began := time.Now()
		for {
			_, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err == nil {
				break
			}
			if time.Since(began) > takeover {
				t.Fatalf("writing %s: no API server for %v: %v", name, takeover, err)
			}
		}
		for got := range seen {
			if got == name {
				return
			}
		}
	}
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
