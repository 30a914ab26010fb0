package schedule

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/podutil"
)

var podsGVR = v1.SchemeGroupVersion.WithResource("pods")

// newClient is a fake API server that binds as the real one does.
func newClient(objs ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(objs...)
	c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		obj, err := c.Tracker().Get(podsGVR, b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p := obj.(*v1.Pod).DeepCopy()
		p.Spec.NodeName = b.Target.Name
		return true, b, c.Tracker().Update(podsGVR, p, b.Namespace)
	})
	return c
}

func node(name, cpu string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("4Gi"), v1.ResourcePods: resource.MustParse("10")}}}
}

func pod(name, cpu string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
		Spec: v1.PodSpec{SchedulerName: DefaultName, Priority: &priority, Containers: []v1.Container{{Name: "c",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}}}
}

// started runs the scheduler inside a synctest bubble until the test ends.
func started(t *testing.T, c *fake.Clientset) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	f := informers.NewSharedInformerFactory(c, 0)
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, Config{Client: c, Informers: f, Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		f.Shutdown()
		synctest.Wait()
	})
	synctest.Wait()
	return ctx
}

func get(t *testing.T, c *fake.Clientset, name string) *v1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("getting pod %s: %v", name, err)
	}
	return p
}

func create(t *testing.T, c *fake.Clientset, p *v1.Pod) {
	t.Helper()
	if _, err := c.CoreV1().Pods("ns").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func TestBindsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"))
		started(t, c)
		begin := time.Now()
		create(t, c, pod("p", "500m", 0))
		if got := get(t, c, "p").Spec.NodeName; got != "a" {
			t.Fatalf("bound to %q, want a", got)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("took %s of waiting, want none", d)
		}
	})
}

func TestWaitsForRoomAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"))
		started(t, c)
		create(t, c, pod("first", "800m", 0))
		create(t, c, pod("second", "800m", 0))
		cond := podutil.Condition(get(t, c, "second"), v1.PodScheduled)
		want := "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for " +
			"incoming pod."
		if cond == nil || cond.Status != v1.ConditionFalse || cond.Reason != "Unschedulable" || cond.Message != want {
			t.Fatalf("condition %+v, want Unschedulable with %q", cond, want)
		}
		if err := c.CoreV1().Pods("ns").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(backoffFirst) // virtual
		synctest.Wait()
		if got := get(t, c, "second").Spec.NodeName; got != "a" {
			t.Fatalf("bound to %q after the room came free, want a", got)
		}
		events, err := c.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[string]string{}
		for _, e := range events.Items {
			reasons[e.Reason+"/"+e.InvolvedObject.Name] = e.Message
		}
		if reasons["FailedScheduling/second"] != want || reasons["Scheduled/second"] != "Successfully assigned ns/second to a" {
			t.Errorf("events: %v", reasons)
		}
	})
}

func TestPreempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"))
		started(t, c)
		create(t, c, pod("low", "800m", 0))
		create(t, c, pod("high", "800m", 10))
		if got := get(t, c, "high").Status.NominatedNodeName; got != "a" {
			t.Errorf("nominated to %q, want a", got)
		}
		time.Sleep(backoffFirst)
		synctest.Wait()
		if _, err := c.CoreV1().Pods("ns").Get(t.Context(), "low", metav1.GetOptions{}); err == nil {
			t.Error("the victim is still there")
		}
		if got := get(t, c, "high").Spec.NodeName; got != "a" {
			t.Errorf("bound to %q, want a", got)
		}
	})
}

func TestFailedBindIsTakenBackAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"))
		refusals := 2
		c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "binding" && refusals > 0 {
				refusals--
				return true, nil, context.DeadlineExceeded
			}
			return false, nil, nil
		})
		started(t, c)
		create(t, c, pod("p", "800m", 0))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := get(t, c, "p").Spec.NodeName; got != "a" {
			t.Fatalf("bound to %q, want a", got)
		}
	})
}

func TestGatedPodsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"))
		started(t, c)
		p := pod("p", "1m", 0)
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "x"}}
		create(t, c, p)
		got := get(t, c, "p")
		if got.Spec.NodeName != "" {
			t.Fatal("a gated pod was bound")
		}
		got.Spec.SchedulingGates = nil
		if _, err := c.CoreV1().Pods("ns").Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if get(t, c, "p").Spec.NodeName != "a" {
			t.Fatal("not bound after the gate was removed")
		}
	})
}

func TestBacklogOrderAndBackoff(t *testing.T) {
	b, now := newBacklog(), time.Unix(0, 0)
	parse := func(name string, prio int32) *place.Pod {
		p, err := place.Parse(pod(name, "1m", prio))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	b.add(parse("old", 0), now)
	b.add(parse("high", 5), now)
	b.add(parse("new", 0), now)
	var order []string
	var popped []*waiting
	for w := b.pop(now); w != nil; w = b.pop(now) {
		order = append(order, w.pod.Obj.Name)
		popped = append(popped, w)
	}
	if len(order) != 3 || order[0] != "high" || order[1] != "old" || order[2] != "new" {
		t.Fatalf("order %v", order)
	}
	b.failed(popped[0], nodeChanged, now)
	b.failed(popped[1], 0, now)
	if at, _ := b.next(); !at.Equal(now.Add(backoffFirst)) {
		t.Errorf("next at %s, want after the first back-off", at)
	}
	if n := b.happened(podGone, now); n != 0 {
		t.Errorf("an unrelated event woke %d pods", n)
	}
	if n := b.happened(nodeChanged, now); n != 1 {
		t.Errorf("the event woke %d pods, want 1", n)
	}
	if w := b.pop(now); w != nil {
		t.Error("a pod came back before its back-off")
	}
	if w := b.pop(now.Add(backoffFirst)); w == nil || w.pod.Obj.Name != "high" {
		t.Errorf("after the back-off got %v, want high first", w)
	}
}
