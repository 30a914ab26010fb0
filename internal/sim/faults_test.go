package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plain is a cluster of three zones of ten nodes with 60 pods that tolerate a bad
// node for 30 s.
const plain = `
name: plain
duration: 20m
cluster:
  zones: [{name: a, nodes: 10, racks: 2}, {name: b, nodes: 10}, {name: c, nodes: 10}]
workloads: [{name: web, kind: Deployment, replicas: 60, tolerationSeconds: 30}]
events:
`

func (r *Result) says(text string) bool {
	for _, e := range r.Timeline {
		if strings.Contains(e.line(), text) {
			return true
		}
	}
	return false
}

// Each fault does to nodes and pods what it does in a real cluster. A pod that runs
// on though its node cannot be heard is deleted needlessly; one on a dead host is
// not.
func TestWhatEachFaultDoes(t *testing.T) {
	for name, c := range map[string]struct {
		event                        string
		marked, alive, tainted       int
		evicted, needless, dead, end bool
	}{
		"a slow reboot":            {event: "kill: {names: [a-1], for: 20s}", marked: 1, tainted: 1, evicted: true, dead: true},
		"a long loss of power":     {event: "kill: {names: [a-1], for: 10m}", marked: 1, tainted: 1, evicted: true, dead: true},
		"power gone for good":      {event: "kill: {names: [a-1]}", marked: 1, tainted: 1, evicted: true, dead: true, end: true},
		"a short cut":              {event: "cut: {names: [a-1], for: 30s}"},
		"a long cut":               {event: "cut: {names: [a-1], for: 5m}", marked: 1, tainted: 1, evicted: true, needless: true},
		"an agent that hangs":      {event: "pause: {names: [a-1], for: 5m}", marked: 1, tainted: 1, evicted: true, needless: true},
		"a node that is not ready": {event: "notReady: {names: [a-1], for: 5m}", tainted: 0, evicted: true, needless: true},
		"slow but in time":         {event: "slow: {names: [a-1], every: 40s, for: 5m}"},
		"too slow":                 {event: "slow: {names: [a-1], every: 3m, for: 10m}", alive: 3, evicted: true, needless: true},
		"a network that flaps":     {event: "flap: {names: [a-1], down: 20s, up: 20s, for: 10m}"},
		"an API that is away":      {event: "api: {down: true, for: 3m}"},
		"a slow API":               {event: "api: {latency: 3s, for: 5m}"},
		"watches that go stale":    {event: "stallWatch: {for: 3m}"},
		"controllers that restart": {event: "restartControllers: {for: 2m}"},
	} {
		r := play(t, plain+"- at: 2m\n  "+c.event+"\n")
		s := &r.Summary
		if s.Detection.Count != c.marked || s.FalseUnknown < min(c.alive, 1) || s.FalseUnknown > c.alive {
			t.Errorf("%s: %d nodes marked, %d though alive; want %d, %d", name, s.Detection.Count, s.FalseUnknown, c.marked, c.alive)
		}
		if s.Tainting.Count != c.tainted || (s.Evictions > 0) != c.evicted || (s.Needless > 0) != c.needless {
			t.Errorf("%s: %d nodes tainted, %d pods deleted, %d of them needlessly", name, s.Tainting.Count, s.Evictions, s.Needless)
		}
		if (s.DeadPodTime > 0) != c.dead {
			t.Errorf("%s: pods called ready while dead for %s", name, s.DeadPodTime.D())
		}
		if ready := s.EndNodes.Ready; (ready < 30) != c.end || s.EndPods.Serving != 60 || s.Unrecovered != 0 {
			t.Errorf("%s: at the end %d nodes ready, %+v", name, ready, s.EndPods)
		}
		if s.Detection.Max.D() > 51*time.Second {
			t.Errorf("%s: marked after %s", name, s.Detection.Max.D())
		}
	}
}

// A node that dies while the controllers, the API or the watches are away is found
// out when they are back, and no one else is marked.
func TestNodesThatDieUnseen(t *testing.T) {
	for name, c := range map[string]struct {
		event string
		most  time.Duration // from the death to the mark
	}{
		"controllers away": {"restartControllers: {for: 90s}", 90*time.Second + 21*time.Second},
		"API away":         {"api: {down: true, for: 90s}", 90*time.Second + 50*time.Second + 10*time.Second},
		"watches stale":    {"stallWatch: {for: 4m}", 51 * time.Second},
	} {
		r := play(t, plain+"- at: 2m\n  "+c.event+"\n- at: 125s\n  kill: {names: [b-3]}\n")
		if s := &r.Summary; s.Detection.Count != 1 || s.FalseUnknown != 0 || s.Detection.Max.D() > c.most || s.EndPods.Serving != 60 {
			t.Errorf("%s: %d marked after %s, %d though alive; want 1 within %s; %+v", name, s.Detection.Count, s.Detection.Max.D(),
				s.FalseUnknown,
				c.most, s.EndPods)
		}
	}
}

// When no node is ready the fault may be the controllers' own: no taint stays,
// no pod is deleted, and all goes on when some node is back.
func TestAllZonesDisrupted(t *testing.T) {
	r := play(t, plain+"- at: 2m\n  cut: {for: 5m}\n")
	if s := &r.Summary; s.Evictions != 0 || s.EndNodes.Ready != 30 {
		t.Errorf("%d pods deleted, %d nodes ready at the end", s.Evictions, s.EndNodes.Ready)
	}
	for _, s := range r.Series { // the first of a zone to be silent may have been tainted before the last
		if at := s.At.D(); at > 200*time.Second && at < 7*time.Minute && s.Nodes.Evicting > 0 {
			t.Fatalf("at %s %d nodes have a NoExecute taint though none is ready", at, s.Nodes.Evicting)
		}
	}
	if !r.says("all zones are disrupted") || !r.says("resumed NoExecute taints") {
		t.Error("the timeline does not tell of the suspension and its end")
	}
}

// A lost zone is emptied at one node each ten seconds; a small zone with more than
// the threshold not ready is left alone.
func TestZoneRates(t *testing.T) {
	whole := play(t, plain+"- at: 2m\n  kill: {zone: a}\n")
	if s := &whole.Summary; s.Tainting.Count != 10 || s.Tainting.Max.D()-s.Tainting.P50.D() < 40*time.Second {
		t.Errorf("a zone of 10: %d tainted, the median after %s, the last after %s; want 10, 10 s apart", s.Tainting.Count,
			s.Tainting.P50.D(),
			s.Tainting.Max.D())
	}
	part := play(t, plain+"- at: 2m\n  kill: {zone: a, count: 7}\n")
	if s := &part.Summary; s.Tainting.Count >= 7 || !part.says("PartialDisruption") {
		t.Errorf("7 of 10 nodes of a small zone: %d tainted", s.Tainting.Count)
	}
	for _, sample := range part.Series {
		for _, z := range sample.Zones {
			if z.State == "PartialDisruption" && z.Rate != 0 {
				t.Fatalf("at %s zone %s has rate %g in partial disruption", sample.At.D(), z.Zone, z.Rate)
			}
		}
	}
}

// Healing ends a fault, and what was planned for its end is void.
func TestHealVoidsWhatWasPlanned(t *testing.T) {
	r := play(t, plain+`
- at: 2m
  cut: {names: [a-1], for: 10m}
- at: 3m
  heal: {names: [a-1]}
- at: 11m
  cut: {names: [a-1], for: 4m}
`)
	if s := &r.Summary; s.Detection.Count != 2 || s.EndNodes.Ready != 30 {
		t.Errorf("marked %d times, want 2: the end of the first cut is no end of the second", s.Detection.Count)
	}
	for _, e := range r.Timeline {
		if strings.Contains(e.What, "Ready again") && e.At.D() > 12*time.Minute && e.At.D() < 15*time.Minute {
			t.Errorf("Ready again at %s, within the second cut", e.At.D())
		}
	}
}

// A staggered fault begins on each node at a time of its own.
func TestStagger(t *testing.T) {
	begun := func(stagger string) (first, last time.Duration) {
		r := play(t, plain+"- at: 2m\n  kill: {zone: b, count: 5"+stagger+"}\n")
		for _, s := range r.Series {
			if down := 30 - s.Nodes.Ready; down > 0 && first == 0 {
				first = s.At.D()
			}
			if 30-s.Nodes.Ready == 5 && last == 0 {
				last = s.At.D()
			}
		}
		return first, last
	}
	if first, last := begun(""); last != first {
		t.Errorf("at once: the first down at %s, the last at %s", first, last)
	}
	if first, last := begun(", stagger: 3m"); last-first < 30*time.Second || last-first > 3*time.Minute {
		t.Errorf("staggered over 3 m: the first down at %s, the last at %s", first, last)
	}
}

// A selection takes nodes evenly over those that fit.
func TestSelect(t *testing.T) {
	sc, err := Parse([]byte(strings.Replace(plain, "{name: b, nodes: 10}", "{name: b, nodes: 10, labels: {disk: ssd}}", 1) +
		"- at: 1m\n  heal: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newSimulation(sc)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.build(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s          selection
		want, text string
	}{
		{selection{Zone: "a", Count: 3}, "a-1 a-4 a-7", "3 of zone a"},
		{selection{Zone: "a", Percent: 20}, "a-1 a-6", "20 % of zone a"},
		{selection{Zone: "a", Percent: 1}, "a-1", "1 % of zone a"}, // at least one
		{selection{Rack: "a-r2"}, "a-2 a-4 a-6 a-8 a-10", "rack a-r2"},
		{selection{Names: []string{"c-2", "b-1"}}, "b-1 c-2", "c-2, b-1"},
		{selection{Labels: map[string]string{"disk": "ssd"}, Count: 2}, "b-1 b-6", "2 of nodes labelled disk=ssd"},
		{selection{Zone: "z"}, "", "zone z"},
	} {
		nodes, err := w.choose(&c.s)
		var names []string
		for _, n := range nodes {
			names = append(names, n.obj.Name)
		}
		if got := strings.Join(names, " "); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v; want %q", c.text, got, err, c.want)
		}
		if got := c.s.String(); got != c.text {
			t.Errorf("%q in words, want %q", got, c.text)
		}
	}
}

// A rolling reboot takes no more nodes at a time than its batch, keeps to budgets,
// and ends.
func TestRollingReboot(t *testing.T) {
	budget := strings.Replace(plain, "tolerationSeconds: 30", "maxUnavailable: 3", 1)
	budget = strings.Replace(budget, "duration: 20m", "duration: 2h", 1)
	r := play(t, budget+"- at: 1m\n  upgrade: {zone: a, batch: 2}\n")
	s := &r.Summary
	if s.Drained < 10 || s.EndNodes.Ready != 30 || s.EndPods.Serving != 60 || !r.says("rolling reboot of zone a is done") {
		t.Errorf("%d pods drained, %d nodes ready, %+v", s.Drained, s.EndNodes.Ready, s.EndPods)
	}
	for _, sample := range r.Series {
		if out := 30 - sample.Nodes.Ready; out > 2 || sample.Pods.Lost > 3 {
			t.Fatalf("at %s %d nodes are out and %d pods missing, want at most 2 and 3", sample.At.D(), out, sample.Pods.Lost)
		}
	}
	under := play(t, budget+"- at: 1m\n  upgrade: {zone: a, batch: 10, noDrain: true}\n")
	if s := &under.Summary; s.Drained != 0 || s.EndNodes.Ready != 30 || s.EndPods.Serving != 60 || s.DeadPodTime == 0 {
		t.Errorf("without drain: %d drained, pods called ready while dead for %s, %+v", s.Drained, s.DeadPodTime.D(), s.EndPods)
	}
}

// A budget that has nothing to give holds a drain back until its time is over.
func TestDrainThatABudgetHoldsBack(t *testing.T) {
	r := play(t, `
name: held
duration: 30m
cluster:
  cpu: '1'
  zones: [{name: a, nodes: 3}]
workloads: [{name: web, kind: Deployment, replicas: 4, cpu: 600m, maxUnavailable: 1}]
events:
- at: 1m
  upgrade: {names: [a-1], batch: 1, drainTimeout: 5m}
`)
	if s := &r.Summary; s.Drained != 0 || !r.says("1 node rebooted with pods that their budgets held back") {
		t.Errorf("%d pods drained though the fourth never ran", s.Drained)
	}
}

// A run that its caller gives up ends with the caller's error.
func TestRunEndsWithItsContext(t *testing.T) {
	sc, err := Parse([]byte(plain + "- at: 1m\n  heal: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, sc); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// At each moment every node and every pod is counted once.
func TestSamplesAddUp(t *testing.T) {
	r := play(t, plain+"- at: 2m\n  kill: {zone: a, count: 4, for: 6m}\n"+
		"- at: 4m\n  cut: {zone: b, count: 2, for: 3m}\n- at: 5m\n  notReady: {zone: c, count: 1, for: 5m}\n")
	for _, s := range r.Series {
		n, p := s.Nodes, s.Pods
		if sum := n.Ready + n.Cordoned + n.Unnoticed + n.NotReady + n.Unknown + n.Evicting; sum != 30 {
			t.Fatalf("at %s %d nodes are counted: %+v", s.At.D(), sum, n)
		}
		// A deleted pod and the one in its place may be there together.
		if sum := p.Serving + p.Dead + p.NotReady + p.Pending; sum > 60 || sum+p.Lost < 60 || p.Serving+p.Lost < 60 {
			t.Fatalf("at %s: %+v", s.At.D(), p)
		}
	}
}

// Agents write what agents write: a lease each ten seconds, a status each five
// minutes.
func TestSteadyWrites(t *testing.T) {
	r := play(t, plain+"- at: 19m\n  heal: {}\n")
	w := r.Summary.Writes
	if leases := w["leases"]; leases < 30*20*6*95/100 || leases > 30*20*6 {
		t.Errorf("%d lease renewals of 30 nodes in 20 m", leases)
	}
	if posts := w["node status"]; posts < 30*3 || posts > 30*5 {
		t.Errorf("%d statuses of 30 nodes in 20 m", posts)
	}
	for kind, n := range w {
		if kind != "leases" && kind != "node status" {
			t.Errorf("%d writes of %s in a quiet cluster", n, kind)
		}
	}
	slow := play(t, strings.Replace(plain, "events:", "flags: {node-lease-duration-seconds: 80}\nevents:", 1)+"- at: 19m\n  heal: {}\n")
	if a, b := w["leases"], slow.Summary.Writes["leases"]; b < a*45/100 || b > a*55/100 {
		t.Errorf("leases of twice the duration are renewed %d times, those of the default %d times", b, a)
	}
}

// A live cluster that cannot be simulated is refused with the reason.
func TestImportErrors(t *testing.T) {
	sc, err := ParseEvents([]byte("name: ours\nduration: 5m\nevents:\n- at: 1m\n  heal: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sc.Import(nil, nil); err == nil || !strings.Contains(err.Error(), "no nodes") {
		t.Errorf("without nodes: %v", err)
	}
	yes := true
	odd := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "odd", UID: "1",
		OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", UID: "2", Controller: &yes}}}}
	live, err := sc.Import([]*v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}, []*v1.Pod{odd})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), live); err == nil || !strings.Contains(err.Error(), "shop/odd") {
		t.Errorf("a pod that its StatefulSet cannot have: %v", err)
	}
}

// eventAt is an event of a scenario.
func eventAt(minute int, what string) string { return fmt.Sprintf("- at: %dm\n  %s\n", minute, what) }
