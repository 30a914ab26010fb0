package modeltest

import (
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/nodes/eviction"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/podutil"
)

// controller is one instance of the controllers: the cores that production runs,
// under a shell that is as slow and as forgetful as the schedule says. Nothing
// of it outlives a crash.
type controller struct {
	w       *cluster
	m       *health.Monitor
	nodes   map[string]*v1.Node
	pods    map[string]*v1.Pod
	last    [3]time.Time // when the latest event of each stream arrives
	wake    time.Time
	writing map[string]bool // a write is on its way; true if there is cause for another
	tries   map[string]int
	first   map[string]time.Time
	evict   map[string]time.Time // when a pod is looked at next
}

// start begins an instance: everything is listed, then watched.
func (w *cluster) start() {
	s := health.Defaults()
	s.Grace, s.StartupGrace, s.EvictionRate = grace, startupGrace, rate
	switch w.bug {
	case "late":
		s.Grace += time.Second
	case "fast":
		s.EvictionRate *= 5
	}
	c := &controller{w: w, m: health.NewMonitor(s), nodes: map[string]*v1.Node{}, pods: map[string]*v1.Pod{}, writing: map[string]bool{},
		tries: map[string]int{}, first: map[string]time.Time{}, evict: map[string]time.Time{}}
	w.ctl = c
	w.ref.started()
	for _, m := range w.hosts {
		if n := w.nodes[m.name]; n != nil {
			c.takeNode(m.name, n)
		}
	}
	for _, m := range w.hosts {
		w.eachPod(m.name, func(p *v1.Pod) { c.takePod(p.Name, p) })
		if l, ok := w.leases[m.name]; ok && w.bug != "forget the past" {
			c.takeLease(m.name, l)
		}
	}
	w.ref.listed()
	c.m.Observe(w.Time(), health.Event{Kind: health.Synced})
	c.advance()
}

// crash ends the controller's instance; another begins after a while.
func (w *cluster) crash() {
	if w.ctl == nil {
		return
	}
	w.ctl = nil
	w.After(w.upTo(40*time.Second), func() {
		if w.ctl == nil && !w.apiDown {
			w.start()
		} else if w.ctl == nil {
			w.After(5*time.Second, w.restart)
		}
	})
}

func (w *cluster) restart() {
	switch {
	case w.ctl != nil:
	case w.apiDown:
		w.After(5*time.Second, w.restart)
	default:
		w.start()
	}
}

// send delivers an event to the controller of this moment, in the order of its
// stream, sometimes twice. A cut stream delivers nothing: relist makes up for it.
func (w *cluster) send(s stream, take func(*controller)) {
	c := w.ctl
	if c == nil || w.cut[s] || w.apiDown {
		return
	}
	at := w.Time().Add(w.latency())
	if at.Before(c.last[s]) {
		at = c.last[s]
	}
	c.last[s] = at
	times := 1
	if w.r.IntN(20) == 0 {
		times = 2
	}
	for range times {
		w.After(at.Sub(w.Time()), func() {
			if w.ctl == c {
				take(c)
				c.advance()
			}
		})
	}
}

func (w *cluster) tellNode(name string) {
	n := w.nodes[name]
	w.send(nodeStream, func(c *controller) { c.takeNode(name, n) })
}

func (w *cluster) tellPod(name string) {
	p := w.pods[name]
	w.send(podStream, func(c *controller) { c.takePod(name, p) })
}

func (w *cluster) tellLease(name string) {
	l := w.leases[name]
	w.send(leaseStream, func(c *controller) { c.takeLease(name, l) })
}

func (w *cluster) relistAll() {
	for _, s := range []stream{nodeStream, leaseStream, podStream} {
		w.relist(s)
	}
}

// relist is how a watch that works again catches up.
func (w *cluster) relist(s stream) {
	for _, m := range w.hosts {
		switch s {
		case nodeStream:
			w.tellNode(m.name)
		case podStream:
			for _, p := range []string{"-p0", "-p1", "-p2"} {
				w.tellPod(m.name + p)
			}
		case leaseStream:
			if _, ok := w.leases[m.name]; ok {
				w.tellLease(m.name)
			}
		}
	}
}

func (c *controller) takeNode(name string, n *v1.Node) {
	c.w.ref.saw(name, c.nodes[name], n)
	if n == nil {
		if c.nodes[name] != nil {
			delete(c.nodes, name)
			c.m.Observe(c.w.Time(), health.Event{Kind: health.NodeGone, Node: name})
		}
		return
	}
	if c.w.bug == "late word" && versionOf(n) < versionOf(c.nodes[name]) {
		// Own writes that are seen late pass for another party's.
		c.m.Observe(c.w.Time(), health.Event{Kind: health.NodeSeen, Node: name, View: health.ViewOf(n)})
		c.write(name)
		return
	}
	if versionOf(n) >= versionOf(c.nodes[name]) {
		c.nodes[name] = n
	}
	c.m.Observe(c.w.Time(), health.Event{Kind: health.NodeSeen, Node: name, View: health.ViewOf(n), Version: versionOf(n)})
	c.write(name)
	c.w.eachPod(name, func(p *v1.Pod) { c.consider(p.Name) })
}

func versionOf(n *v1.Node) uint64 {
	if n == nil {
		return 0
	}
	v, err := strconv.ParseUint(n.ResourceVersion, 10, 64)
	if err != nil {
		panic(err) // the world numbers them
	}
	return v
}

func (c *controller) takePod(name string, p *v1.Pod) {
	if p == nil {
		delete(c.pods, name)
		delete(c.first, name)
		return
	}
	c.pods[name] = p
	if podutil.Ready(p) && c.m.Verdict(p.Spec.NodeName).PodsNotReady {
		c.write(p.Spec.NodeName)
	}
	c.consider(name)
}

func (c *controller) takeLease(name string, l clustermodel.Lease) {
	c.w.ref.heardLease(name, l)
	e := l.Event(name)
	if c.w.bug == "judge at once" {
		e.Lasts = time.Nanosecond
	}
	c.m.Observe(c.w.Time(), e)
}

// advance lets the core decide now, and sees that it is asked again in time.
func (c *controller) advance() {
	w := c.w
	for _, d := range c.m.Advance(w.Time()) {
		switch d.Kind {
		case health.Confirm:
			w.ref.asked()
			w.After(w.latency(), c.confirm)
		case health.StaleWatch:
			if w.cut[leaseStream] {
				w.cut[leaseStream] = false // started again
				w.relist(leaseStream)
			}
		case health.Release:
			w.ref.released()
		case health.Resume:
			w.ref.amnesty()
		case health.Wait, health.ZoneChanged, health.Suspend, health.Hold:
		case health.Untaint, health.HeardAgain:
			if w.bug != "forget recovery" {
				c.write(d.Node)
			}
		default:
			c.write(d.Node)
		}
	}
	w.ref.check()
	if at := c.m.Next(); !at.IsZero() && !at.Equal(c.wake) {
		c.wake = at
		w.After(max(0, at.Sub(w.Time())), func() {
			if w.ctl == c && c.wake.Equal(at) {
				c.wake = time.Time{}
				c.advance()
			}
		})
	}
}

// confirm asks the API for all leases.
func (c *controller) confirm() {
	w := c.w
	if w.ctl != c {
		return
	}
	answer := health.Event{Kind: health.Confirmed}
	if w.apiDown {
		answer.Err = "connection refused"
	} else {
		for _, m := range w.hosts {
			if l, ok := w.leases[m.name]; ok {
				c.takeLease(m.name, l)
			}
		}
	}
	w.ref.answered(answer.Err == "")
	c.m.Observe(w.Time(), answer)
	c.advance()
}

// write makes a node fit its verdict after a while; one write a node at a time.
func (c *controller) write(name string) {
	if _, busy := c.writing[name]; busy {
		c.writing[name] = true
		return
	}
	c.writing[name] = false
	c.w.After(c.w.latency(), func() { c.carryOut(name) })
}

func (c *controller) carryOut(name string) {
	w := c.w
	if w.ctl != c {
		return
	}
	again := c.writing[name]
	delete(c.writing, name)
	fits := !w.apiDown && c.fit(name)
	if live := w.nodes[name]; !fits && !w.apiDown && live != nil {
		// The cache is behind: the node is read from the API.
		c.takeNode(name, live)
		c.advance()
		fits = c.fit(name)
	}
	if !fits {
		// As work queues do: later and later, but an event comes in between.
		w.After(min(20*time.Millisecond<<c.tries[name], 10*time.Second), func() {
			if w.ctl == c {
				c.write(name)
			}
		})
		c.tries[name] = min(c.tries[name]+1, 11)
		return
	}
	delete(c.tries, name)
	if again {
		c.write(name)
	}
}

// fit does what the health shell does with a node; false asks for another try.
func (c *controller) fit(name string) bool {
	w := c.w
	n, live := c.nodes[name], w.nodes[name]
	v := c.m.Verdict(name)
	if n == nil || !v.Known || v.UID != string(n.UID) || live == nil || live.UID != n.UID {
		return true
	}
	now := metav1.NewTime(w.Time())
	if set := v.Conditions(n, now); len(set) > 0 {
		if live.ResourceVersion != n.ResourceVersion {
			return false
		}
		w.update(name, func(n *v1.Node) { n.Status.Conditions = clustermodel.Merged(n.Status.Conditions, set) })
		return true // what follows is done when the watch shows it
	}
	if v.PodsNotReady && w.bug != "leave pods ready" {
		w.eachPod(name, func(p *v1.Pod) {
			if cached := c.pods[p.Name]; cached != nil && v.MarksPod(p) {
				w.setPodReady(p.Name, v1.ConditionFalse)
			}
		})
	}
	if !w.calm && w.r.IntN(50) == 0 {
		w.crash() // between two writes
		return true
	}
	if w.bug == "taint at once" && v.Unknown {
		v.NoExecute = v1.TaintNodeUnreachable
	}
	write := v.Taints(n, now, func() bool {
		ok := w.bug == "late word" || w.bug == "taint at once" || c.m.ReserveTaint(w.Time(), name, n.ResourceVersion)
		if !ok {
			w.After(0, c.advanceLater)
		}
		return ok
	})
	if !write.Changed {
		return true
	}
	done := health.Done
	switch {
	case live.ResourceVersion != n.ResourceVersion:
		done = health.NotDone
	case !w.calm && w.r.IntN(10) == 0:
		done = health.Unsure // and the world knows whether it was made
	}
	if done == health.Done || done == health.Unsure && w.r.IntN(2) == 0 {
		if write.NoExecute != "" {
			w.ref.taints(name, write.Adds)
		}
		w.update(name, func(n *v1.Node) { n.Spec.Taints = write.Taints })
	}
	if done == health.Done {
		c.nodes[name] = w.nodes[name]
		c.m.Observe(w.Time(), health.Event{Kind: health.NodeRead, Node: name, View: health.ViewOf(w.nodes[name]),
			Version: versionOf(w.nodes[name])})
	}
	if write.Adds {
		c.m.Observe(w.Time(), health.Event{Kind: health.Tried, Node: name, Outcome: done})
	}
	w.After(0, c.advanceLater)
	return done == health.Done
}

// advanceLater lets the core decide after what is under way.
func (c *controller) advanceLater() {
	if c.w.ctl == c {
		c.advance()
	}
}

// consider looks at when a pod has to go, as the eviction shell does.
func (c *controller) consider(name string) {
	w := c.w
	p := c.pods[name]
	if p == nil || c.nodes[p.Spec.NodeName] == nil {
		return
	}
	first, known := c.first[name]
	if !known {
		first = w.Time()
	}
	plan := eviction.For(p, c.nodes[p.Spec.NodeName], first, w.Time())
	if !plan.Evict {
		delete(c.first, name)
		return
	}
	c.first[name] = first
	if _, looked := c.evict[name]; looked && w.bug == "forget pods" {
		return
	}
	at := plan.At
	if w.bug == "impatient" {
		at = at.Add(-time.Minute)
	}
	if at.Before(w.Time()) {
		at = w.Time()
	}
	c.evict[name] = at
	w.After(at.Sub(w.Time())+w.latency(), func() { c.expel(name, at) })
}

// expel deletes a pod if it is due by what the API says at this moment.
func (c *controller) expel(name string, at time.Time) {
	w := c.w
	if w.ctl != c || !c.evict[name].Equal(at) {
		return
	}
	if w.apiDown {
		w.After(time.Second, func() { c.expel(name, at) })
		return
	}
	p := w.pods[name]
	if p == nil || w.nodes[p.Spec.NodeName] == nil {
		return
	}
	n := w.nodes[p.Spec.NodeName]
	if w.bug == "believe the cache" {
		n, p = c.nodes[p.Spec.NodeName], c.pods[name]
		if n == nil || p == nil {
			return
		}
	}
	now := w.Time()
	if w.bug == "impatient" {
		now = now.Add(time.Minute)
	}
	if _, due := eviction.Due(p, n, c.first[name], now); !due {
		return // the event that says so is on its way
	}
	w.ref.deletes(w.pods[name])
	delete(w.pods, name)
	w.rv++
	w.tellPod(name)
}
