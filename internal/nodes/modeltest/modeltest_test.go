package modeltest

import (
	"flag"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	count = flag.Int("schedules", 10_000, "random schedules to try")
	one   = flag.Uint64("seed", 0, "try the schedule of this seed alone")
)

// play runs one schedule and returns the rule it broke, "" for none.
func play(seed uint64, bug string) string {
	w := newCluster(seed, bug)
	w.run(time.Duration(20+w.r.IntN(60)) * time.Second)
	for range 4 + w.r.IntN(12) {
		w.fault()
		if w.ref.fault != "" {
			return w.ref.fault
		}
		w.run(w.upTo(90 * time.Second))
	}
	w.heal()
	w.run(15 * time.Minute)
	w.ref.check()
	if w.ref.fault == "" {
		w.ref.verdict()
	}
	return w.ref.fault
}

// Whatever happens: a silent node is marked within its grace, no one else is; one
// that was dead for long when the controller started, within half a lease;
// NoExecute taints come no faster than their rate and never while no node is
// ready; no pod goes before its time or after its taint; none counts as ready on
// a dead node; and when faults stop, all is as it should be.
func TestSchedules(t *testing.T) {
	if *one != 0 {
		if fault := play(*one, ""); fault != "" {
			t.Error(fault)
		}
		return
	}
	n := uint64(*count)
	if testing.Short() {
		n = min(n, 1000)
	}
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1); seed <= n && !t.Failed(); seed = next.Add(1) {
				if fault := play(seed, ""); fault != "" {
					t.Errorf("-seed %d: %s", seed, fault)
				}
			}
		})
	}
	wg.Wait()
}

// Each rule can be broken: a mistake made on purpose is found by it.
func TestSeededBugsAreFound(t *testing.T) {
	for bug, rule := range map[string]string{
		"late": "detection", "fast": "rate", "late word": "rate", "taint at once": "full disruption", "believe the cache": "eviction",
		"impatient":        "eviction",
		"leave pods ready": "ready pod", "forget recovery": "convergence", "forget pods": "forgotten",
		"forget the past": "restart", "judge at once": "alarm",
	} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			other := map[string]int{}
			for seed := uint64(1); seed <= 2000; seed++ {
				got, _, _ := strings.Cut(play(seed, bug), ":")
				if got == rule {
					return
				}
				other[got]++
			}
			t.Errorf("2000 schedules with the bug %q did not break the rule %q: %v", bug, rule, other)
		})
	}
}
