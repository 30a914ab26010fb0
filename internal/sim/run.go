package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/control/schedule/place"
)

// points is how many samples a run takes.
const points = 720

// Result is what a run tells.
type Result struct {
	Name     string   `json:"name"`
	Seed     uint64   `json:"seed"`
	Duration duration `json:"duration"`
	Flags    []string `json:"flags"`
	Summary  summary  `json:"summary"`
	Timeline []*entry `json:"timeline"`
	Step     duration `json:"step"`
	Series   []sample `json:"series"`
}

// Run plays a scenario. The context ends it early, with the context's error.
func Run(ctx context.Context, sc *Scenario) (*Result, error) {
	w, err := newSimulation(sc)
	if err != nil {
		return nil, err
	}
	if err := w.build(); err != nil {
		return nil, err
	}
	return w.play(ctx)
}

func newSimulation(sc *Scenario) (*simulation, error) {
	set, err := sc.settings()
	if err != nil {
		return nil, err
	}
	w := &simulation{sc: sc, set: set, random: rand.New(rand.NewPCG(sc.Seed, 1)), byName: map[string]*node{},
		notes:     recorder{open: map[string]*entry{}},
		longReady: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(clustermodel.Epoch)}}}
	w.api.w = w
	w.health = healthShell{w: w, urgent: pool{size: healthMarkers}, rest: pool{size: healthFollowers}, unready: pool{size: healthSilencers}}
	w.eviction = evictor{w: w, pool: pool{size: evictors}, marked: map[*pod]time.Time{}}
	w.scheduler = scheduler{w: w, snap: place.NewSnapshot(), byKey: map[string]*class{}}
	w.gc = podGC{w: w, missing: map[*node]time.Duration{}}
	w.workers = pool{size: creators}
	return w, nil
}

func (w *simulation) play(ctx context.Context) (*Result, error) {
	nodes, pods := len(w.nodes), len(w.pods)
	w.startRenewals()
	w.health.start()
	var failed error
	for i := range w.sc.Events {
		e := &w.sc.Events[i]
		w.At(e.At.D(), func() {
			if err := w.happens(e); err != nil && failed == nil {
				failed = fmt.Errorf("scenario: events[%d]: %w", i, err)
			}
		})
	}
	end := w.sc.Duration.D()
	step := max((end / points).Round(time.Second), time.Second)
	w.After(0, func() { w.sample(step) })
	for n := 0; ; n++ {
		task, ok := w.Next(end)
		if !ok {
			break
		}
		task.Do()
		if failed != nil {
			return nil, failed
		}
		if n%10000 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	w.Now = end
	w.notes.pass(end)
	r := &Result{Name: w.sc.Name, Seed: w.sc.Seed, Duration: w.sc.Duration, Timeline: w.notes.entries, Step: duration(step),
		Series: w.notes.samples}
	for name, value := range w.sc.Flags {
		r.Flags = append(r.Flags, fmt.Sprintf("%s=%v", name, value))
	}
	slices.Sort(r.Flags)
	slices.SortStableFunc(r.Timeline, func(a, b *entry) int { return int(a.At - b.At) })
	r.Summary = w.summary(nodes, pods)
	return r, nil
}

// sample notes how things stand, and plans the next look.
func (w *simulation) sample(step time.Duration) {
	r := &w.notes
	s := sample{At: duration(w.Now), Nodes: r.nodeCounts(), Pods: r.podCounts(), Evictions: r.evictions}
	from, to := int(max(w.Now-step, 0)/time.Second), int(w.Now/time.Second)
	sum := 0
	for _, list := range w.api.writes {
		for i := from; i < min(to, len(list)); i++ {
			sum += int(list[i])
		}
	}
	s.Writes = float64(sum) / step.Seconds()
	for _, z := range w.health.monitor.Zones(w.Time()) {
		s.Zones = append(s.Zones, zoneSample{Zone: zoneName(z.Name), State: z.State.String(), Rate: z.Rate, Waiting: z.Waiting})
	}
	slices.SortFunc(s.Zones, func(a, b zoneSample) int { return strings.Compare(a.Zone, b.Zone) })
	r.samples = append(r.samples, s)
	w.After(step, func() { w.sample(step) })
}
