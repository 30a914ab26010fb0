package faulttest

import (
	"flag"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

var (
	count = flag.Int("schedules", 300, "random schedules to try")
	first = flag.Uint64("first", 1, "the first seed")
	bug   = flag.String("bug", "", "make this mistake in the schedule of the seed")
	one   = flag.Uint64("seed", 0, "try the schedule of this seed alone")
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // informers tell of each broken watch
	// Its second handler spaces errors in a clock of the whole process: begun in
	// the year it is, it would put an informer of a bubble (there it is 2000) to
	// sleep for decades.
	utilruntime.ErrorHandlers = nil
	goleak.VerifyTestMain(m)
}

// inBubble plays a schedule in virtual time. A goroutine that outlives it is a
// failure of its own.
func inBubble(t *testing.T, seed uint64, bug string) (fault, trace string) {
	synctest.Test(t, func(*testing.T) { fault, trace = play(seed, bug) })
	return fault, trace
}

// Whatever happens between the controllers and the API: silent nodes are marked
// in time and no one else is; NoExecute taints come no faster than their rate
// and never while no node is ready; no pod goes before its time or after its
// taint, none counts as ready on a dead node; no one else's taint is touched,
// no range is given twice; the API is not asked the same again and again; and
// when faults stop, all is as it should be.
func TestFaults(t *testing.T) {
	if *one != 0 {
		fault, trace := inBubble(t, *one, *bug)
		t.Logf("%s\nbroke: %q", trace, fault)
		return
	}
	n := *count
	if testing.Short() {
		n = min(n, 50)
	}
	for seed := *first; seed < *first+uint64(n); seed++ {
		if fault, trace := inBubble(t, seed, ""); fault != "" {
			t.Fatalf("%s\n-seed %d: %s", trace, seed, fault)
		}
	}
}

// Each of these mistakes of a shell, made on purpose, is found by its rule.
func TestSeededBugsAreFound(t *testing.T) {
	const tries = 2500 // the rarest takes 250 on average
	for bug, rules := range map[string]string{
		"write over others": "foreign", "leave pods ready": "ready pod", "believe the cache": "eviction", "forget ranges": "range",
		"impatient": "alarm", "taint anyway": "full disruption", "go on": "partial disruption", "shorten tolerations": "early",
		"forget recovery": "convergence", "forget the past": "restart", "forget pods": "forgotten", "no grace": "orphan",
		"forget answers": "hammering", "late": "detection", "fast": "rate", "put back": "rate",
		"forget failures": "ready pod convergence forgotten detection",
	} {
		t.Run(bug, func(t *testing.T) {
			other := map[string]int{}
			for seed := range uint64(tries) {
				fault, _ := inBubble(t, seed+1, bug)
				got, _, _ := strings.Cut(fault, ":")
				if got != "" && strings.Contains(rules, got) {
					return
				}
				other[got]++
			}
			t.Errorf("%d schedules with the bug %q broke none of the rules %q: %v", tries, bug, rules, other)
		})
	}
}
