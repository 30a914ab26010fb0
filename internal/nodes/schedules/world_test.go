// Package schedules tries the node controllers' cores on random histories in
// virtual time: crashes and restarts, delays, duplicates, reordering, broken
// watches, partitions and clock skew. It has tests only.
package schedules

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/nodes/health"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// The rules all schedules run under, known to the referee on its own account.
const (
	grace        = 50 * time.Second
	startupGrace = 60 * time.Second
	rate         = 0.1
	beatEvery    = 10 * time.Second
	leaseLasts   = 40 * time.Second
)

// world is a cluster in virtual time: an API, nodes that live and die, and at
// most one controller.
type world struct {
	seed uint64
	r    *rand.Rand
	now  time.Time
	due  agenda
	seq  int
	bug  string // a mistake to make on purpose
	ref  referee

	rv       uint64
	nodes    map[string]*v1.Node
	leases   map[string]lease
	pods     map[string]*v1.Pod
	machines []*machine
	apiDown  bool
	slow     bool // writes and watches take seconds
	cut      map[stream]bool
	ctl      *controller
	calm     bool // no more faults
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

type lease struct {
	renewed, written time.Time // by the node's clock, by the API's
	version          uint64
}

// machine is a node's own side.
type machine struct {
	name    string
	alive   bool
	broken  bool // says that it is not ready
	apart   bool // cut off from the API
	skew    time.Duration
	posted  time.Time
	phase   time.Duration
	reborns int
	talked  time.Time // when the API last heard it
}

func (m *machine) talks(w *world) bool { return m.alive && !m.apart && !w.apiDown }

// appointment is something that happens later.
type appointment struct {
	at  time.Time
	seq int
	do  func()
}

type agenda []appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	if a[i].at.Equal(a[j].at) {
		return a[i].seq < a[j].seq
	}
	return a[i].at.Before(a[j].at)
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(appointment)) }
func (a *agenda) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	*a = (*a)[:last]
	return x
}

func (w *world) in(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.due, appointment{w.now.Add(d), w.seq, do})
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for w.ref.fault == "" && len(w.due) > 0 && !w.due[0].at.After(end) {
		next := heap.Pop(&w.due).(appointment)
		w.now = next.at
		next.do()
	}
	w.now = end
}

func newWorld(seed uint64, bug string) *world {
	w := &world{seed: seed, r: rand.New(rand.NewPCG(seed, 7)), now: t0, bug: bug, rv: 1,
		nodes: map[string]*v1.Node{}, leases: map[string]lease{}, pods: map[string]*v1.Pod{}, cut: map[stream]bool{}}
	w.ref, w.apiUp = newReferee(w), w.now
	w.notes, w.apiSkew = seed%4 != 0, time.Duration(seed%7)*time.Hour-3*time.Hour
	zones := 1 + w.r.IntN(3)
	for i := range 2 + w.r.IntN(5) {
		m := &machine{name: fmt.Sprintf("n%d", i), alive: true, skew: time.Duration(w.r.IntN(7200)-3600) * time.Second, phase: w.upTo(beatEvery)}
		w.machines = append(w.machines, m)
		w.register(m, fmt.Sprintf("z%d", i%zones))
		for p := range w.r.IntN(3) {
			w.addPod(m.name, p)
		}
		w.in(m.phase, func() { w.tick(m) })
	}
	w.start()
	return w
}

func (w *world) register(m *machine, zone string) {
	w.rv++
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, UID: types.UID(fmt.Sprintf("%s-%d", m.name, m.reborns)), ResourceVersion: w.version(),
		CreationTimestamp: metav1.NewTime(w.now), Labels: map[string]string{v1.LabelTopologyZone: zone}}}
	w.nodes[m.name] = n
	w.post(m)
}

func (w *world) version() string { return strconv.FormatUint(w.rv, 10) }

func (w *world) addPod(node string, i int) {
	tolerations := []v1.Toleration{}
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		t := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
		if w.r.IntN(4) > 0 {
			s := int64(w.r.IntN(200))
			t.TolerationSeconds = &s
		}
		tolerations = append(tolerations, t)
	}
	name := fmt.Sprintf("%s-p%d", node, i)
	w.rv++
	w.pods[name] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: w.version(), CreationTimestamp: metav1.NewTime(w.now)},
		Spec:   v1.PodSpec{NodeName: node, Tolerations: tolerations},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}}
	w.tellPod(name)
}

// tick is a node agent's round: the lease, and the status if it has to change.
func (w *world) tick(m *machine) {
	w.in(beatEvery, func() { w.tick(m) })
	if !m.talks(w) {
		return
	}
	n := w.nodes[m.name]
	if n == nil {
		w.register(m, "z0")
		n = w.nodes[m.name]
	}
	w.rv++
	m.talked = w.now
	w.leases[m.name] = lease{w.now.Add(m.skew), w.now.Add(w.apiSkew), w.rv}
	w.tellLease(m.name)
	want := v1.ConditionTrue
	if m.broken {
		want = v1.ConditionFalse
	}
	if statusOf(n) != want || w.now.Sub(m.posted) > 5*time.Minute {
		w.post(m)
	}
	if want == v1.ConditionTrue {
		w.eachPod(m.name, func(p *v1.Pod) {
			if !podReady(p) {
				w.setPodReady(p.Name, v1.ConditionTrue)
			}
		})
	}
}

// post is a node's own status.
func (w *world) post(m *machine) {
	m.posted = w.now
	status := v1.ConditionTrue
	if m.broken {
		status = v1.ConditionFalse
	}
	w.update(m.name, func(n *v1.Node) {
		beat := metav1.NewTime(w.now.Add(m.skew))
		n.Status.Conditions = nil
		for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: kind, Status: v1.ConditionFalse, LastHeartbeatTime: beat})
		}
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: v1.NodeReady, Status: status, LastHeartbeatTime: beat})
	})
}

// update writes a node; objects that were handed out never change.
func (w *world) update(name string, change func(*v1.Node)) {
	n := w.nodes[name].DeepCopy()
	change(n)
	w.rv++
	n.ResourceVersion = w.version()
	w.nodes[name] = n
	w.ref.wrote(n)
	w.tellNode(name)
}

func (w *world) setPodReady(name string, s v1.ConditionStatus) {
	p := w.pods[name].DeepCopy()
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].Status = s
	}
	w.rv++
	p.ResourceVersion = w.version()
	w.pods[name] = p
	w.tellPod(name)
}

func (w *world) eachPod(node string, f func(*v1.Pod)) {
	for i := range 4 {
		if p := w.pods[fmt.Sprintf("%s-p%d", node, i)]; p != nil {
			f(p)
		}
	}
}

func statusOf(n *v1.Node) v1.ConditionStatus {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == v1.NodeReady {
			return n.Status.Conditions[i].Status
		}
	}
	return ""
}

func podReady(p *v1.Pod) bool {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == v1.PodReady {
			return p.Status.Conditions[i].Status == v1.ConditionTrue
		}
	}
	return false
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d))) }

// latency is how long a write or a watch event takes.
func (w *world) latency() time.Duration {
	if w.slow {
		return w.upTo(2 * time.Second)
	}
	return w.upTo(20 * time.Millisecond)
}

// fault makes one thing go wrong, or right again.
func (w *world) fault() {
	defer w.ref.disturbed()
	w.ref.check()
	m := w.machines[w.r.IntN(len(w.machines))]
	switch w.r.IntN(12) {
	case 0, 1:
		m.alive = !m.alive
	case 2:
		m.apart = !m.apart
	case 3:
		m.broken = !m.broken
	case 4:
		w.apiDown, w.apiUp = !w.apiDown, w.now
		if !w.apiDown {
			w.relistAll()
		} else if c := w.ctl; c != nil && w.r.IntN(2) == 0 {
			w.in(w.latency(), func() { // its watch breaks and cannot be begun anew
				if w.ctl == c && w.apiDown {
					c.m.Observe(w.now, health.Event{Kind: health.Unanswered})
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
		m.skew += time.Duration(w.r.IntN(600)-300) * time.Second
	case 10:
		w.disturb(m)
	case 11: // a whole zone
		zone := w.r.IntN(3)
		alive := w.r.IntN(2) == 0
		for i, m := range w.machines {
			if i%3 == zone || len(w.machines) < 4 {
				m.alive = alive
			}
		}
	}
}

// disturb is what people do: delete nodes, take taints off, edit tolerations.
func (w *world) disturb(m *machine) {
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
func (w *world) heal() {
	w.ref.disturbed()
	if w.apiDown {
		w.apiUp = w.now
	}
	w.calm, w.apiDown, w.slow = true, false, false
	for _, m := range w.machines {
		m.apart = false
	}
	clear(w.cut)
	w.relistAll()
	if w.ctl == nil {
		w.start()
	}
}
