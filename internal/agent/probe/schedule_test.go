package probe

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/pod"
)

var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func probeOf(period, failures int32) *v1.Probe {
	return &v1.Probe{PeriodSeconds: period, FailureThreshold: failures, SuccessThreshold: 1, TimeoutSeconds: 1}
}

func targetOf(id string, c v1.Container, started time.Time) pod.Target {
	return pod.Target{Pod: &v1.Pod{}, Container: &c, ContainerID: id, StartedAt: started}
}

// step makes all probes due at a moment, with one verdict, and returns them.
func step(s *schedule, now time.Time, v verdict) (made []string) {
	for _, c := range s.Due(now) {
		made = append(made, c.Key.Type.String())
		s.Done(now, c.Key, v, "out")
	}
	return made
}

func TestOrderOfProbes(t *testing.T) {
	s := newSchedule(epoch.Add(-time.Hour))
	c := v1.Container{Name: "app", StartupProbe: probeOf(5, 3), LivenessProbe: probeOf(10, 2), ReadinessProbe: probeOf(10, 2)}
	s.Sync(epoch, "u", []pod.Target{targetOf("c1", c, epoch)})
	result := func() pod.Probe { return s.Results("u")["c1"] }

	if got := step(s, epoch, Failure); fmt.Sprint(got) != "[startup]" || result().Started {
		t.Fatalf("at first %v is probed and the result is %+v", got, result())
	}
	if at, _ := s.Next(); !at.Equal(epoch.Add(5 * time.Second)) {
		t.Fatalf("the next probe is due at %s", at)
	}
	step(s, epoch.Add(5*time.Second), Success)
	if !result().Started || result().Ready {
		t.Fatalf("after the startup probe passed: %+v", result())
	}
	now := epoch.Add(5 * time.Second)
	if got := step(s, now, Success); len(got) != 2 || !result().Ready {
		t.Fatalf("after start %v is probed: %+v", got, result())
	}
	for i := 1; i <= 2; i++ {
		if result().Failed != "" || !result().Ready {
			t.Fatalf("after %d failures: %+v", i-1, result())
		}
		now = now.Add(10 * time.Second)
		step(s, now, Failure)
	}
	if r := result(); r.Failed != "liveness" || r.Output != "out" || r.Ready {
		t.Fatalf("after two failures: %+v", r)
	}
	now = now.Add(10 * time.Second)
	if got := step(s, now, Success); fmt.Sprint(got) != "[readiness]" || result().Failed != "liveness" {
		t.Fatalf("a failed liveness probe must rest until there is another container: %v %+v", got, result())
	}
	s.Sync(now, "u", []pod.Target{targetOf("c2", c, now)})
	if _, there := s.Results("u")["c1"]; there || len(s.entries) != 1 {
		t.Fatalf("the old container is still probed: %v", s.entries)
	}
	s.Sync(now, "u", nil)
	if _, any := s.Next(); any || len(s.targets)+len(s.pods)+len(s.entries) != 0 {
		t.Fatal("something is left of a pod that is gone")
	}
}

func TestErrorsCountAsNothing(t *testing.T) {
	s := newSchedule(epoch.Add(-time.Hour))
	c := v1.Container{Name: "app", LivenessProbe: probeOf(10, 1)}
	s.Sync(epoch, "u", []pod.Target{targetOf("c1", c, epoch)})
	n := 0
	for range 10 {
		n += len(step(s, epoch, Errored))
	}
	if r := s.Results("u")["c1"]; n != 3 || r.Failed != "" {
		t.Fatalf("%d tries and %+v, want 3 tries that change nothing", n, r)
	}
	step(s, epoch.Add(10*time.Second), Failure)
	if s.Results("u")["c1"].Failed != "liveness" {
		t.Fatal("a real failure after errors does not count")
	}
}

// TestRestartedAgent: what was known is kept, and the first round is spread.
func TestRestartedAgent(t *testing.T) {
	s := newSchedule(epoch)
	const n = 1000
	for i := range n {
		tg := targetOf(fmt.Sprint("c", i), v1.Container{Name: "app", StartupProbe: probeOf(10, 3), ReadinessProbe: probeOf(10, 3)},
			epoch.Add(-time.Hour))
		tg.Before = pod.Probe{Started: true, Ready: true}
		s.Sync(epoch, types.UID(fmt.Sprint("u", i)), []pod.Target{tg})
	}
	if r := s.Results("u7")["c7"]; !r.Started || !r.Ready {
		t.Fatalf("a ready container is not after the restart: %+v", r)
	}
	per := map[int]int{}
	for second := range 10 {
		per[second] = len(s.Due(epoch.Add(time.Duration(second)*time.Second + 999*time.Millisecond)))
	}
	for second, k := range per {
		if k < n/20 || k > n/5 {
			t.Errorf("%d of %d probes fall into second %d", k, n, second)
		}
	}
}

func TestSlowChecksSkipTicks(t *testing.T) {
	s := newSchedule(epoch.Add(-time.Hour))
	s.Sync(epoch, "u", []pod.Target{targetOf("c1", v1.Container{Name: "app", ReadinessProbe: probeOf(2, 3)}, epoch)})
	c := s.Due(epoch)[0]
	if again := s.Due(epoch.Add(4 * time.Second)); len(again) != 0 {
		t.Fatal("a probe runs twice at a time")
	}
	s.Done(epoch.Add(5*time.Second), c.Key, Success, "")
	if at, _ := s.Next(); !at.Equal(epoch.Add(6 * time.Second)) {
		t.Fatalf("the next tick is at %s", at)
	}
}

func BenchmarkSchedule(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newSchedule(epoch)
			for i := range n {
				s.Sync(epoch, types.UID(fmt.Sprint(i)),
					[]pod.Target{targetOf(fmt.Sprint("c", i), v1.Container{ReadinessProbe: probeOf(10, 3)}, epoch.Add(-time.Hour))})
			}
			b.ReportAllocs()
			for b.Loop() {
				at, _ := s.Next()
				for _, c := range s.Due(at) {
					s.Done(at, c.Key, Success, "")
				}
			}
		})
	}
}

// TestReadinessAtStart: a container that needs a moment to listen does not wait
// for its next period, and one that was ready once is asked on its ticks alone.
func TestReadinessAtStart(t *testing.T) {
	s := newSchedule(epoch.Add(-time.Hour))
	c := v1.Container{Name: "app", ReadinessProbe: probeOf(10, 3)}
	s.Sync(epoch, "u", []pod.Target{targetOf("c1", c, epoch)})
	var asked []time.Duration
	for {
		at, _ := s.Next()
		if at.Sub(epoch) > 30*time.Second {
			break
		}
		asked = append(asked, at.Sub(epoch))
		step(s, at, Failure)
	}
	if got, want := fmt.Sprint(asked), "[0s 250ms 750ms 1.75s 3.75s 7.75s 10s 20s 30s]"; got != want {
		t.Errorf("asked after %s, want %s", got, want)
	}
	s.Sync(epoch, "u", []pod.Target{targetOf("c2", c, epoch)})
	step(s, epoch, Failure)
	step(s, epoch.Add(250*time.Millisecond), Success)
	step(s, epoch.Add(10*time.Second), Failure)
	if at, _ := s.Next(); at.Sub(epoch) != 20*time.Second || !s.Results("u")["c2"].Ready {
		t.Errorf("after it was ready: asked next after %s, %+v", at.Sub(epoch), s.Results("u"))
	}
}
