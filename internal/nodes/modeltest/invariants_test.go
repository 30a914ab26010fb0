package modeltest

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/podutil"
)

// tolerance is how late in virtual time a decision may be.
const tolerance = 100 * time.Millisecond

// settled is how long after a decision its writes may take with a healthy API:
// retries, conflicts and slow watches included.
const settled = 15 * time.Second

// invariantChecker knows the rules in their simplest form and sees what the controller
// sees. Of the cores it only asks for verdicts.
type invariantChecker struct {
	w     *cluster
	fault string // the first rule that was broken

	due             map[string]time.Time // when each node is silent for too long, as the controller could know
	voice           map[string]time.Time // when it was heard
	inRecoveryGrace map[string]bool      // it was given time after an outage since then
	held            time.Time            // when the API was asked that did not answer
	dead            map[string]bool      // nodes that were dead for long when the controller started
	begun           time.Time            // when it did
	lease           map[string]clustermodel.Lease
	orphanLeases    map[string]clustermodel.Lease // of nodes not known yet
	met             map[string]uint64             // the version of each node that was seen first
	began           bool                          // the list is complete
	asking          bool                          // the API was asked and has not answered
	holding         bool                          // it did not answer: no one may be judged
	grants          map[string]time.Time          // the last NoExecute taint that each zone got, over all instances
	quiet           time.Time                     // since when nothing hindered writes
	unknown         map[string]time.Time          // since when the API says Unknown
}

func newInvariantChecker(w *cluster) invariantChecker {
	return invariantChecker{w: w, grants: map[string]time.Time{}, unknown: map[string]time.Time{}}
}

func (f *invariantChecker) broken(rule, format string, args ...any) {
	if f.fault == "" {
		f.fault = fmt.Sprintf("%s: at %s: %s", rule, f.w.Time().Sub(clustermodel.Epoch), fmt.Sprintf(format, args...))
	}
}

// started: a controller that starts has heard no one yet.
func (f *invariantChecker) started() {
	f.due, f.voice, f.inRecoveryGrace = map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}
	f.orphanLeases, f.met, f.began = map[string]clustermodel.Lease{}, map[string]uint64{}, false
	f.lease, f.dead = map[string]clustermodel.Lease{}, map[string]bool{}
	f.asking, f.holding, f.quiet, f.begun = false, false, f.w.Time(), f.w.Time()
}

func (f *invariantChecker) heard(name string) {
	f.due[name], f.voice[name] = f.w.Time().Add(grace), f.w.Time()
	delete(f.dead, name)
	delete(f.inRecoveryGrace, name)
}

// listed: what the leases say of the time before the start counts, in comparison
// with each other. A living node has half a lease's time to renew its own.
func (f *invariantChecker) listed() {
	w := f.w
	f.began = true
	var all []time.Time
	found := map[string]time.Time{}
	talking, nodes := 0, 0
	for _, m := range w.hosts {
		if w.nodes[m.name] == nil {
			continue
		}
		nodes++
		if w.Time().Sub(m.talked) <= renewEvery {
			talking++
		}
		if l, ok := w.leases[m.name]; ok {
			found[m.name] = l.Renewed
			if w.notes {
				found[m.name] = l.Written
			}
			all = append(all, found[m.name])
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	for name, at := range found {
		if silent := all[len(all)/2].Sub(at); silent > 0 {
			f.due[name] = w.Time().Add(max(grace-silent, leaseLasts/2))
		}
	}
	for _, m := range w.hosts {
		_, leased := found[m.name]
		f.dead[m.name] = leased && w.notes && 2*talking > nodes && w.Time().Sub(w.apiUp) > time.Minute &&
			w.Time().Sub(m.talked) > grace+renewEvery
	}
}

// amnesty: some node is ready again after none was, so all are taken as heard. An
// API that has not answered yet is still one that has not.
func (f *invariantChecker) amnesty() {
	for name := range f.due {
		f.heard(name)
	}
}

// released: while the API did not answer no one could be heard, so that time does
// not count; and once in a silence a node has half a lease's time after it.
func (f *invariantChecker) released() {
	f.holding = false
	for name, due := range f.due {
		if f.w.ctl.m.Verdict(name).Unknown {
			continue
		}
		delete(f.dead, name)
		since := f.held
		if f.voice[name].After(since) {
			since = f.voice[name]
		}
		due = due.Add(f.w.Time().Sub(since))
		if proof := f.w.Time().Add(leaseLasts / 2); !f.inRecoveryGrace[name] && proof.After(due) {
			due = proof
		}
		f.due[name], f.inRecoveryGrace[name] = due, true
	}
}

func (f *invariantChecker) asked() {
	f.asking = true
	if !f.holding {
		f.held = f.w.Time()
	}
}

func (f *invariantChecker) answered(ok bool) {
	f.asking = false
	f.holding = f.holding || !ok
}

// disturbed: something went wrong or right just now.
func (f *invariantChecker) disturbed() { f.quiet = f.w.Time() }

func beat(n *v1.Node) time.Time {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == v1.NodeReady {
			return n.Status.Conditions[i].LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// saw: a node's first sight, and each status it posts, are signs of life.
func (f *invariantChecker) saw(name string, old, n *v1.Node) {
	switch {
	case n == nil:
		delete(f.due, name)
		delete(f.dead, name)
		delete(f.lease, name)
		return
	case old == nil || old.UID != n.UID:
		f.heard(name)
		delete(f.lease, name)
		f.met[name] = versionOf(n)
		if l, ok := f.orphanLeases[name]; ok {
			delete(f.orphanLeases, name)
			f.lease[name] = l
		}
	case !beat(old).Equal(beat(n)):
		f.heard(name)
	}
}

// heardLease: each lease that is newer than the last is a sign of life. The first
// is if the node was made after the start and before it.
func (f *invariantChecker) heardLease(name string, l clustermodel.Lease) {
	if f.w.ctl.nodes[name] == nil {
		f.orphanLeases[name] = l
		return
	}
	old, known := f.lease[name]
	if known && l.Version <= old.Version && !l.Renewed.After(old.Renewed) {
		return
	}
	f.lease[name] = l
	if known && !l.Renewed.Equal(old.Renewed) || !known && f.began && l.Version > f.met[name] {
		f.heard(name)
	}
}

// check is called after each decision and each fault.
func (f *invariantChecker) check() {
	w := f.w
	if w.ctl == nil {
		return
	}
	if !f.asking && !f.holding {
		for name, due := range f.due {
			late := w.Time().Sub(due)
			unknown := w.ctl.m.Verdict(name).Unknown
			marked := unknown || clustermodel.NodeReady(w.ctl.nodes[name]) == v1.ConditionUnknown
			if w.Time().Sub(f.begun) > leaseLasts/2+tolerance && f.dead[name] && !marked {
				f.broken("restart", "%s was dead for long when the controller started, %s ago, and is not marked", name,
					w.Time().Sub(f.begun))
			}
			if late > tolerance && !marked {
				f.broken("detection", "%s should have been marked %s ago", name, late)
			}
			if late < 0 && unknown {
				f.broken("alarm", "%s is marked %s too early", name, -late)
			}
		}
	}
	if w.apiDown || w.slow || w.cut[nodeStream] || w.cut[podStream] {
		return
	}
	for name, since := range f.unknown {
		if since.Before(f.quiet) {
			since = f.quiet
		}
		if w.Time().Sub(since) > settled {
			w.eachPod(name, func(p *v1.Pod) {
				if podutil.Ready(p) {
					f.broken("ready pod", "%s has counted as ready for %s on %s, which is Unknown", p.Name, w.Time().Sub(since), name)
				}
			})
		}
	}
}

// taints: a NoExecute taint is written; adds says that the node had none. That is
// never while no node is ready, and never faster than the rate in any zone, over all
// instances of the controller.
func (f *invariantChecker) taints(name string, adds bool) {
	if adds {
		zone := f.w.nodes[name].Labels[v1.LabelTopologyZone]
		last, any := f.grants[zone]
		if gap := f.w.Time().Sub(last); any && gap.Seconds() < 1/rate-1e-6 {
			f.broken("rate", "%s got a NoExecute taint %s after the last one of zone %s", name, gap, zone)
		}
		f.grants[zone] = f.w.Time()
	}
	for other, n := range f.w.ctl.nodes {
		if clustermodel.NodeReady(n) == v1.ConditionTrue && !f.w.ctl.m.Verdict(other).Unknown {
			return
		}
	}
	f.broken("full disruption", "%s gets a NoExecute taint though no node is ready", name)
}

// wrote looks at what the API holds after each write of a node.
func (f *invariantChecker) wrote(n *v1.Node) {
	if clustermodel.NodeReady(n) != v1.ConditionUnknown {
		delete(f.unknown, n.Name)
	} else if _, known := f.unknown[n.Name]; !known {
		f.unknown[n.Name] = f.w.Time()
	}
}

// deletes: a pod goes only while a taint of its node has lasted longer than the
// pod bears it.
func (f *invariantChecker) deletes(p *v1.Pod) {
	if p == nil {
		return
	}
	n := f.w.nodes[p.Spec.NodeName]
	if n == nil || !clustermodel.Evicts(n) {
		f.broken("eviction", "%s was deleted though its node has no such taint", p.Name)
		return
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		for _, bears := range p.Spec.Tolerations {
			if bears.Key == t.Key && bears.TolerationSeconds != nil &&
				!t.TimeAdded.Add(time.Duration(*bears.TolerationSeconds)*time.Second).After(f.w.Time()) {
				return
			}
		}
	}
	f.broken("eviction", "%s was deleted before its time", p.Name)
}

// verdict looks at a world that had long enough to come to rest.
func (f *invariantChecker) verdict() {
	w := f.w
	ready, not := map[string]int{}, map[string]int{}
	anyReady := false
	for _, m := range w.hosts {
		n := w.nodes[m.name]
		if n == nil {
			continue
		}
		zone := n.Labels[v1.LabelTopologyZone]
		if m.Alive() && m.NotReady == 0 {
			ready[zone]++
			anyReady = true
		} else {
			not[zone]++
		}
	}
	for _, m := range w.hosts {
		n := w.nodes[m.name]
		if n == nil {
			if m.Alive() {
				f.broken("convergence", "%s lives and has no Node", m.name)
			}
			continue
		}
		zone := n.Labels[v1.LabelTopologyZone]
		want, good := v1.ConditionTrue, m.Alive() && m.NotReady == 0
		switch {
		case !m.Alive():
			want = v1.ConditionUnknown
		case m.NotReady > 0:
			want = v1.ConditionFalse
		}
		if clustermodel.NodeReady(n) != want {
			f.broken("convergence", "%s is %s, not %s", m.name, clustermodel.NodeReady(n), want)
		}
		if good && len(n.Spec.Taints) > 0 {
			f.broken("convergence", "%s is ready and has taints %v", m.name, n.Spec.Taints)
		}
		stopped := not[zone] > 2 && ready[zone] > 0 && float64(not[zone]) >= 0.55*float64(not[zone]+ready[zone])
		if !good && !stopped && clustermodel.Evicts(n) != anyReady {
			f.broken("convergence", "%s is not ready, another is: %v, and it has taints %v", m.name, anyReady, n.Spec.Taints)
		}
		w.eachPod(m.name, func(p *v1.Pod) { f.atRest(n, p, good) })
	}
}

func (f *invariantChecker) atRest(n *v1.Node, p *v1.Pod, good bool) {
	if podutil.Ready(p) != good {
		f.broken("convergence", "%s counts as ready: %v, on a node that is: %v", p.Name, podutil.Ready(p), good)
	}
	for _, t := range n.Spec.Taints {
		for _, bears := range p.Spec.Tolerations {
			if t.Effect == v1.TaintEffectNoExecute && bears.Key == t.Key && bears.TolerationSeconds != nil &&
				f.w.Time().Sub(t.TimeAdded.Time) > 250*time.Second {
				f.broken("forgotten", "%s bears %s for %d s and is still there after %s", p.Name, t.Key, *bears.TolerationSeconds,
					f.w.Time().Sub(t.TimeAdded.Time))
			}
		}
	}
}
