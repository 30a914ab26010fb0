package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/nodes/health"
)

// choose lists the nodes that a selection names, in their order.
func (w *simulation) choose(s *selection) ([]*node, error) {
	var out []*node
	for _, n := range w.nodes {
		if n.deleted || s.Zone != "" && n.obj.Labels[v1.LabelTopologyZone] != s.Zone || s.Rack != "" && n.obj.Labels[rackLabel] != s.Rack ||
			len(s.Names) > 0 && !slices.Contains(s.Names, n.obj.Name) {
			continue
		}
		fits := true
		for k, v := range s.Labels {
			fits = fits && n.obj.Labels[k] == v
		}
		if fits {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no node fits %s", s)
	}
	want := len(out)
	if s.Percent > 0 {
		want = max(1, int(float64(len(out))*s.Percent/100+0.5))
	}
	if s.Count > 0 {
		want = min(want, s.Count)
	}
	picked := make([]*node, 0, want)
	for i := range want {
		picked = append(picked, out[i*len(out)/want])
	}
	return picked, nil
}

// String is the selection in words.
func (s *selection) String() string {
	var parts []string
	if s.Percent > 0 {
		parts = append(parts, fmt.Sprintf("%g %% of", s.Percent))
	}
	if s.Count > 0 {
		parts = append(parts, fmt.Sprintf("%d of", s.Count))
	}
	switch {
	case s.Rack != "":
		parts = append(parts, "rack "+s.Rack)
	case s.Zone != "":
		parts = append(parts, "zone "+s.Zone)
	case len(s.Names) > 0:
		parts = append(parts, strings.Join(s.Names, ", "))
	case len(s.Labels) > 0:
		parts = append(parts, "nodes labelled "+strings.ReplaceAll(metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: s.Labels}),
			",", ", "))
	default:
		parts = append(parts, "all nodes")
	}
	return strings.Join(parts, " ")
}

// change applies a fault or its end to a node, and does what follows on it.
func (w *simulation) change(n *node, apply func(*node)) {
	if n.deleted {
		return
	}
	hadPower, talked := n.Off == 0, n.talks(w.Now)
	apply(n)
	switch {
	case hadPower && n.Off > 0:
		for _, p := range n.pods {
			p.run++
			p.running, p.ending = false, false
			w.refreshPod(p)
		}
	case !hadPower && n.Off == 0:
		n.back = w.Now
		n.Booted = w.Now + w.vary(w.sc.Cluster.Boot.D(), 0.2)
		w.At(n.Booted, func() { w.boots(n) })
	}
	switch talks := n.talks(w.Now); {
	case talked && !talks && n.silent < 0:
		n.silent = w.Now
	case !talked && talks:
		n.back = w.Now
		w.After(time.Duration(w.random.Float64()*float64(reconnectWithin)), func() { w.speaksAgain(n) })
	}
	w.refreshNode(n)
}

// boots is an agent's first moment after its host started: its pods are not
// running, and it says so before it starts them.
func (w *simulation) boots(n *node) {
	if !n.Works(w.Now) {
		return
	}
	for _, p := range n.pods {
		if p.ready() {
			w.api.do(writePodStatus, func() {
				if !p.gone && !p.running {
					p.setReady(v1.ConditionFalse, w.Time())
					w.refreshPod(p)
				}
			})
		}
	}
	w.speaksAgain(n)
}

// inflict begins a fault on nodes and plans its end.
func (w *simulation) inflict(what string, f *fault, nodes []*node, begin, end func(*node)) {
	text := fmt.Sprintf("%s %s (%s)", what, &f.selection, hit(nodes))
	if f.For > 0 {
		text += " for " + f.For.D().String()
	}
	w.notes.fact(w, "event", text)
	for _, n := range nodes {
		start := w.Now
		if f.Stagger > 0 {
			start += time.Duration(w.random.Float64() * float64(f.Stagger))
		}
		faults := n.faults
		w.At(start, func() {
			if n.faults != faults {
				return
			}
			w.change(n, begin)
			if f.For > 0 {
				w.After(f.For.D(), func() {
					if n.faults == faults {
						w.change(n, end)
					}
				})
			}
		})
	}
}

func hit(nodes []*node) string {
	pods := 0
	for _, n := range nodes {
		for _, p := range n.pods {
			if p.state < podTerminating {
				pods++
			}
		}
	}
	return count(len(nodes), "node") + ", " + count(pods, "pod")
}

// happens begins one event of the scenario.
func (w *simulation) happens(e *clusterEvent) error {
	var nodes []*node
	if s := e.sel(); s != nil {
		var err error
		if nodes, err = w.choose(s); err != nil {
			return err
		}
	}
	switch {
	case e.Kill != nil:
		w.inflict("power lost:", e.Kill, nodes, func(n *node) { n.Off++ }, func(n *node) { n.Off-- })
	case e.Cut != nil:
		w.inflict("network to the API cut:", e.Cut, nodes, func(n *node) { n.Cut++ }, func(n *node) { n.Cut-- })
	case e.Pause != nil:
		w.inflict("agents hang:", e.Pause, nodes, func(n *node) { n.Paused++ }, func(n *node) { n.Paused-- })
	case e.NotReady != nil:
		say := func(by int) func(*node) {
			return func(n *node) {
				n.NotReady += by
				w.post(n)
			}
		}
		w.inflict("not ready by their own word:", e.NotReady, nodes, say(1), say(-1))
	case e.Slow != nil:
		w.inflict("heartbeats only every "+e.Slow.Every.D().String()+":", &e.Slow.fault, nodes,
			func(n *node) { n.RenewEvery = e.Slow.Every.D() }, func(n *node) { n.RenewEvery = 0 })
	case e.Flap != nil:
		w.flap(e.Flap, nodes)
	case e.Heal != nil:
		w.heal(e.Heal, nodes)
	case e.Delete != nil:
		w.notes.fact(w, "event", fmt.Sprintf("Node objects deleted, hosts gone: %s (%s)", e.Delete, hit(nodes)))
		for _, n := range nodes {
			w.deleteNode(n)
		}
	case e.OutOfService != nil:
		w.notes.fact(w, "event", fmt.Sprintf("taint out-of-service put on %s (%s)", e.OutOfService, hit(nodes)))
		for _, n := range nodes {
			w.api.do(writeNodeTaints, func() { w.writeNode(n, addTaint(v1.TaintNodeOutOfService, v1.TaintEffectNoExecute, w.Time())) })
		}
	case e.Upgrade != nil:
		w.upgrade(e.Upgrade, nodes)
	case e.RestartControllers != nil:
		w.restartControllers(e.RestartControllers.For.D())
	case e.API != nil:
		w.faultAPI(e.API)
	case e.StallWatch != nil:
		w.stallWatch(e.StallWatch.For.D())
	}
	return nil
}

func addTaint(key string, effect v1.TaintEffect, now time.Time) func(*v1.Node) {
	return func(o *v1.Node) {
		at := metav1.NewTime(now.Truncate(time.Second))
		o.Spec.Taints = append(slices.Clone(o.Spec.Taints), v1.Taint{Key: key, Effect: effect, TimeAdded: &at})
	}
}

func (w *simulation) heal(s *selection, nodes []*node) {
	w.notes.fact(w, "event", fmt.Sprintf("healed: %s (%s)", s, hit(nodes)))
	for _, n := range nodes {
		if n.Faulty() {
			said := n.NotReady > 0
			n.faults++
			w.change(n, func(n *node) { n.Heal() })
			if said {
				w.post(n)
			}
		}
	}
}

func (w *simulation) flap(f *flap, nodes []*node) {
	w.notes.fact(w, "event", fmt.Sprintf("network flaps, %s down and %s up: %s (%s) for %s", f.Down.D(), f.Up.D(), &f.selection, hit(nodes),
		f.For.D()))
	for _, n := range nodes {
		faults := n.faults
		end := w.sc.Duration.D()
		if f.For > 0 {
			end = w.Now + f.For.D()
		}
		var down, up func()
		down = func() {
			if n.faults != faults || w.Now >= end {
				return
			}
			w.change(n, func(n *node) { n.Cut++ })
			w.After(w.vary(f.Down.D(), 0.33), up)
		}
		up = func() {
			if n.faults != faults {
				return
			}
			w.change(n, func(n *node) { n.Cut-- })
			w.After(w.vary(f.Up.D(), 0.33), down)
		}
		w.After(time.Duration(w.random.Float64()*float64(f.Up)), down)
	}
}

func (w *simulation) deleteNode(n *node) {
	w.change(n, func(n *node) { n.Off++ })
	w.api.do(writeNodeStatus, func() {
		n.deleted = true
		w.refreshNode(n)
		w.notify(func() {
			w.health.observe(health.Event{Kind: health.NodeGone, Node: n.obj.Name})
			w.scheduler.snap.RemoveNode(n.obj.Name)
			w.gc.nodeGone(n)
		})
	})
}

func (w *simulation) restartControllers(d time.Duration) {
	w.notes.fact(w, "event", "controllers and scheduler stop for "+d.String())
	w.down++
	w.health.stop()
	w.eviction.stop()
	w.workers.reset()
	w.After(d, func() {
		if w.down--; w.down == 0 {
			w.notes.fact(w, "event", "controllers and scheduler are back")
			w.health.start()
			w.listAgain()
		}
	})
}

func (w *simulation) stallWatch(d time.Duration) {
	w.notes.fact(w, "event", "the controllers' watches go stale for "+d.String()+"; the API works")
	w.stalled++
	w.health.deaf = true
	w.After(d, func() {
		if w.stalled--; w.stalled == 0 {
			w.notes.fact(w, "event", "the controllers' watches work again")
			w.health.deaf = false
			w.health.list()
			w.listAgain()
		}
	})
}

// listAgain is what every controller but health does with a fresh list.
func (w *simulation) listAgain() {
	for _, n := range w.nodes {
		if !n.deleted {
			w.eviction.seeNode(n)
			w.scheduler.seeNode(n)
			w.gc.seeNode(n)
		} else {
			w.gc.nodeGone(n)
		}
	}
	for _, s := range w.sets {
		s.listAgain()
	}
	w.scheduler.listAgain()
}

func (w *simulation) faultAPI(f *api) {
	if f.Down {
		w.notes.fact(w, "event", "the API is down for "+f.For.D().String())
		w.api.down++
		w.After(w.api.latency(), func() {
			if w.api.down > 0 { // the watch of the leases broke and cannot be begun again
				w.health.observe(health.Event{Kind: health.Unanswered})
			}
		})
		w.After(f.For.D(), func() {
			w.api.down--
			w.notes.fact(w, "event", "the API is back")
		})
		return
	}
	w.notes.fact(w, "event", fmt.Sprintf("every API request takes %s longer for %s", f.Latency.D(), f.For.D()))
	w.api.extra += f.Latency.D()
	w.After(f.For.D(), func() {
		w.api.extra -= f.Latency.D()
		w.notes.fact(w, "event", "the API is as fast as before")
	})
}
