package daemonset

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

type world struct {
	r     *rand.Rand
	ds    *appsv1.DaemonSet
	nodes []*v1.Node
	pods  []*v1.Pod
	made  int
	now   time.Time
	hash  string
}

func (w *world) plan() plan {
	in := input{DS: w.ds, Nodes: w.nodes, Hash: w.hash, Now: w.now, HoldOff: func(string) time.Duration { return 0 }}
	for _, p := range w.pods {
		in.Pods = append(in.Pods, p.DeepCopy())
	}
	return makePlan(in)
}

func (w *world) perform(p plan, n int) {
	for _, node := range p.Create {
		if n--; n < 0 {
			return
		}
		pod := PodFor(w.ds, node, w.hash)
		w.made++
		pod.Name = fmt.Sprint("p", w.made)
		pod.UID, pod.CreationTimestamp = types.UID(pod.Name), metav1.NewTime(w.now)
		pod.Status.Phase = v1.PodPending
		w.pods = append(w.pods, pod)
	}
	for _, d := range p.Delete {
		if n--; n < 0 {
			return
		}
		for _, pod := range w.pods {
			if pod.UID == d.UID {
				t := metav1.NewTime(w.now)
				pod.DeletionTimestamp = &t
			}
		}
	}
}

func (w *world) kubelet(fair bool) {
	w.now = w.now.Add(time.Second)
	if len(w.pods) == 0 {
		return
	}
	i := w.r.IntN(len(w.pods))
	p := w.pods[i]
	switch {
	case p.DeletionTimestamp != nil:
		w.pods = append(w.pods[:i], w.pods[i+1:]...)
	case p.Status.Phase == v1.PodPending:
		p.Status.Phase, p.Spec.NodeName = v1.PodRunning, target(p)
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}}
	case !fair && w.r.IntN(30) == 0:
		p.Status.Phase, p.Status.Conditions = v1.PodFailed, nil
	}
}

// up counts nodes with an available pod.
func (w *world) up() int {
	on := map[string]bool{}
	for _, p := range w.pods {
		if p.Status.Phase == v1.PodRunning && p.DeletionTimestamp == nil {
			on[p.Spec.NodeName] = true
		}
	}
	return len(on)
}

func TestUpdatesStayWithinLimits(t *testing.T) {
	for range 30 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 9))
		ru := &appsv1.RollingUpdateDaemonSet{}
		surge, un := intstr.FromInt32(0), intstr.FromInt32(int32(1+r.IntN(2)))
		if r.IntN(2) == 0 {
			surge, un = un, surge
		}
		ru.MaxSurge, ru.MaxUnavailable = &surge, &un
		w := &world{r: r, now: time.Unix(1000, 0), hash: "h0", ds: &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "d"},
			Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: ru},
				Template: v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}}}}
		for i := range 5 {
			w.nodes = append(w.nodes, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
		}
		for step := range 500 {
			if r.IntN(80) == 0 {
				w.hash = fmt.Sprint("h", step)
			}
			before := w.up()
			p := w.plan()
			took := map[string]bool{}
			for _, d := range p.Delete {
				if d.Status.Phase == v1.PodRunning {
					took[d.Spec.NodeName] = true
				}
			}
			w.perform(p, r.IntN(len(p.Create)+len(p.Delete)+2))
			if after := w.up(); after < before && after < len(w.nodes)-int(un.IntVal) {
				t.Fatalf("seed %d step %d: %d nodes up after taking from %v, at least %d wanted (surge %s, unavailable %s)", seed, step,
					after, took, len(w.nodes)-int(un.IntVal), &surge, &un)
			}
			perNode := map[string]int{}
			for _, pod := range w.pods {
				if pod.DeletionTimestamp == nil {
					perNode[target(pod)]++
				}
			}
			for n, k := range perNode {
				if k > 2 || (k > 1 && surge.IntVal == 0) {
					t.Fatalf("seed %d step %d: %d pods on %s", seed, step, k, n)
				}
			}
			w.kubelet(false)
		}
		for quiet := 0; quiet < 50; {
			p := w.plan()
			w.perform(p, 100)
			w.kubelet(true)
			if quiet++; len(p.Create)+len(p.Delete) > 0 || p.Status.NumberAvailable != 5 {
				quiet = 0
			}
			if w.now.Unix() > 20000 {
				t.Fatalf("seed %d: does not settle: %+v", seed, p)
			}
		}
		p := w.plan()
		if len(p.Create)+len(p.Delete) > 0 || len(w.pods) != 5 || w.up() != 5 || p.Status.UpdatedNumberScheduled != 5 {
			t.Fatalf("seed %d: not settled: %d pods, status %+v", seed, len(w.pods), p.Status)
		}
	}
}

func TestTaintsAndSelectors(t *testing.T) {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	ds.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	node := func(l string, taints ...v1.Taint) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": l}}, Spec: v1.NodeSpec{Taints: taints}}
	}
	for name, c := range map[string]struct {
		node      *v1.Node
		run, stay bool
	}{
		"matching":                 {node("ssd"), true, true},
		"other label":              {node("hdd"), false, false},
		"NoSchedule keeps what is": {node("ssd", v1.Taint{Key: "x", Effect: v1.TaintEffectNoSchedule}), false, true},
		"NoExecute drives off":     {node("ssd", v1.Taint{Key: "x", Effect: v1.TaintEffectNoExecute}), false, false},
		"unreachable is tolerated": {node("ssd", v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}), true, true},
		"cordoned is tolerated":    {node("ssd", v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}), true, true},
	} {
		if run, stay := ShouldRun(ds, c.node); run != c.run || stay != c.stay {
			t.Errorf("%s: run %v stay %v, want %v %v", name, run, stay, c.run, c.stay)
		}
	}
}
