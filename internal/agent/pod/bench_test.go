package pod

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

// BenchmarkNext is the cost of one look at a running pod with two containers.
func BenchmarkNext(b *testing.B) {
	w := newFixture(b)
	w.begin(testPod(v1.RestartPolicyAlways, "app", "side"))
	w.settle()
	b.ReportAllocs()
	for b.Loop() {
		next(w.spec, &w.obs, w.now)
	}
}

// BenchmarkStatusPatch is the cost of finding that nothing is to be written,
// and of writing one change.
func BenchmarkStatusPatch(b *testing.B) {
	w := newFixture(b)
	w.begin(testPod(v1.RestartPolicyAlways, "app", "side"))
	w.settle()
	b.Run("same", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if p, err := statusPatch("u1", w.plan.Status, w.plan.Status); p != nil || err != nil {
				b.Fatal(string(p), err)
			}
		}
	})
	b.Run("changed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if p, err := statusPatch("u1", v1.PodStatus{}, w.plan.Status); p == nil || err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPodLife is the agent's own share of a pod's life: the runtime takes
// no time. start is from the moment the agent is told to the PATCH that says
// Running, end from the deletion to the pod's removal from the API; requests
// are those between bind and Running.
func BenchmarkPodLife(b *testing.B) {
	for _, crowd := range []int{0, 100} {
		b.Run(fmt.Sprintf("beside %d pods", crowd), func(b *testing.B) {
			a, stop := startAgent(b, func(*Config, *fake.Runtime) {})
			defer stop()
			running, gone := make(chan string, 16), make(chan string, 16)
			var mu sync.Mutex
			requests := map[string]int{} // by pod, until it runs
			a.api.PrependReactor("patch", "pods", func(act ktesting.Action) (bool, apiruntime.Object, error) {
				p := act.(ktesting.PatchAction)
				mu.Lock()
				requests[p.GetName()]++
				mu.Unlock()
				if saysRunning(p.GetPatch()) {
					running <- p.GetName()
				}
				return false, nil, nil
			})
			a.api.PrependReactor("delete", "pods", func(act ktesting.Action) (bool, apiruntime.Object, error) {
				gone <- act.(ktesting.DeleteAction).GetName()
				return false, nil, nil
			})
			for i := range crowd {
				a.create(fmt.Sprint("crowd", i))
				<-running
			}
			var starts, ends []time.Duration
			asked := 0
			for b.Loop() {
				began := time.Now()
				p := a.create(fmt.Sprint("p", len(starts)))
				<-running
				starts = append(starts, time.Since(began))
				mu.Lock()
				asked = max(asked, requests[p.Name])
				mu.Unlock()
				began = time.Now()
				last := p.DeepCopy()
				at := metav1.Now()
				last.DeletionTimestamp, last.DeletionGracePeriodSeconds = &at, new(int64)
				a.m.Set(last, false)
				<-gone
				ends = append(ends, time.Since(began))
				a.m.Remove(p.UID)
			}
			report := func(what string, took []time.Duration) {
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, what+"-p99-ms")
			}
			report("start", starts)
			report("end", ends)
			b.ReportMetric(float64(asked), "requests/pod")
			if asked > 3 {
				b.Errorf("%d API requests from bind to Running, at most 3 are allowed", asked)
			}
		})
	}
}

// saysRunning: a status patch writes the phase Running.
func saysRunning(patch []byte) bool {
	var p v1.Pod
	return json.Unmarshal(patch, &p) == nil && p.Status.Phase == v1.PodRunning
}
