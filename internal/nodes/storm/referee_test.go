package storm

import (
	"fmt"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
)

// What real shells may add to what the cores decide: in virtual time and a quiet
// world that is a few round trips of 10 ms at most; otherwise retries, too.
const (
	tolerance = 100 * time.Millisecond
	settled   = 20 * time.Second

	// reaction is how soon somebody else writes who saw a node's being marked.
	reaction = 3 * time.Millisecond

	// callsIn10s is what at most eight nodes and sixteen pods may cost: some
	// tries of everything that may have to be written.
	callsIn10s = 400
)

// referee knows the rules in their simplest form. It sees what the API holds
// and what the machines do, and nothing of the controllers. The store's lock
// guards it.
type referee struct {
	w       *world
	fault   string               // the first rule that was broken
	begun   time.Time            // of the world
	quiet   time.Time            // since when nothing was disturbed
	apiUp   time.Time            // since when the API answers
	unknown map[string]time.Time // since when the API says so
	tainted map[string]time.Time // when a node last had a taint that expels
	absent  map[string]time.Time // since when there is no such Node
	ready   time.Time            // when some node was ready last
	added   map[string][]time.Time
}

func newReferee(w *world) referee {
	now := time.Now()
	return referee{w: w, begun: now, quiet: now, apiUp: now, ready: now, unknown: map[string]time.Time{}, tainted: map[string]time.Time{},
		absent: map[string]time.Time{}, added: map[string][]time.Time{}}
}

// broken notes a fault; the store must not be locked.
func (f *referee) broken(rule, format string, args ...any) {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	f.breaks(rule, format, args...)
}

func (f *referee) breaks(rule, format string, args ...any) {
	if f.fault == "" {
		f.fault = fmt.Sprintf("%s: at %s: %s", rule, time.Since(f.begun), fmt.Sprintf(format, args...))
	}
}

func (f *referee) found() string {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	return f.fault
}

func (f *referee) disturbed() { f.quiet = time.Now() }

// called counts calls of a life: however late its caches are, it does not ask
// the API the same again and again.
func (f *referee) called(l *life) {
	if time.Since(l.since) > 10*time.Second {
		l.since, l.calls = time.Now(), 0
	}
	if l.calls++; l.calls > callsIn10s {
		f.breaks("hammering", "%d calls within %s", l.calls, time.Since(l.since))
	}
}

func expels(t *v1.Taint) bool {
	return t.Effect == v1.TaintEffectNoExecute && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable)
}

func expelling(n *v1.Node) bool {
	for i := range n.Spec.Taints {
		if expels(&n.Spec.Taints[i]) {
			return true
		}
	}
	return false
}

func (f *referee) machine(name string) *machine {
	for _, m := range f.w.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

// wrote looks at each write.
func (f *referee) wrote(k kind, old, now object, by *life) {
	if k != leases {
		name := ""
		if old != nil {
			name = old.GetName()
		} else {
			name = now.GetName()
		}
		f.w.trace.note("write %s %s by controllers %v: %s", k, name, by != nil, short(now))
	}
	switch k {
	case nodes:
		a, _ := old.(*v1.Node)
		b, _ := now.(*v1.Node)
		if b == nil {
			f.absent[a.Name] = time.Now()
			delete(f.unknown, a.Name)
			return
		}
		delete(f.absent, b.Name)
		f.wroteNode(a, b, by)
	case pods:
		a, _ := old.(*v1.Pod)
		b, _ := now.(*v1.Pod)
		if by != nil {
			f.wrotePod(a, b)
		}
	}
}

func (f *referee) wroteNode(old, n *v1.Node, by *life) {
	if old != nil && expelling(old) {
		f.tainted[n.Name] = time.Now()
		f.w.bug.expelled[n.Name] = old
	}
	if statusOf(n) != v1.ConditionUnknown {
		delete(f.unknown, n.Name)
	} else if _, known := f.unknown[n.Name]; !known {
		f.unknown[n.Name] = time.Now()
	}
	if by == nil || old == nil {
		return
	}
	if old.UID != n.UID {
		return
	}
	if statusOf(n) == v1.ConditionUnknown && statusOf(old) != v1.ConditionUnknown {
		f.marked(f.machine(n.Name), by)
	}
	if !reflect.DeepEqual(own(old), own(n)) {
		f.breaks("foreign", "%s: the taints of people were %v and are %v", n.Name, own(old), own(n))
	}
	if expelling(n) && !expelling(old) {
		f.expelled(n)
	}
	for _, o := range f.w.store.objects[nodes] {
		if other := o.(*v1.Node); other.Name != n.Name && n.Spec.PodCIDR != "" && other.Spec.PodCIDR == n.Spec.PodCIDR {
			f.breaks("range", "%s and %s have %s", n.Name, other.Name, n.Spec.PodCIDR)
		}
	}
}

// own are the taints that people wrote.
func own(n *v1.Node) (out []v1.Taint) {
	for _, t := range n.Spec.Taints {
		if t.Key == theirs {
			out = append(out, t)
		}
	}
	return out
}

// marked: a node is called Unknown when it was silent for its grace, or for half
// a lease after a start; in a quiet world at once.
func (f *referee) marked(m *machine, by *life) {
	last, onItsWay := m.talked, tolerance
	if f.w.store.slow || f.w.store.lossy {
		onItsWay = settled / 4
	}
	if time.Since(last) <= onItsWay {
		last = m.before // it spoke while the mark was on its way
	}
	silent := time.Since(last)
	undisturbed := f.quiet.Before(last) && time.Since(f.quiet) > settled/4 && by.began.Before(last)
	switch {
	case undisturbed && (silent < grace || silent > grace+tolerance):
		f.breaks("detection", "%s was marked after a silence of %s", m.name, silent)
	case silent < half-settled/4 && m.alive && time.Since(f.apiUp) > time.Minute && !f.w.deafToLeases():
		f.breaks("alarm", "%s talked %s ago and is marked", m.name, silent)
	}
	if f.w.store.r.IntN(3) == 0 { // somebody reacts to it
		f.w.wg.Go(func() {
			time.Sleep(reaction)
			f.w.store.edit(nodes, m.name, func(o object) { o.(*v1.Node).Spec.Taints = people(o.(*v1.Node), true) })
		})
	}
}

// deafToLeases says that the lease watch is dead and too few nodes live for that
// to be seen; the store is locked.
func (w *world) deafToLeases() bool {
	for st := range w.store.streams {
		if st.kind == leases && st.deaf {
			return true
		}
	}
	return false
}

// expelled: a node gets a NoExecute taint, no faster than the zone's rate, and
// never while no node is ready.
func (f *referee) expelled(n *v1.Node) {
	now, zone := time.Now(), n.Labels[v1.LabelTopologyZone]
	if now.Sub(f.anyReady()) > 5*time.Second {
		f.breaks("full disruption", "%s gets a NoExecute taint though no node was ready for %s", n.Name, now.Sub(f.ready))
	}
	// A node heard in the moment it is marked may win and lose its taint a few
	// times, until the shell has seen its own writes: that is one node all the same.
	again := now.Sub(f.tainted[n.Name]) < settled/4
	f.tainted[n.Name] = now
	if again {
		return
	}
	at := append(f.added[zone], now)
	f.added[zone] = at
	for i, first := range at {
		// Writes may be late, so a window is as much longer.
		if most := 1 + (now.Sub(first)+settled).Seconds()*rate; float64(len(at)-i) > most {
			f.breaks("rate", "zone %s got %d NoExecute taints within %s", zone, len(at)-i, now.Sub(first))
		}
	}
}

// anyReady is when some node was ready last; the store is locked.
func (f *referee) anyReady() time.Time {
	for _, o := range f.w.store.objects[nodes] {
		if statusOf(o.(*v1.Node)) == v1.ConditionTrue {
			f.ready = time.Now()
		}
	}
	return f.ready
}

// wrotePod: a pod goes only when its time is over, or when its node is gone for
// long.
func (f *referee) wrotePod(old, p *v1.Pod) {
	name := nodeOfPod(old.Name)
	if p == nil {
		if since, gone := f.absent[name]; !gone || time.Since(since) < 40*time.Second {
			f.breaks("orphan", "%s was removed, its node is gone: %v, for %s", old.Name, gone, time.Since(since))
		}
		return
	}
	if old.DeletionTimestamp != nil || p.DeletionTimestamp == nil {
		return
	}
	n, _ := f.w.store.objects[nodes][name].(*v1.Node)
	switch {
	case n == nil: // went while the request was on its way
	case !expelling(n):
		if time.Since(f.tainted[name]) > settled/4 {
			f.breaks("eviction", "%s was deleted though %s has had no such taint for %s", p.Name, name, time.Since(f.tainted[name]))
		}
	default:
		for _, t := range n.Spec.Taints {
			if expels(&t) && !t.TimeAdded.Add(time.Duration(*p.Spec.Tolerations[0].TolerationSeconds)*time.Second).After(time.Now()) {
				return
			}
		}
		f.breaks("eviction", "%s was deleted before its time", p.Name)
	}
}

// watch looks at what does not happen, once a second.
func (f *referee) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.w.ctx.Done():
			return
		}
		f.w.store.mu.Lock()
		f.check()
		f.w.store.mu.Unlock()
	}
}

func (f *referee) check() {
	w, now := f.w, time.Now()
	if w.store.down {
		f.apiUp = now
	}
	f.anyReady()
	l := w.life
	if l == nil || w.store.down || w.store.slow || w.store.lossy || len(w.deaf()) > 0 || w.listening() < 3 {
		f.quiet = now
		return
	}
	if l.began.After(f.quiet) && !w.calm {
		f.quiet = l.began // a start is no disturbance, but what was under way at its end was lost
	}
	f.checkStart(l, now)
	for _, m := range w.machines {
		n, _ := w.store.objects[nodes][m.name].(*v1.Node)
		if n == nil {
			continue
		}
		if f.quiet.Before(m.talked) && l.began.Before(m.talked) && now.Sub(m.talked) > grace+2*time.Second && statusOf(n) != v1.ConditionUnknown {
			f.breaks("detection", "%s was silent for %s and is not marked", m.name, now.Sub(m.talked))
		}
		since, unknown := f.unknown[m.name]
		if unknown && now.Sub(since) > settled && now.Sub(f.quiet) > settled {
			for _, name := range sortedKeys(w.store.objects[pods]) {
				if p := w.store.objects[pods][name].(*v1.Pod); nodeOfPod(name) == m.name && podReady(p) {
					f.breaks("ready pod", "%s has counted as ready for %s on a node that is Unknown", name, now.Sub(since))
				}
			}
		}
	}
}

// checkStart: who was dead for long when the controllers started is marked
// within half a lease.
func (f *referee) checkStart(l *life, now time.Time) {
	if f.quiet.After(l.began) || l.began.Sub(f.apiUp) < time.Minute || now.Sub(l.began) < half+2*time.Second {
		return
	}
	for _, m := range f.w.machines {
		n, _ := f.w.store.objects[nodes][m.name].(*v1.Node)
		if n != nil && f.w.store.objects[leases][m.name] != nil && l.most && l.began.Sub(m.talked) > grace+2*beatEvery && statusOf(n) != v1.ConditionUnknown {
			f.breaks("restart", "%s was dead for %s when the controllers started %s ago, and is not marked", m.name, l.began.Sub(m.talked), now.Sub(l.began))
		}
	}
}

// listening is how many kinds are watched: after an outage each watch waits for
// its next try. The store is locked.
func (w *world) listening() int {
	kinds := map[kind]bool{}
	for st := range w.store.streams {
		kinds[st.kind] = true
	}
	return len(kinds)
}

// mostTalk says that more than half of the nodes are heard: who is dead is told by
// comparing with the one in the middle. The store is locked.
func (w *world) mostTalk() bool {
	talking, all := 0, 0
	for _, m := range w.machines {
		if w.store.objects[nodes][m.name] != nil {
			all++
			if time.Since(m.talked) <= beatEvery {
				talking++
			}
		}
	}
	return 2*talking > all
}

// deaf are the watches that are dead; the store is locked.
func (w *world) deaf() (out []*stream) {
	for st := range w.store.streams {
		if st.deaf {
			out = append(out, st)
		}
	}
	return out
}

// verdict looks at a world that had long enough to come to rest.
func (f *referee) verdict() {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	w := f.w
	anyReady := time.Since(f.anyReady()) == 0
	for _, m := range w.machines {
		n, _ := w.store.objects[nodes][m.name].(*v1.Node)
		if n == nil {
			if m.alive {
				f.breaks("convergence", "%s lives and has no Node", m.name)
			}
			f.podsAtRest(m, false, true)
			continue
		}
		want, good := v1.ConditionTrue, m.alive && !m.broken
		switch {
		case !m.alive:
			want = v1.ConditionUnknown
		case m.broken:
			want = v1.ConditionFalse
		}
		if statusOf(n) != want {
			f.breaks("convergence", "%s is %s, not %s", m.name, statusOf(n), want)
		}
		if good && len(n.Spec.Taints) > len(own(n)) {
			f.breaks("convergence", "%s is ready and has taints %v", m.name, n.Spec.Taints)
		}
		if !good && !f.stopped(m.zone) && expelling(n) != anyReady {
			f.breaks("convergence", "%s is not ready, another is: %v, and it has taints %v", m.name, anyReady, n.Spec.Taints)
		}
		if n.Spec.PodCIDR == "" {
			f.breaks("convergence", "%s has no range", m.name)
		}
		f.podsAtRest(m, good, !good && expelling(n))
	}
}

// stopped says that the zone is too much disrupted for new taints.
func (f *referee) stopped(zone string) bool {
	ready, not := 0, 0
	for _, m := range f.w.machines {
		switch {
		case m.zone != zone || f.w.store.objects[nodes][m.name] == nil:
		case m.alive && !m.broken:
			ready++
		default:
			not++
		}
	}
	return not > 2 && ready > 0 && float64(not) >= 0.55*float64(not+ready)
}

func (f *referee) podsAtRest(m *machine, ready, end bool) {
	for _, name := range sortedKeys(f.w.store.objects[pods]) {
		p := f.w.store.objects[pods][name].(*v1.Pod)
		switch {
		case nodeOfPod(name) != m.name:
		case f.w.store.objects[nodes][m.name] == nil:
			f.breaks("convergence", "%s is still there, its node is not", name)
		case podReady(p) != ready:
			f.breaks("convergence", "%s counts as ready: %v, on a node that is: %v", name, podReady(p), ready)
		case end && p.DeletionTimestamp == nil:
			f.breaks("forgotten", "%s bears its node's taint for %d s only and is still there", name, *p.Spec.Tolerations[0].TolerationSeconds)
		}
	}
}

// short is what the rules look at of an object.
func short(o object) string {
	switch o := o.(type) {
	case *v1.Node:
		return fmt.Sprintf("Ready %q, %s, taints %v", statusOf(o), o.Spec.PodCIDR, o.Spec.Taints)
	case *v1.Pod:
		return fmt.Sprintf("ready %v, going %v", podReady(o), o.DeletionTimestamp != nil)
	}
	return "gone"
}
