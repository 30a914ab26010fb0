package faulttest

import (
	"fmt"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/podutil"
)

// What real shells may add to what the cores decide: in virtual time and a quiet
// world that is a few round trips of 10 ms at most; otherwise round trips of
// seconds and retries, too.
const (
	tolerance = 100 * time.Millisecond
	settled   = 20 * time.Second

	// reaction is how soon another party writes who saw a node's being marked.
	reaction = 3 * time.Millisecond

	// callsIn10s is what at most eight nodes and sixteen pods may cost: some
	// tries of everything that may have to be written.
	callsIn10s = 400
)

// invariantChecker knows the rules in their simplest form. It sees what the API holds
// and what the hosts do, and nothing of the controllers. The store's lock
// guards it.
type invariantChecker struct {
	w       *cluster
	fault   string               // the first rule that was broken
	begun   time.Time            // of the world
	quiet   time.Time            // since when API, watches and controllers work
	rough   time.Time            // when an answer or a watch event took seconds last, or was lost
	blind   time.Time            // when what the API holds of nodes could last not be seen
	resumed time.Time            // when a node was the only one to be ready: all get a new grace
	unknown map[string]time.Time // since when the API says so
	tainted map[string]time.Time // when a node last had a taint that expels
	absent  map[string]time.Time // since when there is no such Node
	ready   time.Time            // when some node was ready last
	halted  map[string]time.Time // since when a zone may get none
	added   map[string]time.Time // when a zone got its last NoExecute taint
}

func newInvariantChecker(w *cluster) invariantChecker {
	now := time.Now()
	return invariantChecker{w: w, begun: now, quiet: now, ready: now, unknown: map[string]time.Time{}, tainted: map[string]time.Time{},
		absent: map[string]time.Time{}, added: map[string]time.Time{}, halted: map[string]time.Time{}}
}

// broken notes a fault; the store must not be locked.
func (f *invariantChecker) broken(rule, format string, args ...any) {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	f.breaks(rule, format, args...)
}

func (f *invariantChecker) breaks(rule, format string, args ...any) {
	if f.fault == "" {
		f.fault = fmt.Sprintf("%s: at %s: %s", rule, time.Since(f.begun), fmt.Sprintf(format, args...))
	}
}

func (f *invariantChecker) found() string {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	return f.fault
}

func (f *invariantChecker) disturbed() { f.quiet = time.Now() }

// called counts calls of a instance: however late its caches are, it does not ask
// the API the same again and again.
func (f *invariantChecker) called(l *instance) {
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

func (f *invariantChecker) host(name string) *host {
	for _, m := range f.w.hosts {
		if m.name == name {
			return m
		}
	}
	return nil
}

// wrote looks at each write.
func (f *invariantChecker) wrote(k kind, old, now object, by *instance) {
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
			if clustermodel.Evicts(a) {
				f.tainted[a.Name] = time.Now()
			}
			delete(f.unknown, a.Name)
			f.judge(a.Labels[v1.LabelTopologyZone])
			return
		}
		delete(f.absent, b.Name)
		f.wroteNode(a, b, by)
		f.judge(b.Labels[v1.LabelTopologyZone])
	case pods:
		a, _ := old.(*v1.Pod)
		b, _ := now.(*v1.Pod)
		if by != nil {
			f.wrotePod(a, b)
		}
	}
}

func (f *invariantChecker) wroteNode(old, n *v1.Node, by *instance) {
	if old != nil && clustermodel.Evicts(old) {
		f.tainted[n.Name] = time.Now()
		f.w.bug.expelled[n.Name] = old
	}
	if (old == nil || clustermodel.NodeReady(old) != v1.ConditionTrue) && clustermodel.NodeReady(n) == v1.ConditionTrue &&
		f.readyBut(n.Name) == 0 {
		f.resumed = time.Now()
	}
	if clustermodel.NodeReady(n) != v1.ConditionUnknown {
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
	if clustermodel.NodeReady(n) == v1.ConditionUnknown && clustermodel.NodeReady(old) != v1.ConditionUnknown {
		f.marked(f.host(n.Name), by)
	}
	if !reflect.DeepEqual(own(old), own(n)) {
		f.breaks("foreign", "%s: the taints of people were %v and are %v", n.Name, own(old), own(n))
	}
	if clustermodel.Evicts(n) && !clustermodel.Evicts(old) {
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

// lag is how old what the controllers go by may be when their write is made.
func (f *invariantChecker) lag() time.Duration {
	f.smooth()
	if time.Since(f.rough) < settled {
		return settled / 4
	}
	return tolerance
}

// smooth notes whether answers and events come at once; the store is locked.
func (f *invariantChecker) smooth() bool {
	w := f.w
	if w.store.down || !w.seesNodes() {
		f.blind = time.Now()
	}
	if w.store.down || w.store.slow || w.store.lossy || len(w.deaf()) > 0 || w.listening() < 3 {
		f.rough = time.Now()
		return false
	}
	return true
}

// seen is when the controllers could begin to know what is so since then.
func (f *invariantChecker) seen(since time.Time) time.Time {
	f.smooth()
	if f.blind.After(since) {
		return f.blind
	}
	return since
}

// seesNodes says that nodes are watched; the store is locked.
func (w *cluster) seesNodes() bool {
	for st := range w.store.streams {
		if st.kind == nodes && !st.deaf {
			return true
		}
	}
	return false
}

// readyBut counts the ready nodes but one; the store is locked.
func (f *invariantChecker) readyBut(name string) (count int) {
	for _, o := range f.w.store.objects[nodes] {
		if n := o.(*v1.Node); n.Name != name && clustermodel.NodeReady(n) == v1.ConditionTrue {
			count++
		}
	}
	return count
}

// marked: a node is called Unknown when it was silent for its grace and could have
// been heard; in a quiet world at once.
func (f *invariantChecker) marked(m *host, by *instance) {
	last, gone := m.talked, m.gone
	if time.Since(last) <= f.lag() {
		last, gone = m.before, m.wasGone // it spoke while the mark was on its way
	}
	silent := time.Since(last)
	quiet := f.quiet.Before(last) && by.began.Before(last) && f.resumed.Before(last)
	switch {
	case quiet && silent > grace+tolerance:
		f.breaks("detection", "%s was marked after a silence of %s", m.name, silent)
	case silent < grace || !gone:
		f.breaks("alarm", "%s talked %s ago and is marked; dead or cut off meanwhile: %v", m.name, silent, gone)
	}
	if f.w.store.r.IntN(3) == 0 { // someone reacts to it
		f.w.wg.Go(func() {
			time.Sleep(reaction)
			f.w.store.edit(nodes, m.name, func(o object) { o.(*v1.Node).Spec.Taints = people(o.(*v1.Node), true) })
		})
	}
}

// expelled: a node gets a NoExecute taint, never faster than the zone's rate, and
// not while no node is ready, nor while too many of a small zone are not.
func (f *invariantChecker) expelled(n *v1.Node) {
	now, zone := time.Now(), n.Labels[v1.LabelTopologyZone]
	if now.Sub(f.seen(f.anyReady())) > f.lag() {
		f.breaks("full disruption", "%s gets a NoExecute taint though no node was ready for %s", n.Name, now.Sub(f.ready))
	}
	if last, any := f.added[zone]; any && now.Sub(last).Seconds() < 1/rate-1e-6 {
		f.breaks("rate", "zone %s got a NoExecute taint %s after the last", zone, now.Sub(last))
	}
	f.added[zone] = now
	// Who is silent for its grace counts, though the API may not say so yet.
	if since, stopped := f.halted[zone]; stopped && tooMany(f.numbers(zone, grace)) && now.Sub(f.seen(since)) > f.lag() {
		f.breaks("partial disruption", "%s gets a NoExecute taint though too many of zone %s are not ready, for %s", n.Name, zone,
			now.Sub(since))
	}
}

// judge notes since when so many of a zone are not ready, by what the API says, that
// a zone of its size gets no more taints; the store is locked.
func (f *invariantChecker) judge(zone string) {
	if !tooMany(f.numbers(zone, time.Hour)) {
		delete(f.halted, zone)
	} else if _, known := f.halted[zone]; !known {
		f.halted[zone] = time.Now()
	}
}

// numbers are those of a zone's nodes, by what the API says of those that talked
// within a time; the store is locked.
func (f *invariantChecker) numbers(zone string, within time.Duration) (ready, not int) {
	for _, o := range f.w.store.objects[nodes] {
		switch n := o.(*v1.Node); {
		case n.Labels[v1.LabelTopologyZone] != zone:
		case clustermodel.NodeReady(n) == v1.ConditionTrue && time.Since(f.host(n.Name).talked) < within:
			ready++
		default:
			not++
		}
	}
	return ready, not
}

func tooMany(ready, not int) bool {
	return not > 2 && ready > 0 && float64(not) >= 0.55*float64(not+ready)
}

// anyReady is when some node was ready last; the store is locked.
func (f *invariantChecker) anyReady() time.Time {
	for _, o := range f.w.store.objects[nodes] {
		if clustermodel.NodeReady(o.(*v1.Node)) == v1.ConditionTrue {
			f.ready = time.Now()
		}
	}
	return f.ready
}

// wrotePod: a pod goes only when its time is over, or when its node is gone for
// long.
func (f *invariantChecker) wrotePod(old, p *v1.Pod) {
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
	case !clustermodel.Evicts(n):
		if time.Since(f.tainted[name]) > f.lag() {
			f.breaks("eviction", "%s was deleted though %s has had no such taint for %s", p.Name, name, time.Since(f.tainted[name]))
		}
	default:
		for _, t := range n.Spec.Taints {
			if expels(&t) && !t.TimeAdded.Add(time.Duration(*p.Spec.Tolerations[0].TolerationSeconds)*time.Second).After(time.Now()) {
				return
			}
		}
		f.breaks("early", "%s was deleted before its time", p.Name)
	}
}

// watch looks at what does not happen, once a second.
func (f *invariantChecker) watch() {
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

func (f *invariantChecker) check() {
	w, now := f.w, time.Now()
	f.anyReady()
	l := w.instance
	if !f.smooth() || l == nil {
		f.quiet = now
		return
	}
	f.checkStart(l, now)
	for _, m := range w.hosts {
		n, _ := w.store.objects[nodes][m.name].(*v1.Node)
		if n == nil {
			continue
		}
		f.checkSilent(l, m, n, now)
		since, unknown := f.unknown[m.name]
		most := time.Second
		if since.Before(f.quiet.Add(settled)) || since.Before(l.began.Add(settled)) {
			most = settled // what went wrong before is tried again later and later
		}
		if unknown && now.Sub(since) > most && now.Sub(f.quiet) > most && now.Sub(l.began) > most {
			for _, name := range sortedKeys(w.store.objects[pods]) {
				if p := w.store.objects[pods][name].(*v1.Pod); nodeOfPod(name) == m.name && podutil.Ready(p) {
					f.breaks("ready pod", "%s has counted as ready for %s on a node that is Unknown", name, now.Sub(since))
				}
			}
		}
	}
}

// checkSilent: who is silent for its grace is marked. If there was a disturbance or a
// start meanwhile, a grace and a half lease after that are enough at the latest.
func (f *invariantChecker) checkSilent(l *instance, m *host, n *v1.Node, now time.Time) {
	from, most := m.talked, grace+tolerance
	for _, at := range []time.Time{f.quiet, l.began, f.resumed} {
		if at.After(from) {
			from, most = at, grace+half+time.Second
		}
	}
	if now.Sub(from) > most && clustermodel.NodeReady(n) != v1.ConditionUnknown {
		f.breaks("detection", "%s was silent for %s, all was well for %s, and it is not marked", m.name, now.Sub(m.talked), now.Sub(from))
	}
}

// checkStart: who was dead for long when the controllers started is marked
// within half a lease.
func (f *invariantChecker) checkStart(l *instance, now time.Time) {
	if f.quiet.After(l.began) || f.resumed.After(l.began) || now.Sub(l.began) < half+tolerance {
		return
	}
	for _, m := range f.w.hosts {
		n, _ := f.w.store.objects[nodes][m.name].(*v1.Node)
		if n != nil && f.w.store.objects[leases][m.name] != nil && l.most && l.began.Sub(m.talked) > grace+renewEvery &&
			clustermodel.NodeReady(n) != v1.ConditionUnknown {
			f.breaks("restart", "%s was dead for %s when the controllers started %s ago, and is not marked", m.name, l.began.Sub(m.talked),
				now.Sub(l.began))
		}
	}
}

// listening is how many kinds are watched: after an outage each watch waits for
// its next try. The store is locked.
func (w *cluster) listening() int {
	kinds := map[kind]bool{}
	for st := range w.store.streams {
		kinds[st.kind] = true
	}
	return len(kinds)
}

// mostTalk says that more than half of the nodes are heard: who is dead is told by
// comparing with the one in the middle. The store is locked.
func (w *cluster) mostTalk() bool {
	talking, all := 0, 0
	for _, m := range w.hosts {
		if w.store.objects[nodes][m.name] != nil {
			all++
			if time.Since(m.talked) <= renewEvery {
				talking++
			}
		}
	}
	return 2*talking > all
}

// deaf are the watches that are dead; the store is locked.
func (w *cluster) deaf() (out []*stream) {
	for st := range w.store.streams {
		if st.deaf {
			out = append(out, st)
		}
	}
	return out
}
