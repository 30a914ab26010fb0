package sim

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/nodes/health"
)

// nodeState is how a node stands, the worst that holds.
type nodeState uint8

const (
	nodeReady nodeState = iota
	nodeCordoned
	nodeUnnoticed // the API says ready, but no one is there
	nodeNotReady  // it says so itself
	nodeUnknown   // marked Unknown
	nodeEvicting  // and tainted NoExecute
	nodeNowhere   // deleted
)

// podState is how a pod stands in the eyes of those who send it requests.
type podState uint8

const (
	podServing     podState = iota
	podDead                 // the API says ready, but it does not run
	podNotReady             // starting, or no one vouches for it
	podTerminating          // deleted, waiting for its agent
	podPending              // on no node
	podNowhere              // gone, or done
)

func (w *simulation) nodeState(n *node) nodeState {
	if n.deleted {
		return nodeNowhere
	}
	for _, t := range n.obj.Spec.Taints {
		if t.Effect == v1.TaintEffectNoExecute && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable) {
			return nodeEvicting
		}
	}
	for _, c := range n.obj.Status.Conditions {
		if c.Type != v1.NodeReady {
			continue
		}
		switch {
		case c.Status == v1.ConditionUnknown:
			return nodeUnknown
		case c.Status == v1.ConditionFalse:
			return nodeNotReady
		}
	}
	switch {
	case n.silent >= 0:
		return nodeUnnoticed
	case n.obj.Spec.Unschedulable:
		return nodeCordoned
	}
	return nodeReady
}

func (p *pod) stands() podState {
	ready := p.ready()
	switch {
	case p.gone || p.done:
		return podNowhere
	case p.obj.DeletionTimestamp != nil:
		return podTerminating
	case p.node == nil:
		return podPending
	case ready && p.running:
		return podServing
	case ready:
		return podDead
	}
	return podNotReady
}

// refreshNode keeps the books about a node that may stand differently now.
func (w *simulation) refreshNode(n *node) {
	r := &w.notes
	was, is := n.state, w.nodeState(n)
	if was == is {
		return
	}
	n.state = is
	r.nodes[was]--
	r.nodes[is]++
	if is <= nodeCordoned && was > nodeCordoned && was != nodeNowhere {
		if was >= nodeNotReady {
			r.burst(w, "back", zoneOf(n), n.obj.Name)
		}
		if n.back >= 0 {
			r.nodeBack = append(r.nodeBack, w.Now-n.back)
			n.back = -1
		}
	}
}

// refreshPod keeps the books about a pod that may stand differently now.
func (w *simulation) refreshPod(p *pod) {
	r := &w.notes
	was, is := p.state, p.stands()
	if was == is {
		return
	}
	r.pass(w.Now)
	p.state = is
	r.pods[was]--
	r.pods[is]++
	switch {
	case p.set.spec.Kind == kindJob: // works, and serves no one
	case was == podServing:
		p.set.lost = append(p.set.lost, w.Now)
		r.lost++
	case is == podServing && len(p.set.lost) > 0:
		r.podBack = append(r.podBack, w.Now-p.set.lost[0])
		p.set.lost = p.set.lost[1:]
		r.lost--
	}
}

// recorder keeps what happened.
type recorder struct {
	nodes [nodeNowhere + 1]int
	pods  [podNowhere + 1]int
	lost  int // pods that stopped to serve and are not made up for

	passed            time.Duration
	lostFor, deadFor  time.Duration // sums over pods
	detected, tainted []time.Duration
	nodeBack, podBack []time.Duration

	falseUnknown, evictions, needless, drained, gced int

	entries []*entry
	open    map[string]*entry
	samples []sample
}

// pass adds up what lasted until now.
func (r *recorder) pass(now time.Duration) {
	d := now - r.passed
	r.passed = now
	r.lostFor += d * time.Duration(r.lost)
	r.deadFor += d * time.Duration(r.pods[podDead])
}

// entry is one line of the timeline: a fact, or a burst of equal ones.
type entry struct {
	At    duration `json:"at"`
	Until duration `json:"until,omitempty"`
	// Kind is event, health, pods or nodes.
	Kind string `json:"kind"`
	Zone string `json:"zone,omitempty"`
	What string `json:"what"`
	// Count and the first few Names are those of a burst; Times is how often it
	// happened, if that is more often than once each.
	Count int      `json:"count,omitempty"`
	Times int      `json:"times,omitempty"`
	Names []string `json:"names,omitempty"`

	happened int
	seen     map[string]bool
}

// burstGap ends a burst: the next of its kind begins another line. It is more
// than the pause between two taints at the secondary rate.
const burstGap = 2 * time.Minute

// bursts are the things that happen to many at once: what one line says.
var bursts = map[string]struct{ kind, thing, verb string }{
	"unknown":    {"nodes", "node", "marked Unknown"},
	"false":      {"nodes", "node", "marked Unknown though alive"},
	"tainted":    {"nodes", "node", "tainted NoExecute"},
	"freed":      {"nodes", "node", "freed from the NoExecute taint"},
	"back":       {"nodes", "node", "Ready again"},
	"evicted":    {"pods", "pod", "deleted from tainted nodes"},
	"collected":  {"pods", "pod", "of nodes that are gone removed"},
	"confirm":    {"health", "question", "to the API whether silence is silence"},
	"unschedule": {"pods", "attempt", "to place a pod failed"},
}

func (r *recorder) fact(w *simulation, kind, text string) {
	r.entries = append(r.entries, &entry{At: duration(w.Now), Kind: kind, What: text})
}

func (r *recorder) burst(w *simulation, what, zone, name string) *entry {
	key := what + "/" + zone
	e := r.open[key]
	if e == nil || w.Now-max(e.At, e.Until).D() > burstGap {
		b := bursts[what]
		e = &entry{At: duration(w.Now), Kind: b.kind, Zone: zone, What: b.verb, seen: map[string]bool{}}
		r.open[key] = e
		r.entries = append(r.entries, e)
	}
	e.happened++
	if name == "" || !e.seen[name] {
		e.seen[name] = true
		e.Count++
		if name != "" && len(e.Names) < 3 {
			e.Names = append(e.Names, name)
		}
	}
	if e.happened > e.Count {
		e.Times = e.happened
	}
	if w.Now > e.At.D() {
		e.Until = duration(w.Now)
	}
	return e
}

func zoneOf(n *node) string { return zoneName(health.ViewOf(n.obj).Zone) }

// zoneName is a zone as a scenario names it.
func zoneName(key string) string {
	if name := strings.TrimPrefix(health.ZoneName(key), "/"); name != "" {
		return name
	}
	return "(none)"
}

func (r *recorder) unknown(w *simulation, n *node) {
	if n.silent < 0 {
		r.falseUnknown++
		r.burst(w, "false", zoneOf(n), n.obj.Name)
		return
	}
	if !n.detected {
		n.detected = true
		r.detected = append(r.detected, w.Now-n.silent)
	}
	r.burst(w, "unknown", zoneOf(n), n.obj.Name)
}

// taints notes which of the NoExecute taints of health came or went.
func (r *recorder) taints(w *simulation, n *node, before *v1.Node) {
	was, is := health.ViewOf(before), health.ViewOf(n.obj)
	had, has := was.NotReady || was.Unreachable, is.NotReady || is.Unreachable
	switch {
	case has && !had:
		if n.silent >= 0 {
			r.tainted = append(r.tainted, w.Now-n.silent)
		}
		r.burst(w, "tainted", zoneOf(n), n.obj.Name)
	case had && !has:
		r.burst(w, "freed", zoneOf(n), n.obj.Name)
	}
}

func (r *recorder) evicted(w *simulation, p *pod) {
	r.evictions++
	if p.running {
		r.needless++
	}
	r.burst(w, "evicted", zoneOf(p.node), p.obj.Name)
}

func (r *recorder) collected(w *simulation, p *pod) {
	if !p.gone {
		r.gced++
		r.burst(w, "collected", zoneOf(p.node), p.obj.Name)
	}
}

func (r *recorder) unschedulable(w *simulation, s *workload, why string) {
	e := r.burst(w, "unschedule", "", "")
	e.Names = []string{s.name + ": " + why}
}

// decision notes those of the Monitor's decisions that concern more than one
// node; the others show when they are written.
func (r *recorder) decision(w *simulation, d health.Decision) {
	c := d.Cause
	switch d.Kind {
	case health.ZoneChanged:
		z := c.Zone
		text := fmt.Sprintf("zone %s is now in %s: %d ready, %d not", zoneName(z.Name), z.State, z.Ready, z.NotReady)
		if z.State != health.Normal {
			text += fmt.Sprintf("; %s", rate(z.Rate))
		}
		e := &entry{At: duration(w.Now), Kind: "health", Zone: zoneName(z.Name), What: text}
		r.entries = append(r.entries, e)
	case health.Suspend, health.Resume, health.StaleWatch:
		if !d.AtStart {
			r.fact(w, "health", d.Text())
		}
	case health.Hold:
		r.fact(w, "health", fmt.Sprintf("%s: %s past their deadline, no heartbeat for %s; %s", d.Text(), count(c.Expired, "node"), c.Quiet,
			c.Error))
	case health.Release:
		r.fact(w, "health", d.Text())
	case health.Confirm:
		r.burst(w, "confirm", "", "")
	}
}

// rate says how fast nodes of a zone may be tainted NoExecute.
func rate(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "no node may be tainted NoExecute"
	case perSecond >= 1:
		return fmt.Sprintf("%.3g nodes a second may be tainted NoExecute", perSecond)
	}
	return fmt.Sprintf("one node each %s may be tainted NoExecute", time.Duration(float64(time.Second)/perSecond).Round(time.Second))
}

// sample is how things stood at one time; rates are over the step before it.
type sample struct {
	At        duration     `json:"at"`
	Nodes     nodeCounts   `json:"nodes"`
	Pods      podCounts    `json:"pods"`
	Evictions int          `json:"evictions"`
	Writes    float64      `json:"writesPerSecond"`
	Zones     []zoneSample `json:"zones"`
}

// nodeCounts are nodes by state.
type nodeCounts struct {
	Ready     int `json:"ready"`
	Cordoned  int `json:"cordoned"`
	Unnoticed int `json:"unnoticed"`
	NotReady  int `json:"notReady"`
	Unknown   int `json:"unknown"`
	Evicting  int `json:"evicting"`
}

// podCounts are pods by state; Lost are those that stopped to serve and that
// no other makes up for yet.
type podCounts struct {
	Serving     int `json:"serving"`
	Dead        int `json:"dead"`
	NotReady    int `json:"notReady"`
	Terminating int `json:"terminating"`
	Pending     int `json:"pending"`
	Lost        int `json:"lost"`
}

// zoneSample is a zone's NoExecute rate, in nodes a second, and queue.
type zoneSample struct {
	Zone    string  `json:"zone"`
	State   string  `json:"state"`
	Rate    float64 `json:"rate"`
	Waiting int     `json:"waiting"`
}

func (r *recorder) nodeCounts() nodeCounts {
	return nodeCounts{r.nodes[nodeReady], r.nodes[nodeCordoned], r.nodes[nodeUnnoticed], r.nodes[nodeNotReady], r.nodes[nodeUnknown],
		r.nodes[nodeEvicting]}
}

func (r *recorder) podCounts() podCounts {
	return podCounts{r.pods[podServing], r.pods[podDead], r.pods[podNotReady], r.pods[podTerminating], r.pods[podPending], r.lost}
}
