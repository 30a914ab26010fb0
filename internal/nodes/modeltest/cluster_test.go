// Package modeltest holds the model-based tests of the node controllers' cores:
// it tries them on random histories of the cluster model in virtual time:
// crashes and restarts, delays, duplicates, reordering, broken watches,
// partitions and clock skew. It has tests only.
package modeltest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/podutil"
)

// The rules all histories run under, known to the invariant checker on its own
// account.
const (
	grace        = 50 * time.Second
	startupGrace = 60 * time.Second
	rate         = 0.1
	renewEvery   = 10 * time.Second
	leaseLasts   = 40 * time.Second
)

// cluster is a cluster in virtual time: an API, nodes that live and die, and at
// most one controller.
type cluster struct {
	clustermodel.Clock
	seed uint64
	r    *rand.Rand
	bug  string // a mistake to make on purpose
	ref  invariantChecker

	rv      uint64
	nodes   map[string]*v1.Node
	leases  map[string]clustermodel.Lease
	pods    map[string]*v1.Pod
	hosts   []*host
	apiDown bool
	slow    bool // writes and watches take seconds
	cut     map[stream]bool
	ctl     *controller
	calm    bool // no more faults
	// notes says whether the API notes when it took a lease, by a clock that is
	// apiSkew ahead.
	notes   bool
	apiSkew time.Duration
	apiUp   time.Time // since when the API answers
}

// stream is one watch.
type stream int

const (
	nodeStream stream = iota
	leaseStream
	podStream
)

// host is a node's own side.
type host struct {
	name string
	clustermodel.Host
	posted  time.Time
	phase   time.Duration
	reborns int
	talked  time.Time // when the API last heard it
}

func (m *host) talks(w *cluster) bool { return m.Reaches(w.Now) && !w.apiDown }

// run lets time pass, until a rule is broken.
func (w *cluster) run(d time.Duration) { w.Run(d, func() bool { return w.ref.fault == "" }) }

func newCluster(seed uint64, bug string) *cluster {
	w := &cluster{seed: seed, r: rand.New(rand.NewPCG(seed, 7)), bug: bug, rv: 1,
		nodes: map[string]*v1.Node{}, leases: map[string]clustermodel.Lease{}, pods: map[string]*v1.Pod{}, cut: map[stream]bool{}}
	w.ref, w.apiUp = newInvariantChecker(w), w.Time()
	w.notes, w.apiSkew = seed%4 != 0, time.Duration(seed%7)*time.Hour-3*time.Hour
	zones := 1 + w.r.IntN(3)
	for i := range 2 + w.r.IntN(5) {
		skew := time.Duration(w.r.IntN(7200)-3600) * time.Second
		m := &host{name: fmt.Sprintf("n%d", i), Host: clustermodel.Host{Skew: skew}, phase: w.upTo(renewEvery)}
		w.hosts = append(w.hosts, m)
		w.register(m, fmt.Sprintf("z%d", i%zones))
		for p := range w.r.IntN(3) {
			w.addPod(m.name, p)
		}
		w.After(m.phase, func() { w.tick(m) })
	}
	w.start()
	return w
}

func (w *cluster) register(m *host, zone string) {
	w.rv++
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, UID: types.UID(fmt.Sprintf("%s-%d", m.name, m.reborns)),
		ResourceVersion:   w.version(),
		CreationTimestamp: metav1.NewTime(w.Time()), Labels: map[string]string{v1.LabelTopologyZone: zone}}}
	w.nodes[m.name] = n
	w.post(m)
}

func (w *cluster) version() string { return strconv.FormatUint(w.rv, 10) }

func (w *cluster) addPod(node string, i int) {
	tolerations := []v1.Toleration{}
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		var seconds *int64
		if w.r.IntN(4) > 0 {
			s := int64(w.r.IntN(200))
			seconds = &s
		}
		tolerations = append(tolerations, clustermodel.Toleration(key, seconds))
	}
	name := fmt.Sprintf("%s-p%d", node, i)
	w.rv++
	w.pods[name] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: w.version(),
		CreationTimestamp: metav1.NewTime(w.Time())},
		Spec:   v1.PodSpec{NodeName: node, Tolerations: tolerations},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}}
	w.tellPod(name)
}

// tick is a node agent's round: the lease, and the status if it has to change.
func (w *cluster) tick(m *host) {
	w.After(renewEvery, func() { w.tick(m) })
	if !m.talks(w) {
		return
	}
	n := w.nodes[m.name]
	if n == nil {
		w.register(m, "z0")
		n = w.nodes[m.name]
	}
	w.rv++
	m.talked = w.Time()
	l := clustermodel.Lease{Renewed: w.Time().Add(m.Skew), Version: w.rv, Lasts: leaseLasts}
	if w.notes {
		l.Written = w.Time().Add(w.apiSkew)
	}
	w.leases[m.name] = l
	w.tellLease(m.name)
	want := v1.ConditionTrue
	if m.NotReady > 0 {
		want = v1.ConditionFalse
	}
	if clustermodel.NodeReady(n) != want || w.Time().Sub(m.posted) > 5*time.Minute {
		w.post(m)
	}
	if want == v1.ConditionTrue {
		w.eachPod(m.name, func(p *v1.Pod) {
			if !podutil.Ready(p) {
				w.setPodReady(p.Name, v1.ConditionTrue)
			}
		})
	}
}

// post is a node's own status.
func (w *cluster) post(m *host) {
	m.posted = w.Time()
	status := v1.ConditionTrue
	if m.NotReady > 0 {
		status = v1.ConditionFalse
	}
	w.update(m.name, func(n *v1.Node) {
		n.Status.Conditions = clustermodel.Conditions(status, metav1.NewTime(w.Time().Add(m.Skew)))
	})
}

// update writes a node; objects that were handed out never change.
func (w *cluster) update(name string, change func(*v1.Node)) {
	n := w.nodes[name].DeepCopy()
	change(n)
	w.rv++
	n.ResourceVersion = w.version()
	w.nodes[name] = n
	w.ref.wrote(n)
	w.tellNode(name)
}

func (w *cluster) setPodReady(name string, s v1.ConditionStatus) {
	p := w.pods[name].DeepCopy()
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].Status = s
	}
	w.rv++
	p.ResourceVersion = w.version()
	w.pods[name] = p
	w.tellPod(name)
}

func (w *cluster) eachPod(node string, f func(*v1.Pod)) {
	for i := range 4 {
		if p := w.pods[fmt.Sprintf("%s-p%d", node, i)]; p != nil {
			f(p)
		}
	}
}

func (w *cluster) upTo(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d))) }

// latency is how long a write or a watch event takes.
func (w *cluster) latency() time.Duration {
	if w.slow {
		return w.upTo(2 * time.Second)
	}
	return w.upTo(20 * time.Millisecond)
}

// fault makes one thing go wrong, or right again.
func (w *cluster) fault() {
	defer w.ref.disturbed()
	w.ref.check()
	m := w.hosts[w.r.IntN(len(w.hosts))]
	switch w.r.IntN(12) {
	case 0, 1:
		clustermodel.Toggle(&m.Off)
	case 2:
		clustermodel.Toggle(&m.Cut)
	case 3:
		clustermodel.Toggle(&m.NotReady)
	case 4:
		w.apiDown, w.apiUp = !w.apiDown, w.Time()
		if !w.apiDown {
			w.relistAll()
		} else if c := w.ctl; c != nil && w.r.IntN(2) == 0 {
			w.After(w.latency(), func() { // its watch breaks and cannot be begun again
				if w.ctl == c && w.apiDown {
					c.m.Observe(w.Time(), health.Event{Kind: health.Unanswered})
					c.advance()
				}
			})
		}
	case 5:
		w.slow = !w.slow
	case 6:
		s := stream(w.r.IntN(3))
		w.cut[s] = !w.cut[s]
		if !w.cut[s] {
			w.relist(s)
		}
	case 7, 8:
		w.crash()
	case 9:
		m.Skew += time.Duration(w.r.IntN(600)-300) * time.Second
	case 10:
		w.disturb(m)
	case 11: // a whole zone
		zone := w.r.IntN(3)
		alive := w.r.IntN(2) == 0
		for i, m := range w.hosts {
			if i%3 == zone || len(w.hosts) < 4 {
				clustermodel.Set(&m.Off, !alive)
			}
		}
	}
}

// disturb is what people do: delete nodes, take taints off, edit tolerations.
func (w *cluster) disturb(m *host) {
	if w.apiDown || w.nodes[m.name] == nil {
		return
	}
	switch w.r.IntN(3) {
	case 0:
		delete(w.nodes, m.name)
		delete(w.leases, m.name)
		delete(w.ref.unknown, m.name)
		m.reborns++
		w.rv++
		w.tellNode(m.name)
	case 1:
		w.update(m.name, func(n *v1.Node) { n.Spec.Taints = nil })
	case 2:
		w.eachPod(m.name, func(p *v1.Pod) {
			p = p.DeepCopy()
			for i := range p.Spec.Tolerations {
				s := int64(w.r.IntN(200))
				p.Spec.Tolerations[i].TolerationSeconds = &s
			}
			w.rv++
			p.ResourceVersion = w.version()
			w.pods[p.Name] = p
			w.tellPod(p.Name)
		})
	}
}

// heal ends all faults but death.
func (w *cluster) heal() {
	w.ref.disturbed()
	if w.apiDown {
		w.apiUp = w.Time()
	}
	w.calm, w.apiDown, w.slow = true, false, false
	for _, m := range w.hosts {
		m.Cut = 0
	}
	clear(w.cut)
	w.relistAll()
	if w.ctl == nil {
		w.start()
	}
}
