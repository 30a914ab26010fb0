package deployment

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// world is a cluster small enough to check at every step: ReplicaSets whose
// pods become ready, fail and go at random, and a planner that may be cut off
// after any single write.
type world struct {
	r    *rand.Rand
	d    *appsv1.Deployment
	sets []*modelSet
	now  time.Time
	uid  int
}

type modelSet struct {
	*appsv1.ReplicaSet
	pods, ready, leaving int32
}

func newWorld(r *rand.Rand, strategy appsv1.DeploymentStrategyType) *world {
	n, limit, deadline := int32(1+r.IntN(10)), int32(r.IntN(3)), int32(600)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{Replicas: &n, RevisionHistoryLimit: &limit, ProgressDeadlineSeconds: &deadline,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}},
			Strategy: appsv1.DeploymentStrategy{Type: strategy},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "d"}},
				Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "v0"}}}}}}
	if strategy == appsv1.RollingUpdateDeploymentStrategyType {
		surge, un := intstr.FromInt32(int32(r.IntN(4))), intstr.FromString(fmt.Sprintf("%d%%", r.IntN(60)))
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &un}
	}
	return &world{r: r, d: d, now: time.Unix(1000, 0)}
}

// observe makes the planner's input, statuses as the sets last reported them.
func (w *world) observe() input {
	in := input{D: w.d.DeepCopy(), Unfinished: map[types.UID]int{}, Now: w.now}
	for _, s := range w.sets {
		in.Sets = append(in.Sets, s.ReplicaSet.DeepCopy())
		in.Unfinished[s.UID] = int(s.pods + s.leaving)
	}
	return in
}

// perform carries out the first n steps, then "crashes".
func (w *world) perform(p plan, n int) {
	for i, st := range p.Steps {
		if i == n {
			return
		}
		switch st.Verb {
		case Create:
			w.uid++
			s := st.Set.DeepCopy()
			s.UID, s.Generation = types.UID(fmt.Sprint("s", w.uid)), 1
			s.CreationTimestamp = metav1.NewTime(w.now)
			w.sets = append(w.sets, &modelSet{ReplicaSet: s})
		case Scale:
			s := w.find(st.Set.UID)
			n := st.Replicas
			s.Spec.Replicas, s.Annotations = &n, st.Annotations
			s.Generation++
		case Annotate:
			w.find(st.Set.UID).Annotations = st.Annotations
		case Delete:
			for i, s := range w.sets {
				if s.UID == st.Set.UID {
					w.sets = append(w.sets[:i], w.sets[i+1:]...)
					break
				}
			}
		}
	}
	if n > len(p.Steps) {
		w.d.Status = p.Status
	}
}

func (w *world) find(uid types.UID) *modelSet {
	for _, s := range w.sets {
		if s.UID == uid {
			return s
		}
	}
	return nil
}

// kubelet moves one random thing: a set makes or drops a pod, a pod gets ready
// or fails, a terminating pod goes, a set reports its status.
func (w *world) kubelet(fair bool) {
	if len(w.sets) == 0 {
		return
	}
	s := w.sets[w.r.IntN(len(w.sets))]
	switch want := *s.Spec.Replicas; w.r.IntN(5) {
	case 0:
		for s.pods < want {
			s.pods++
		}
		for s.pods > want { // not ready ones first, as the real plan does
			s.pods--
			s.leaving++
			s.ready = min(s.ready, s.pods)
		}
	case 1:
		if s.ready < s.pods {
			s.ready++
		}
	case 2:
		if !fair && s.ready > 0 && w.r.IntN(6) == 0 {
			s.ready--
		}
	case 3:
		if s.leaving > 0 {
			s.leaving--
		}
	case 4:
		s.Status.Replicas, s.Status.ReadyReplicas, s.Status.AvailableReplicas = s.pods, s.ready, s.ready
		s.Status.ObservedGeneration = s.Generation
	}
	w.now = w.now.Add(time.Second)
}

func (w *world) spec() (n int32) {
	for _, s := range w.sets {
		n += *s.Spec.Replicas
	}
	return n
}

func TestRollingNeverLeavesItsLimits(t *testing.T) {
	for range 60 {
		seed := rand.Uint64()
		w := newWorld(rand.New(rand.NewPCG(seed, 1)), appsv1.RollingUpdateDeploymentStrategyType)
		surge, un := limits(w.d, *w.d.Spec.Replicas)
		most, least := *w.d.Spec.Replicas+surge, *w.d.Spec.Replicas-un
		version := 0
		for step := range 600 {
			if step%150 == 149 {
				version++
				w.d.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("v", w.r.IntN(version+1))
				w.d.Generation++
			}
			before := w.spec()
			p := makePlan(w.observe())
			w.perform(p, w.r.IntN(len(p.Steps)+2))
			if got := w.spec(); got > most && got > before {
				t.Fatalf("seed %d step %d: asks for %d pods, at most %d allowed", seed, step, got, most)
			}
			// A plan may take no more pods than leave the minimum, counting
			// only what each set says is available and still wants.
			var keeps int32
			for _, s := range w.sets {
				keeps += min(s.Status.AvailableReplicas, *s.Spec.Replicas)
			}
			if keeps < least && w.spec() < before {
				var had int32
				for _, s := range p.Steps {
					if s.Verb != Scale {
						continue
					}
					had += min(s.Set.Status.AvailableReplicas, sizeOf(s.Set)) - min(s.Set.Status.AvailableReplicas, s.Replicas)
				}
				if had > 0 {
					t.Fatalf("seed %d step %d: took %d available pods with %d left, at least %d needed: %s", seed, step, had, keeps, least,
						describe(p))
				}
			}
			w.kubelet(false)
		}
		w.settle(t, seed)
	}
}

// settle lets a fair world run and checks that it reaches the goal and stays.
func (w *world) settle(t *testing.T, seed uint64) {
	t.Helper()
	for range 50000 {
		p := makePlan(w.observe())
		w.perform(p, len(p.Steps)+1)
		w.kubelet(true)
		c := condition(&w.d.Status, appsv1.DeploymentProgressing)
		if len(p.Steps) == 0 && c != nil && c.Reason == "NewReplicaSetAvailable" && w.d.Status.AvailableReplicas == *w.d.Spec.Replicas &&
			w.d.Status.Replicas == w.spec() && w.d.Status.UpdatedReplicas == w.spec() &&
			len(w.sets) <= 1+int(*w.d.Spec.RevisionHistoryLimit) {
			break
		}
	}
	p := makePlan(w.observe())
	if len(p.Steps) != 0 {
		t.Fatalf("seed %d: not settled, still plans %+v", seed, p.Steps)
	}
	c := condition(&w.d.Status, appsv1.DeploymentProgressing)
	cur, old := split(w.d, p2sets(w))
	if cur == nil || *cur.Spec.Replicas != *w.d.Spec.Replicas || w.spec() != *w.d.Spec.Replicas || c == nil ||
		c.Reason != "NewReplicaSetAvailable" {
		t.Fatalf("seed %d: settled elsewhere: %d pods wanted, %d asked for, condition %+v", seed, *w.d.Spec.Replicas, w.spec(), c)
	}
	if len(old) > int(*w.d.Spec.RevisionHistoryLimit) {
		t.Fatalf("seed %d: %d old sets kept, limit %d", seed, len(old), *w.d.Spec.RevisionHistoryLimit)
	}
	for _, o := range old {
		if revisionOf(o) >= revisionOf(cur) {
			t.Fatalf("seed %d: old revision %d not below current %d", seed, revisionOf(o), revisionOf(cur))
		}
	}
}

func p2sets(w *world) (out []*appsv1.ReplicaSet) {
	for _, s := range w.sets {
		out = append(out, s.ReplicaSet)
	}
	return out
}

func TestRecreateNeverOverlaps(t *testing.T) {
	for range 40 {
		seed := rand.Uint64()
		w := newWorld(rand.New(rand.NewPCG(seed, 1)), appsv1.RecreateDeploymentStrategyType)
		for step := range 400 {
			if step%120 == 119 {
				w.d.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("v", step)
				w.d.Generation++
			}
			p := makePlan(w.observe())
			w.perform(p, w.r.IntN(len(p.Steps)+2))
			w.kubelet(false)
			cur, _ := split(w.d, p2sets(w))
			for _, s := range w.sets {
				if cur != nil && s.UID != cur.UID && *cur.Spec.Replicas > 0 && s.CreationTimestamp.Before(&cur.CreationTimestamp) &&
					s.pods+s.leaving > 0 && w.find(cur.UID).pods > 0 {
					t.Fatalf("seed %d step %d: %d pods of an old set while the new one has %d", seed, step, s.pods+s.leaving,
						w.find(cur.UID).pods)
				}
			}
		}
		w.settle(t, seed)
	}
}

func TestScalingDuringRolloutConverges(t *testing.T) {
	for range 60 {
		seed := rand.Uint64()
		w := newWorld(rand.New(rand.NewPCG(seed, 1)), appsv1.RollingUpdateDeploymentStrategyType)
		for step := range 400 {
			switch w.r.IntN(40) {
			case 0:
				n := int32(w.r.IntN(15))
				w.d.Spec.Replicas = &n
				w.d.Generation++
			case 1:
				w.d.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("v", step)
				w.d.Generation++
			case 2:
				w.d.Spec.Paused = !w.d.Spec.Paused
				w.d.Generation++
			}
			p := makePlan(w.observe())
			w.perform(p, w.r.IntN(len(p.Steps)+2))
			w.kubelet(false)
		}
		w.d.Spec.Paused = false
		w.settle(t, seed)
	}
}

func TestProgressDeadline(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), appsv1.RollingUpdateDeploymentStrategyType)
	p := makePlan(w.observe())
	w.perform(p, 9)
	c := condition(&w.d.Status, appsv1.DeploymentProgressing)
	if c == nil || c.Reason != "NewReplicaSetCreated" || p.Wake != 601*time.Second {
		t.Fatalf("after creating: %+v, wake %s", c, p.Wake)
	}
	w.now = w.now.Add(601 * time.Second)
	w.perform(makePlan(w.observe()), 9)
	if c = condition(&w.d.Status, appsv1.DeploymentProgressing); c.Reason != "ProgressDeadlineExceeded" || c.Status != v1.ConditionFalse {
		t.Fatalf("after the deadline: %+v", c)
	}
	s := w.sets[0]
	s.pods, s.ready = *s.Spec.Replicas, *s.Spec.Replicas
	s.Status.Replicas, s.Status.ReadyReplicas, s.Status.AvailableReplicas = s.pods, s.pods, s.pods
	w.perform(makePlan(w.observe()), 9)
	if c = condition(&w.d.Status, appsv1.DeploymentProgressing); c.Reason != "NewReplicaSetAvailable" || c.Status != v1.ConditionTrue {
		t.Fatalf("after recovery: %+v", c)
	}
}

func describe(p plan) (out string) {
	for _, f := range p.Because {
		out += f.Name + " " + f.Value + "; "
	}
	for _, s := range p.Steps {
		out += fmt.Sprintf("%s %s to %d; ", s.Verb, s.Set.Name, s.Replicas)
	}
	return out
}
