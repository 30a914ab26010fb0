package statefulset

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type world struct {
	r       *rand.Rand
	set     *appsv1.StatefulSet
	pods    map[string]*v1.Pod
	made    int
	now     time.Time
	version int
}

func (w *world) input() Input {
	in := Input{Set: w.set.DeepCopy(), Current: w.set.Status.CurrentRevision, Update: fmt.Sprint("v", w.version), Now: w.now}
	if in.Current == "" {
		in.Current = in.Update
	}
	for _, p := range w.pods {
		in.Pods = append(in.Pods, p.DeepCopy())
	}
	return in
}

func (w *world) healthy() (n int) {
	for _, p := range w.pods {
		if p.Status.Phase == v1.PodRunning && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// perform carries out a part of the plan; the rest is lost in a crash.
func (w *world) perform(p Plan, n int) {
	for _, c := range p.Create {
		if n--; n < 0 {
			return
		}
		t := &v1.PodTemplateSpec{}
		pod := newPod(w.set, t, c)
		if w.pods[pod.Name] != nil {
			continue // the server refuses a second one
		}
		w.made++
		pod.UID = types.UID(fmt.Sprint(w.made))
		pod.Status.Phase = v1.PodPending
		w.pods[pod.Name] = pod
	}
	for _, d := range p.Delete {
		if n--; n < 0 {
			return
		}
		if pod := w.pods[d.Name]; pod != nil && pod.UID == d.UID && pod.DeletionTimestamp == nil {
			t := metav1.NewTime(w.now)
			pod.DeletionTimestamp = &t
		}
	}
	if n > 0 {
		w.set.Status = p.Status
	}
}

func (w *world) kubelet(fair bool) {
	w.now = w.now.Add(time.Second)
	for name, p := range w.pods {
		if w.r.IntN(3) > 0 {
			continue
		}
		switch {
		case p.DeletionTimestamp != nil:
			delete(w.pods, name)
		case p.Status.Phase == v1.PodPending:
			p.Status.Phase = v1.PodRunning
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.now)}}
		case !fair && w.r.IntN(40) == 0:
			p.Status.Phase, p.Status.Conditions = v1.PodFailed, nil
		}
		return
	}
}

func TestStaysInOrderAndWithinLimits(t *testing.T) {
	for range 100 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 5))
		n, part := int32(1+r.IntN(6)), int32(0)
		policy := appsv1.OrderedReadyPodManagement
		ru := &appsv1.RollingUpdateStatefulSetStrategy{Partition: &part}
		if r.IntN(2) == 0 {
			policy = appsv1.ParallelPodManagement
			m := intstr.FromInt32(int32(1 + r.IntN(3)))
			ru.MaxUnavailable = &m
		}
		w := &world{r: r, pods: map[string]*v1.Pod{}, now: time.Unix(1000, 0),
			set: &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"},
				Spec: appsv1.StatefulSetSpec{Replicas: &n, PodManagementPolicy: policy,
					UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
						RollingUpdate: ru}}}}
		for step := range 400 {
			switch r.IntN(60) {
			case 0:
				n = int32(r.IntN(7))
			case 1:
				w.version++
			}
			p := Make(w.input())
			if policy == appsv1.OrderedReadyPodManagement && len(p.Create)+len(p.Delete) > 1 {
				t.Fatalf("seed %d step %d: ordered, yet plans %d changes at once", seed, step, len(p.Create)+len(p.Delete))
			}
			for _, c := range p.Create {
				for i := range c.Ordinal {
					low := w.pods[fmt.Sprint("s-", i)]
					if policy == appsv1.OrderedReadyPodManagement && (low == nil || low.Status.Phase != v1.PodRunning ||
						low.DeletionTimestamp != nil) {
						t.Fatalf("seed %d step %d: makes %d while %d is not running", seed, step, c.Ordinal, i)
					}
				}
			}
			took := 0
			for _, d := range p.Delete {
				o, _ := Ordinal("s", d.Name)
				if d.Status.Phase == v1.PodRunning && o < int(n) {
					took++
				}
			}
			if limit := (&planner{Input: w.input(), replicas: int(n)}).maxUnavailable(); took > 0 && w.inRange(int(n))-took < int(n)-limit {
				t.Fatalf("seed %d step %d: takes %d of %d healthy pods, %d wanted, %d may be down", seed, step, took, w.inRange(int(n)), n,
					limit)
			}
			w.perform(p, r.IntN(len(p.Create)+len(p.Delete)+2))
			w.kubelet(false)
		}
		for range 500 {
			p := Make(w.input())
			w.perform(p, 100)
			w.kubelet(true)
		}
		p := Make(w.input())
		if len(p.Create)+len(p.Delete) > 0 || len(w.pods) != int(n) || w.healthy() != int(n) ||
			w.set.Status.CurrentRevision != fmt.Sprint("v", w.version) && n > 0 {
			t.Fatalf("seed %d: not settled: %d pods of %d, status %+v, plan %+v", seed, len(w.pods), n, w.set.Status, p)
		}
		for _, pod := range w.pods {
			if revision(pod) != fmt.Sprint("v", w.version) {
				t.Fatalf("seed %d: %s still runs %s", seed, pod.Name, revision(pod))
			}
		}
	}
}

func (w *world) inRange(n int) (up int) {
	for _, p := range w.pods {
		if o, _ := Ordinal("s", p.Name); o < n && p.Status.Phase == v1.PodRunning && p.DeletionTimestamp == nil {
			up++
		}
	}
	return up
}

func TestPartitionHoldsLowOrdinalsBack(t *testing.T) {
	n, part := int32(3), int32(2)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: appsv1.StatefulSetSpec{Replicas: &n,
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &part}}}}
	p := Make(Input{Set: set, Current: "a", Update: "b"})
	if len(p.Create) != 1 || p.Create[0] != (Creation{0, "a"}) {
		t.Errorf("below the partition: %+v, want ordinal 0 of revision a", p.Create)
	}
}

// Upstream's suite: "Scaling should happen in predictable order and halt if any
// stateful pod is unhealthy".
func TestAnAilingSetDoesNotShrink(t *testing.T) {
	none := int32(0)
	now := time.Unix(1000, 0)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: appsv1.StatefulSetSpec{Replicas: &none}}
	// Each letter is a pod: r ready, u unready, f failed, t leaving.
	for pods, want := range map[string]string{
		"rrr": "s-2", "uuu": "", "urr": "s-2", "uru": "", "rru": "s-2", "ruu": "", "u": "s-0", "ur": "s-1", "uuf": "s-2", "fuf": "s-2",
		"rrt": "", "": "",
	} {
		in := Input{Set: set, Current: "a", Update: "a", Now: now}
		for i, state := range pods {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s-", i)}, Status: v1.PodStatus{Phase: v1.PodRunning}}
			ready := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue}
			switch state {
			case 'u':
				ready.Status = v1.ConditionFalse
			case 'f':
				p.Status.Phase, ready.Status = v1.PodFailed, v1.ConditionFalse
			case 't':
				p.DeletionTimestamp = &metav1.Time{Time: now}
			}
			p.Status.Conditions = []v1.PodCondition{ready}
			in.Pods = append(in.Pods, p)
		}
		got := ""
		for _, p := range Make(in).Delete {
			got += p.Name
		}
		if got != want {
			t.Errorf("pods %q: deletes %q, want %q", pods, got, want)
		}
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		if n := len(Make(in).Delete); n != len(strings.ReplaceAll(pods, "t", "")) {
			t.Errorf("pods %q in parallel: deletes %d", pods, n)
		}
		set.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
}
