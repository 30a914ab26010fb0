package pressure

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/agent/config"
)

// decider is the core, or a broken one.
type decider interface {
	Step(now time.Time, in input) decision
	Reclaimed(Signal)
	Remove(types.UID)
}

// TestProperties plays random shortages and checks what must never happen.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		if wrong := playShortages(r, func(set settings) decider { return newCore(set) }); wrong != "" {
			r.Fatal(wrong)
		}
	})
}

// evicting is a core with a mistake in how it evicts.
type evicting struct {
	*core
	change func(e *evicting, in input, d *decision)
	pods   []PodUsage
}

func (e *evicting) Step(now time.Time, in input) decision {
	if in.Pods != nil {
		e.pods = in.Pods
	}
	d := e.core.Step(now, in)
	e.change(e, in, &d)
	return d
}

// TestPropertiesFindSeededMistakes: each property catches the mistake it is
// there for.
func TestPropertiesFindSeededMistakes(t *testing.T) {
	other := func(e *evicting, d *decision, wanted func(*v1.Pod) bool) {
		for _, pod := range e.pods {
			if len(d.Evict) > 0 && wanted(pod.Pod) {
				d.Evict[0].Pod = pod.Pod
			}
		}
	}
	for name, change := range map[string]func(e *evicting, in input, d *decision){
		"evicts a critical pod": func(e *evicting, _ input, d *decision) {
			other(e, d, func(p *v1.Pod) bool { return p.Spec.Priority != nil && *p.Spec.Priority >= criticalPriority })
		},
		"evicts a static pod": func(e *evicting, _ input, d *decision) {
			other(e, d, func(p *v1.Pod) bool { return len(p.Annotations) > 0 })
		},
		"evicts two at once": func(_ *evicting, _ input, d *decision) {
			d.Evict = append(d.Evict, d.Evict...)
		},
		"does not wait for its victim": func(e *evicting, _ input, _ *decision) { e.victim = "" },
		"evicts before it reclaims": func(e *evicting, _ input, d *decision) {
			if d.Reclaim != "" {
				e.Reclaimed(d.Reclaim)
				d.Reclaim, d.NeedPods = "", true
			}
		},
		"evicts although reclaiming sufficed": func(e *evicting, in input, d *decision) {
			for _, threshold := range e.set.Thresholds {
				reading := in.Readings[threshold.Signal]
				if len(d.Evict) == 0 && !d.NeedPods && d.Reclaim == "" && len(e.pods) > 0 &&
					reading.Available >= threshold.Limit.Of(reading.Capacity) {
					d.Evict = []Eviction{{Pod: e.pods[0].Pod, Signal: string(threshold.Signal)}}
				}
			}
		},
		"hurries whom it likes": func(e *evicting, _ input, d *decision) {
			if len(e.pods) > 0 {
				d.ForceKill = e.pods[0].Pod
			}
		},
		"hides the pressure": func(_ *evicting, _ input, d *decision) { d.Pressure.Memory = false },
	} {
		t.Run(name, func(t *testing.T) {
			found := false
			rapid.Check(t, func(r *rapid.T) {
				wrong := playShortages(r, func(set settings) decider { return &evicting{core: newCore(set), change: change} })
				found = found || wrong != ""
			})
			if !found {
				t.Error("no property was violated")
			}
		})
	}
}

// fixture is what happens outside of the core, and what must hold of it.
type fixture struct {
	r          *rapid.T
	core       decider
	thresholds []threshold
	dedicated  bool
	pods       map[types.UID]PodUsage

	now       time.Time
	readings  Readings
	crossedAt map[Signal]time.Time
	reclaimed map[Signal]bool // since the last victim was gone
	victim    types.UID
	victimAt  time.Time
	hurried   bool
}

// playShortages returns the first property that did not hold, or "".
func playShortages(r *rapid.T, make func(settings) decider) string {
	w := newFixture(r, make)
	for range rapid.IntRange(1, 60).Draw(r, "steps") {
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(r, "ms")) * time.Millisecond)
		for _, threshold := range w.thresholds {
			w.read(threshold, rapid.Int64Range(0, 600).Draw(r, string(threshold.Signal)))
		}
		if wrong := w.pass(); wrong != "" {
			return wrong
		}
		if w.victim != "" && rapid.Bool().Draw(r, "gone") {
			w.core.Remove(w.victim)
			delete(w.pods, w.victim)
			w.victim = ""
			clear(w.reclaimed)
		}
	}
	return ""
}

func newFixture(r *rapid.T, make func(settings) decider) *fixture {
	w := &fixture{r: r, now: epoch, pods: map[types.UID]PodUsage{}, readings: Readings{}, crossedAt: map[Signal]time.Time{},
		reclaimed: map[Signal]bool{}}
	for _, signal := range []Signal{MemoryAvailable, NodeFSAvailable, ImageFSAvailable, PIDAvailable} {
		threshold := threshold{Signal: signal,
			Limit: config.Threshold{Quantity: *resource.NewQuantity(rapid.Int64Range(1, 400).Draw(r, "limit"), resource.BinarySI)}}
		if rapid.Bool().Draw(r, "soft") {
			threshold.Soft, threshold.Grace = true, time.Duration(rapid.IntRange(1, 60).Draw(r, "grace"))*time.Second
		}
		threshold.Reclaim.Quantity = *resource.NewQuantity(rapid.Int64Range(0, 100).Draw(r, "reclaim"), resource.BinarySI)
		w.thresholds = append(w.thresholds, threshold)
	}
	w.dedicated = rapid.Bool().Draw(r, "dedicated")
	w.core = make(settings{Thresholds: w.thresholds, Transition: time.Minute, DedicatedImageFS: w.dedicated})
	for i := range rapid.IntRange(0, 8).Draw(r, "pods") {
		priority := rapid.SampledFrom([]int32{0, 100, criticalPriority}).Draw(r, "priority")
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))},
			Spec: v1.PodSpec{Priority: &priority}}
		if rapid.IntRange(0, 4).Draw(r, "static") == 0 {
			pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}
		w.pods[pod.UID] = PodUsage{Pod: pod, Measured: rapid.Bool().Draw(r, "measured"), Memory: rapid.Int64Range(0, 100).Draw(r, "memory")}
	}
	return w
}

// read notes what is available now, and since when it is too little.
func (w *fixture) read(threshold threshold, available int64) {
	w.readings[threshold.Signal] = reading{Available: available, Capacity: 1000}
	if available >= threshold.Limit.Of(1000)+threshold.Reclaim.Of(1000) {
		delete(w.crossedAt, threshold.Signal)
		delete(w.reclaimed, threshold.Signal)
	} else if _, was := w.crossedAt[threshold.Signal]; !was && available < threshold.Limit.Of(1000) {
		w.crossedAt[threshold.Signal] = w.now
	}
}

// pass steps the core until it has nothing more to do now.
func (w *fixture) pass() string {
	var usage []PodUsage
	tried := map[Signal]bool{}
	for range 6 {
		decision := w.core.Step(w.now, input{Readings: w.readings, Pods: usage})
		switch {
		case decision.Reclaim != "":
			if tried[decision.Reclaim] {
				return fmt.Sprintf("reclaims twice for %s in one pass", decision.Reclaim)
			}
			tried[decision.Reclaim], w.reclaimed[decision.Reclaim] = true, true
			w.core.Reclaimed(decision.Reclaim)
			if rapid.Bool().Draw(w.r, "suffices") {
				for _, threshold := range w.thresholds {
					if threshold.Signal == decision.Reclaim {
						w.read(threshold, 1000)
					}
				}
			}
		case decision.NeedPods:
			usage = []PodUsage{}
			for _, pod := range w.pods {
				usage = append(usage, pod)
			}
		default:
			return w.judge(decision)
		}
	}
	return "the core does not come to an end"
}

// judgeForceKill: only the one that is waited for is hurried, once, and only when
// half of what a hard memory threshold keeps is gone.
func (w *fixture) judgeForceKill(pod *v1.Pod) string {
	if pod == nil {
		return ""
	}
	if pod.UID != w.victim || w.hurried {
		return fmt.Sprintf("hurries %s, waited for is %s, hurried before: %v", pod.UID, w.victim, w.hurried)
	}
	w.hurried = true
	for _, threshold := range w.thresholds {
		if threshold.Signal == MemoryAvailable && (threshold.Soft || w.readings[MemoryAvailable].Available >= threshold.Limit.Of(1000)/2) {
			return "hurries without need"
		}
	}
	return ""
}

func (w *fixture) judge(decision decision) string {
	if wrong := w.judgeForceKill(decision.ForceKill); wrong != "" {
		return wrong
	}
	if len(decision.Evict) > 1 {
		return fmt.Sprintf("evicts %d pods for one shortage", len(decision.Evict))
	}
	for _, eviction := range decision.Evict {
		if wrong := w.judgeEviction(eviction); wrong != "" {
			return wrong
		}
		w.victim, w.victimAt, w.hurried = eviction.Pod.UID, w.now, false
		clear(w.reclaimed) // also when it hangs: the next try begins again
	}
	for signal, on := range map[Signal]bool{MemoryAvailable: decision.Pressure.Memory, NodeFSAvailable: decision.Pressure.Disk,
		PIDAvailable: decision.Pressure.PID} {
		if _, short := w.crossedAt[signal]; short && !on {
			return fmt.Sprintf("%s is short and no condition says so", signal)
		}
	}
	return ""
}

func (w *fixture) judgeEviction(eviction Eviction) string {
	signal := Signal(eviction.Signal)
	if *eviction.Pod.Spec.Priority >= criticalPriority || len(eviction.Pod.Annotations) > 0 {
		return "evicts a critical or static pod"
	}
	if w.victim != "" && w.now.Sub(w.victimAt) < victimPatience {
		return fmt.Sprintf("evicts %s while %s is being ended", eviction.Pod.Name, w.victim)
	}
	since, short := w.crossedAt[signal]
	if !short {
		return fmt.Sprintf("evicts for %s, which is not short", signal)
	}
	for _, threshold := range w.thresholds {
		if threshold.Signal == signal && w.now.Sub(since) < threshold.Grace {
			return fmt.Sprintf("evicts %v after crossing, grace is %v", w.now.Sub(since), threshold.Grace)
		}
	}
	reclaimable := signal == ImageFSAvailable || signal == NodeFSAvailable && !w.dedicated
	if reclaimable && !w.reclaimed[signal] {
		return fmt.Sprintf("evicts for %s without having reclaimed anything", signal)
	}
	return ""
}
