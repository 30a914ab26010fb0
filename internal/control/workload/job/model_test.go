package job

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world holds a Job's pods and plays the kubelet; the controller in it may
// crash between any two writes.
type world struct {
	r                 *rand.Rand
	j                 *batchv1.Job
	pods              []*v1.Pod
	now               time.Time
	made              int
	succeeded, failed int // outcomes that happened to pods that count
	counts            map[types.UID]bool
	failEvery         int
}

func (w *world) perform(p Plan, n int) {
	step := func() bool { n--; return n >= 0 }
	if !step() {
		return
	}
	w.j.Status = p.Status
	for _, f := range p.Finished {
		if !step() {
			return
		}
		w.untrack(f.UID)
	}
	for _, d := range p.Delete {
		if !step() {
			return
		}
		pod := w.find(d.UID)
		if pod == nil {
			continue
		}
		if p.Uncount && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			w.counts[pod.UID] = false
			w.untrack(pod.UID)
		} else if p.Uncount {
			w.untrack(pod.UID)
		}
		if pod.DeletionTimestamp == nil {
			t := metav1.NewTime(w.now)
			pod.DeletionTimestamp = &t
		}
	}
	for _, c := range p.Create {
		if !step() {
			return
		}
		pod := newPod(w.j, c)
		w.made++
		pod.Name = fmt.Sprint("p", w.made)
		pod.UID, pod.CreationTimestamp = types.UID(pod.Name), metav1.NewTime(w.now)
		pod.Status.Phase = v1.PodPending
		w.counts[pod.UID] = true
		w.pods = append(w.pods, pod)
	}
}

func (w *world) find(uid types.UID) *v1.Pod {
	for _, p := range w.pods {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

func (w *world) untrack(uid types.UID) {
	if p := w.find(uid); p != nil {
		p.Finalizers = nil
	}
}

// kubelet moves one pod on: starts it, ends it, removes it.
func (w *world) kubelet(quiet bool) {
	w.now = w.now.Add(time.Duration(w.r.IntN(5)) * time.Second)
	if len(w.pods) == 0 {
		return
	}
	i := w.r.IntN(len(w.pods))
	p := w.pods[i]
	over := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
	switch {
	case p.DeletionTimestamp != nil && !over:
		w.end(p, v1.PodFailed)
	case p.DeletionTimestamp != nil && len(p.Finalizers) == 0:
		w.pods = append(w.pods[:i], w.pods[i+1:]...)
	case p.Status.Phase == v1.PodPending:
		p.Status.Phase, p.Spec.NodeName = v1.PodRunning, "n"
	case p.Status.Phase == v1.PodRunning && w.failEvery > 0 && w.r.IntN(w.failEvery) == 0:
		w.end(p, v1.PodFailed)
	case p.Status.Phase == v1.PodRunning:
		w.end(p, v1.PodSucceeded)
	case !quiet && over && w.r.IntN(20) == 0 && p.DeletionTimestamp == nil: // someone deletes an ended pod
		t := metav1.NewTime(w.now)
		p.DeletionTimestamp = &t
	}
}

func (w *world) end(p *v1.Pod, phase v1.PodPhase) {
	p.Status.Phase = phase
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(w.now)}}}}
	if !w.counts[p.UID] {
		return
	}
	if phase == v1.PodSucceeded {
		w.succeeded++
	} else {
		w.failed++
	}
}

func TestEveryOutcomeIsCountedOnce(t *testing.T) {
	for range 400 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 7))
		indexed, limit := batchv1.NonIndexedCompletion, int32(1000)
		n, par := int32(1+r.IntN(8)), int32(1+r.IntN(4))
		failEvery := r.IntN(6)
		if r.IntN(2) == 0 {
			indexed = batchv1.IndexedCompletion
		}
		if failEvery == 1 {
			limit = int32(r.IntN(4)) // every pod fails
		}
		w := &world{r: r, now: time.Unix(1000, 0), counts: map[types.UID]bool{}, failEvery: failEvery,
			j: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", UID: "j"}, Spec: batchv1.JobSpec{Completions: &n, Parallelism: &par,
				CompletionMode: &indexed, BackoffLimit: &limit,
				Template: v1.PodTemplateSpec{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever,
					Containers: []v1.Container{{Name: "c"}}}}}}}
		for step := 0; !Over(w.j); step++ {
			if step > 30000 {
				t.Fatalf("seed %d: never ends: %+v", seed, w.j.Status)
			}
			if step < 300 && r.IntN(50) == 0 {
				par = int32(r.IntN(5))
				w.j.Spec.Parallelism = &par
			} else if step == 300 {
				par = 2
			}
			p := Make(Input{Job: w.j.DeepCopy(), Pods: clone(w.pods), Now: w.now})
			w.perform(p, r.IntN(2+len(p.Finished)+len(p.Delete)+len(p.Create)))
			if p.Wake > 0 && r.IntN(3) == 0 {
				w.now = w.now.Add(p.Wake)
			}
			active := 0
			for _, pod := range w.pods {
				if pod.DeletionTimestamp == nil && pod.Status.Phase != v1.PodFailed && pod.Status.Phase != v1.PodSucceeded {
					active++
				}
			}
			if len(p.Create) > 0 && active > int(par) {
				t.Fatalf("seed %d step %d: %d pods active, parallelism %d", seed, step, active, par)
			}
			w.kubelet(false)
		}
		st := &w.j.Status
		if has(st, batchv1.JobComplete) && st.Succeeded < n {
			t.Fatalf("seed %d: complete with %d of %d", seed, st.Succeeded, n)
		}
		if indexed == batchv1.NonIndexedCompletion && int(st.Succeeded) != w.succeeded {
			t.Fatalf("seed %d: counted %d successes, %d happened", seed, st.Succeeded, w.succeeded)
		}
		if int(st.Failed) != w.failed {
			t.Fatalf("seed %d (indexed %v): counted %d failures, %d happened: %+v", seed, indexed, st.Failed, w.failed, st)
		}
		for range 10 { // nothing is left that would keep pods from going
			w.perform(Make(Input{Job: w.j, Pods: clone(w.pods), Now: w.now}), 1000)
		}
		for _, p := range w.pods {
			if tracked(p) {
				t.Fatalf("seed %d: pod %s keeps its finalizer after the end", seed, p.Name)
			}
		}
	}
}

// TestShrinkingEndsWhatIsNotAskedFor: when completions and parallelism shrink
// together, pods of indexes beyond them go, however little the others have done.
func TestShrinkingEndsWhatIsNotAskedFor(t *testing.T) {
	indexed, two := batchv1.IndexedCompletion, int32(2)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", UID: "j"}, Spec: batchv1.JobSpec{Completions: &two, Parallelism: &two,
		CompletionMode: &indexed}}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		for waiting := range 3 {
			var pods []*v1.Pod
			for age, index := range order {
				pod := newPod(j, podCreation{Index: index})
				pod.Name, pod.UID = fmt.Sprint("p", index), types.UID(fmt.Sprint(index))
				pod.CreationTimestamp = metav1.Unix(int64(1000-age), 0)
				pod.Status.Phase, pod.Spec.NodeName = v1.PodRunning, "n"
				if index == waiting {
					pod.Status.Phase, pod.Spec.NodeName = v1.PodPending, ""
				}
				pods = append(pods, pod)
			}
			p := Make(Input{Job: j, Pods: pods, Now: time.Unix(2000, 0)})
			if len(p.Delete) != 1 || p.Delete[0].Name != "p2" {
				t.Errorf("youngest last %v, waiting %d: ends %d pods, %+v", order, waiting, len(p.Delete), p.Delete)
			}
		}
	}
}

func clone(in []*v1.Pod) []*v1.Pod {
	out := make([]*v1.Pod, len(in))
	for i, p := range in {
		out[i] = p.DeepCopy()
	}
	return out
}

func TestIndexesRoundTrip(t *testing.T) {
	for in, want := range map[string]string{"": "", "3": "3", "1,2": "1,2", "1,2,3,7": "1-3,7", "0-9": "0-9", "5-7,12": "5-7"} {
		if got := parseIndexes(in, 10).String(); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestFailurePolicy(t *testing.T) {
	policy := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values: []int32{42}}},
		{Action: batchv1.PodFailurePolicyActionFailIndex,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn,
				Values: []int32{1}}},
	}}
	pod := func(code int32, conds ...v1.PodCondition) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Status: v1.PodStatus{Phase: v1.PodFailed,
			Conditions: conds,
			ContainerStatuses: []v1.ContainerStatus{{Name: "c",
				State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}}}}}
	}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want batchv1.PodFailurePolicyAction
	}{
		"plain failure": {pod(1), batchv1.PodFailurePolicyActionCount},
		"fatal code":    {pod(42), batchv1.PodFailurePolicyActionFailJob},
		"other code":    {pod(7), batchv1.PodFailurePolicyActionFailIndex},
		"evicted with 42": {pod(42, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}),
			batchv1.PodFailurePolicyActionIgnore},
	} {
		got, msg := matchFailurePolicy(policy, c.pod)
		if got != c.want {
			t.Errorf("%s: %s (%s), want %s", name, got, msg, c.want)
		}
		if name == "fatal code" && msg != "Container c for pod ns/p failed with exit code 42 matching FailJob rule at index 1" {
			t.Errorf("message %q", msg)
		}
	}
}
