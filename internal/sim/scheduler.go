package sim

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/schedule/place"
)

// placing is what one placement costs the scheduler.
const placing = time.Millisecond

// Back-off of pods that fit nowhere.
const (
	retryFirst = time.Second
	retryMost  = 10 * time.Second
)

// class is a set of pods that are alike to the scheduler. Where one does not
// fit none does, so a class waits as one: a simulation of 100,000 pods that
// fit nowhere need not find that out 100,000 times.
type class struct {
	key       string
	pods      []*pod
	priority  int32
	parked    bool
	tries     int
	notBefore time.Duration
	retryAt   time.Duration // a planned retry, 0: none
	// why is what the scheduler last said.
	why string
}

// scheduler is the shell of internal/control/schedule in virtual time.
type scheduler struct {
	w       *simulation
	snap    *place.Snapshot
	classes []*class
	byKey   map[string]*class
	busy    bool
}

// add puts a pod up for placement.
func (s *scheduler) add(p *pod) {
	key := p.set.class
	if p.set.spec.Kind == kindDaemonSet {
		key += p.obj.Name // each is for a node of its own
	}
	c := s.byKey[key]
	if c == nil {
		c = &class{key: key, priority: p.set.spec.Priority}
		s.byKey[key] = c
		s.classes = append(s.classes, c)
	}
	c.pods = append(c.pods, p)
	s.trigger()
}

// trigger starts the loop unless it runs.
func (s *scheduler) trigger() {
	if s.busy || s.w.down > 0 {
		return
	}
	s.busy = true
	s.w.After(placing, s.turn)
}

// turn places one pod: of those that may be tried the most important, and of
// these the first that came.
func (s *scheduler) turn() {
	s.busy = false
	if s.w.down > 0 {
		return
	}
	var best *class
	keep := s.classes[:0]
	for _, c := range s.classes {
		for len(c.pods) > 0 && (c.pods[0].gone || c.pods[0].node != nil || c.pods[0].obj.DeletionTimestamp != nil) {
			c.pods = c.pods[1:]
		}
		if len(c.pods) == 0 {
			delete(s.byKey, c.key)
			continue
		}
		keep = append(keep, c)
		if len(c.pods) > 0 && !c.parked && (best == nil || c.priority > best.priority) {
			best = c
		}
	}
	clear(s.classes[len(keep):])
	s.classes = keep
	if best == nil {
		return
	}
	s.place(best, best.pods[0])
	s.trigger()
}

func (s *scheduler) place(c *class, p *pod) {
	w := s.w
	if p.parsed == nil {
		if err := p.set.parse(p); err != nil {
			c.parked, c.why = true, err.Error()
			return
		}
	}
	d := s.snap.Place(p.parsed, place.Options{NoPreemption: true})
	if d.Node == "" {
		c.parked, c.why = true, d.Message()
		c.notBefore = w.Now + min(retryFirst<<min(c.tries, 10), retryMost)
		c.tries++
		w.notes.unschedulable(w, p.set, c.why)
		return
	}
	c.pods, c.tries = c.pods[1:], 0
	s.snap.Assume(p.parsed, d.Node)
	n := w.byName[d.Node]
	w.api.do(writeBinding, func() {
		if p.gone || p.obj.DeletionTimestamp != nil {
			s.snap.RemovePod(p.obj.UID)
			return
		}
		if n.deleted {
			s.snap.RemovePod(p.obj.UID)
			s.add(p)
			return
		}
		w.bind(p, n)
		w.refreshPod(p)
		w.notify(func() { w.eviction.consider(p) })
		w.After(w.sc.Cluster.WatchLatency.D(), func() { w.syncPod(p) })
	})
}

// bind puts a pod on a node.
func (w *simulation) bind(p *pod, n *node) {
	p.node = n
	p.obj.Spec.NodeName = n.obj.Name
	n.pods = append(n.pods, p)
}

func (s *scheduler) seeNode(n *node) {
	helps := s.snap.NodeHelps(n.obj)
	s.snap.SetNode(n.obj)
	if helps {
		s.roomMade()
	}
}

func (s *scheduler) podGone(p *pod) {
	s.snap.RemovePod(p.obj.UID)
	s.roomMade()
}

// roomMade lets parked classes try again, not before their back-off is over.
func (s *scheduler) roomMade() {
	for _, c := range s.classes {
		if !c.parked || c.retryAt > 0 {
			continue
		}
		c.retryAt = max(c.notBefore, s.w.Now) + 1
		s.w.At(c.retryAt, func() {
			c.parked, c.retryAt = false, 0
			s.trigger()
		})
	}
}

// listAgain picks up the pods that became unbound while no one listened.
func (s *scheduler) listAgain() {
	known := map[*pod]bool{}
	for _, c := range s.classes {
		for _, p := range c.pods {
			known[p] = true
		}
	}
	for _, p := range s.w.pods {
		if p != nil && p.node == nil && p.obj.DeletionTimestamp == nil && !known[p] && !s.snap.Placed(p.obj.UID) {
			s.add(p)
		}
	}
	s.roomMade()
	s.trigger()
}

// tolerations are what admission gives a pod that says nothing of its own.
func (s *settings) tolerations(own []v1.Toleration, seconds *int64) []v1.Toleration {
	out := append([]v1.Toleration(nil), own...)
	for _, d := range []struct {
		key     string
		seconds int64
	}{{v1.TaintNodeNotReady, s.notReadySeconds}, {v1.TaintNodeUnreachable, s.unreachableSeconds}} {
		has := false
		for _, t := range own {
			has = has || (t.Key == d.key || t.Key == "") && (t.Effect == v1.TaintEffectNoExecute || t.Effect == "")
		}
		if !has {
			n := d.seconds
			if seconds != nil {
				n = *seconds
			}
			out = append(out, v1.Toleration{Key: d.key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
				TolerationSeconds: &n})
		}
	}
	return out
}
