package faulttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/nodes/eviction"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/nodes/ipam"
	"github.com/berth-dev/berth/internal/nodes/podgc"
	"github.com/berth-dev/berth/internal/podutil"
)

// The rules all schedules run under.
const (
	grace      = 50 * time.Second
	rate       = 0.1
	renewEvery = 10 * time.Second
	half       = 20 * time.Second // of a lease
)

// cluster is a cluster in virtual time: an API, hosts, people, and at most one
// instance of the controllers.
type cluster struct {
	store *store
	r     *rand.Rand // of the faults; the store has its own
	ref   invariantChecker
	bug   mistake
	ctx   context.Context
	wg    sync.WaitGroup
	trace trace
	hosts []*host

	// the store's lock guards what follows
	instance *instance
	calm     bool // no more faults
}

// trace is what happened, told when a rule was broken: goroutines of a bubble
// run in no fixed order, so a seed alone need not bring it again.
type trace struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *trace) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(line)
}

func (t *trace) note(format string, args ...any) {
	fmt.Fprintf(t, "%s %s\n", time.Now().Format("time=2006-01-02T15:04:05.000Z"), fmt.Sprintf(format, args...))
}

// host is a node's own side; the store's lock guards it.
type host struct {
	name, zone string
	clustermodel.Host
	reborns        int
	talked, before time.Time // when the API heard it last, and the time before
	gone, wasGone  bool      // dead or cut off at some moment since then
}

// noted keeps in mind that it cannot talk; the store is locked.
func (m *host) noted() { m.gone = m.gone || !m.Alive() || m.Cut > 0 }

// instance is one run of the controllers, from start to crash.
type instance struct {
	w     *cluster
	began time.Time
	ctx   context.Context
	crash context.CancelFunc
	most  bool // of the nodes talked when it began
	// the store's lock guards the calls since a moment
	since time.Time
	calls int
}

// runInstances runs the controllers again and again until the test ends.
func (w *cluster) runInstances() {
	for w.ctx.Err() == nil {
		l := &instance{w: w, began: time.Now()}
		l.ctx, l.crash = context.WithCancel(w.ctx)
		w.store.mu.Lock()
		w.instance = l
		l.most = w.mostTalk()
		w.store.mu.Unlock()
		w.trace.note("the controllers start")
		l.run()
		l.crash()
		w.store.mu.Lock()
		w.instance = nil
		pause := time.Duration(w.store.r.Int64N(int64(20 * time.Second)))
		w.store.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
		}
	}
}

// run is the controllers side by side, as internal/nodes starts them.
func (l *instance) run() {
	api := client{instance: l}
	shared := informers.NewSharedInformerFactory(api, 0)
	log := slog.New(slog.NewTextHandler(&l.w.trace, nil))
	settings := health.Defaults()
	settings.Grace, settings.EvictionRate = grace, rate
	switch l.w.bug.name {
	case "fast":
		settings.EvictionRate *= 1.1
	case "late":
		settings.Grace += time.Second
	case "impatient":
		settings.Grace -= time.Second
	case "go on":
		settings.LargeZone, settings.SecondaryEvictionRate = 1, rate
	}
	shells := []func() error{
		func() error {
			return health.Run(l.ctx, health.Config{Client: api, Informers: shared, Log: log, Settings: settings})
		},
		func() error { return eviction.Run(l.ctx, controller.Env{Client: api, Informers: shared, Log: log}) },
		func() error {
			return podgc.Run(l.ctx, controller.Env{Client: api, Informers: shared, Log: log}, 0)
		},
		func() error {
			return ipam.Run(l.ctx, controller.Env{Client: api, Informers: shared, Log: log},
				ipam.Config{Ranges: []ipam.Range{{Cluster: netip.MustParsePrefix("10.0.0.0/24"), NodeBits: 28}}})
		},
	}
	var wg sync.WaitGroup
	for _, run := range shells {
		wg.Go(func() {
			if err := run(); l.ctx.Err() == nil || !errors.Is(err, context.Canceled) && err != nil {
				l.w.ref.broken("end", "a controller ended by itself: %v", err)
			}
		})
	}
	wg.Wait()
	shared.Shutdown()
}

func newCluster(ctx context.Context, seed uint64, bug string) *cluster {
	w := &cluster{store: newStore(rand.New(rand.NewPCG(seed, 1))), r: rand.New(rand.NewPCG(seed, 2)), ctx: ctx}
	w.bug = mistake{name: bug, w: w, expelled: map[string]object{}, dropped: map[string]bool{}}
	w.ref = newInvariantChecker(w)
	w.store.changed = w.ref.wrote
	zones := 1 + w.r.IntN(2)
	for i := range 4 + w.r.IntN(4) {
		m := &host{name: fmt.Sprintf("n%d", i), zone: fmt.Sprintf("z%d", i%zones),
			Host: clustermodel.Host{Skew: time.Duration(w.r.IntN(7200)-3600) * time.Second}}
		w.hosts = append(w.hosts, m)
		w.store.mu.Lock()
		w.tick(m)
		w.store.mu.Unlock()
		for p := range 1 + w.r.IntN(2) {
			w.addPod(m.name, p)
		}
		first := time.Duration(w.r.Int64N(int64(renewEvery)))
		w.wg.Go(func() { w.runAgent(m, first) })
	}
	w.wg.Go(w.runInstances)
	w.wg.Go(w.ref.watch)
	return w
}

func (w *cluster) addPod(node string, i int) {
	seconds := int64(w.r.IntN(150))
	name := fmt.Sprintf("%s-%d", node, i)
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.put(pods, name, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{NodeName: node, Tolerations: []v1.Toleration{
			{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds},
			{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}, nil)
}

// runAgent renews a host's lease until the test ends.
func (w *cluster) runAgent(m *host, wait time.Duration) {
	for {
		select {
		case <-time.After(wait):
		case <-w.ctx.Done():
			return
		}
		wait = renewEvery
		w.store.mu.Lock()
		if m.Alive() && m.Cut == 0 && !w.store.down {
			w.tick(m)
		}
		w.store.mu.Unlock()
	}
}

// tick is one round of an agent; the store is locked.
func (w *cluster) tick(m *host) {
	s, now := w.store, time.Now()
	want := v1.ConditionTrue
	if m.NotReady > 0 {
		want = v1.ConditionFalse
	}
	n, _ := s.objects[nodes][m.name].(*v1.Node)
	if n == nil {
		m.reborns++
		n = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, UID: types.UID(fmt.Sprintf("%s.%d", m.name, m.reborns)),
			CreationTimestamp: metav1.Now(),
			Labels:            map[string]string{v1.LabelTopologyZone: m.zone}}}
	}
	m.talked, m.before = now, m.talked
	m.gone, m.wasGone = false, m.gone
	renewed, lasts := metav1.NewMicroTime(now.Add(m.Skew)), int32(40)
	written := metav1.NewTime(now)
	if clustermodel.NodeReady(n) != want {
		n = n.DeepCopy()
		n.Status.Conditions = clustermodel.Conditions(want, clustermodel.Seconds(now.Add(m.Skew)))
		s.put(nodes, m.name, n, nil)
	}
	s.put(leases, m.name, &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: m.name, ManagedFields: []metav1.ManagedFieldsEntry{
			{Time: &written, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:renewTime":{}}}`)}}}},
		Spec: coordination.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: &lasts},
	}, nil)
	for _, name := range sortedKeys(s.objects[pods]) {
		p := s.objects[pods][name].(*v1.Pod)
		switch {
		case nodeOfPod(name) != m.name:
		case p.DeletionTimestamp != nil:
			s.put(pods, name, nil, nil)
		case m.NotReady == 0 && !podutil.Ready(p):
			p = p.DeepCopy()
			for i := range p.Status.Conditions {
				if c := &p.Status.Conditions[i]; c.Type == v1.PodReady {
					c.Status = v1.ConditionTrue
				}
			}
			s.put(pods, name, p, nil)
		}
	}
}

const theirs = "people/own"

// fault makes one thing go wrong, or right again.
func (w *cluster) fault() {
	s, m := w.store, w.hosts[w.r.IntN(len(w.hosts))]
	what, coin := w.r.IntN(12), w.r.IntN(2) == 0
	streams := []kind{nodes, pods, leases}[w.r.IntN(3)]
	s.mu.Lock()
	if what == 4 || what == 5 || what >= 8 && what <= 10 {
		w.ref.disturbed()
	}
	l, down := w.instance, s.down
	w.trace.note("fault %d: %s, coin %v, %s", what, m.name, coin, streams)
	switch what {
	case 0, 1:
		clustermodel.Toggle(&m.Off)
	case 2:
		clustermodel.Toggle(&m.Cut)
	case 3:
		clustermodel.Toggle(&m.NotReady)
	case 4:
		s.slow = !s.slow
	case 5:
		s.lossy = !s.lossy
	case 6: // a zone
		for _, other := range w.hosts {
			if other.zone == m.zone {
				clustermodel.Set(&other.Off, !coin)
				other.noted()
			}
		}
	case 7: // the node is deleted
		if !down && s.objects[nodes][m.name] != nil {
			s.put(nodes, m.name, nil, nil)
			if s.objects[leases][m.name] != nil {
				s.put(leases, m.name, nil, nil)
			}
		}
	}
	m.noted()
	s.mu.Unlock()
	switch what {
	case 8:
		if l != nil {
			l.crash()
		}
	case 9:
		s.setDown(!down)
	case 10:
		if coin {
			s.cut(streams)
		} else {
			s.mend()
		}
	case 11:
		s.edit(nodes, m.name, func(o object) { o.(*v1.Node).Spec.Taints = people(o.(*v1.Node), coin) })
	}
}

// people write taints of their own, or take all others' off.
func people(n *v1.Node, add bool) []v1.Taint {
	if !add {
		return nil
	}
	for _, t := range n.Spec.Taints {
		if t.Key == theirs {
			return n.Spec.Taints
		}
	}
	return append(append([]v1.Taint(nil), n.Spec.Taints...), v1.Taint{Key: theirs, Effect: v1.TaintEffectPreferNoSchedule})
}

// heal ends all faults but death.
func (w *cluster) heal() {
	s := w.store
	s.setDown(false)
	s.mend()
	s.mu.Lock()
	defer s.mu.Unlock()
	w.calm, s.slow, s.lossy = true, false, false
	for _, m := range w.hosts {
		m.Cut = 0
	}
	w.ref.disturbed()
}

// play runs one schedule inside a bubble and returns the rule it broke and what
// came before.
func play(seed uint64, bug string) (fault, trace string) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newCluster(ctx, seed, bug)
	time.Sleep(time.Duration(20+w.r.IntN(40)) * time.Second)
	for range 4 + w.r.IntN(8) {
		w.fault()
		time.Sleep(time.Duration(w.r.Int64N(int64(90 * time.Second))))
		if w.ref.found() != "" {
			break
		}
	}
	if w.ref.found() == "" {
		w.heal()
		time.Sleep(10 * time.Minute)
		w.ref.verdict()
	}
	cancel()
	w.wg.Wait()
	synctest.Wait()
	return w.ref.found(), w.trace.text.String()
}
