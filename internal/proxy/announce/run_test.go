package announce

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

const condition = "test.berth.dev/Pool"

// said is what a node's host answers for.
type said struct {
	mu    sync.Mutex
	addrs []netip.Addr
	until time.Duration
	node  string
	news  chan string // "node +" when it begins, "node -" when it ends
}

func (s *said) set(addrs []netip.Addr, until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if had, has := len(s.addrs) > 0, len(addrs) > 0; had != has {
		s.news <- s.node + map[bool]string{true: " +", false: " -"}[has]
	}
	s.addrs, s.until = addrs, until
}

func (s *said) answers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.addrs) > 0 && boot() < s.until
}

func (*said) run(ctx context.Context) { <-ctx.Done() }
func (*said) look()                   {}

// claims counts requests for claims.
type claims struct {
	rt  http.RoundTripper
	all *atomic.Int64
}

func (c claims) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/namespaces/"+Namespace+"/") {
		c.all.Add(1)
	}
	return c.rt.RoundTrip(r)
}

// pair is two announcers on one API server.
type pair struct {
	t        *testing.T
	cfg      *rest.Config
	news     chan string
	asked    atomic.Int64 // requests for claims
	speeches map[string]*said
	stops    map[string]func()
}

// start starts the announcer of a node.
func (p *pair) start(name string) {
	own := rest.CopyConfig(p.cfg)
	own.Wrap(func(rt http.RoundTripper) http.RoundTripper { return claims{rt, &p.asked} })
	c, err := kubernetes.NewForConfig(own)
	if err != nil {
		p.t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(c, 0)
	s := &said{node: name, news: p.news}
	p.speeches[name] = s
	life, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cfg := Config{NodeName: name, Client: c, Informers: factory, Condition: condition, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- run(life, cfg, s) }()
	p.stops[name] = sync.OnceFunc(func() {
		end()
		if err := <-done; err != nil {
			p.t.Errorf("%s: %v", name, err)
		}
		factory.Shutdown()
	})
	p.t.Cleanup(p.stops[name])
}

// next is the node of the next news, which must be one of those.
func (p *pair) next(want ...string) string {
	p.t.Helper()
	select {
	case got := <-p.news:
		if !slices.Contains(want, got) {
			p.t.Fatalf("%s, want one of %v", got, want)
		}
		return strings.Fields(got)[0]
	case <-time.After(time.Minute):
		p.t.Fatalf("nothing happens, want one of %v", want)
	}
	return ""
}

// TestHandOver runs two nodes on a real API server: one answers, and when it
// stops the other one does; a node that goes without a word is followed too, and
// where no Service has an address of a pool nobody asks for claims.
func TestHandOver(t *testing.T) {
	cfg := apitest.Start(t)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{})
	ok(err)
	p := &pair{t: t, cfg: cfg, news: make(chan string, 100), speeches: map[string]*said{}, stops: map[string]func(){}}
	for _, name := range []string{"a", "b"} {
		n, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		ok(err)
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
		ok(err)
		p.start(name)
	}
	svc, err := client.CoreV1().Services("default").Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	ok(err)
	// Another class of balancer gives this one an address: no business of ours.
	svc.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	svc, err = client.CoreV1().Services("default").UpdateStatus(ctx, svc, metav1.UpdateOptions{})
	ok(err)
	if n := p.asked.Load(); n != 0 {
		t.Errorf("%d requests for claims without an address of a pool", n)
	}
	began := time.Now()
	svc.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Allocated",
		LastTransitionTime: metav1.Now()}}
	_, err = client.CoreV1().Services("default").UpdateStatus(ctx, svc, metav1.UpdateOptions{})
	ok(err)
	first := p.next("a +", "b +")
	t.Logf("announced %s after the address was given", time.Since(began))
	other := map[string]string{"a": "b", "b": "a"}[first]
	if !p.speeches[first].answers() || p.speeches[other].answers() {
		t.Error("not one node answers")
	}

	began = time.Now()
	p.stops[first]()
	p.next(first + " -")
	p.next(other + " +")
	t.Logf("moved %s after the stop began", time.Since(began))

	// What is left of a node that is lost: a session that nobody renews.
	p.start(first)
	lease, err := client.CoordinationV1().Leases(Namespace).Get(ctx, recordName(netip.MustParseAddr("192.0.2.1")), metav1.GetOptions{})
	ok(err)
	gone := "gone"
	session, err := client.CoordinationV1().Leases(Namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: sessionName(gone)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &gone, LeaseTransitions: new(int32)}}, metav1.CreateOptions{})
	ok(err)
	lease.Spec.HolderIdentity, lease.Annotations[sessionKey] = &gone, string(session.UID)+"/0"
	began = time.Now()
	_, err = client.CoordinationV1().Leases(Namespace).Update(ctx, lease, metav1.UpdateOptions{})
	ok(err)
	p.next(other + " -")
	first = p.next("a +", "b +")
	t.Logf("moved %s after the last sign of a lost node", time.Since(began))

	// Without the Service nobody answers, and the session ends.
	ok(client.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}))
	p.next(first + " -")
}
