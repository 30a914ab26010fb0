package podgc

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/controller"
)

func pod(name, node string, phase v1.PodPhase, terminating bool) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "d", UID: "uid-of-pod"}, Spec: v1.PodSpec{NodeName: node},
		Status: v1.PodStatus{Phase: phase}}
	if terminating {
		now, grace := metav1.Now(), int64(30)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	}
	return p
}

func TestJudge(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	gone := pod("p", "n", v1.PodRunning, true)
	none := int64(0)
	gone.DeletionGracePeriodSeconds = &none
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		node Node
		want Reason
		from time.Duration // after t0; -1: at once
	}{
		{"running where it should", pod("p", "n", v1.PodRunning, false), Node{Known: true}, None, -1},
		{"its node is gone", pod("p", "n", v1.PodRunning, false), Node{Missing: t0}, Orphaned, Quarantine},
		{"finished, its node is gone", pod("p", "n", v1.PodSucceeded, false), Node{Missing: t0}, Orphaned, Quarantine},
		{"waits for a node", pod("p", "", v1.PodPending, false), Node{}, None, -1},
		{"deleted before it had a node", pod("p", "", v1.PodPending, true), Node{}, Unscheduled, -1},
		{"terminating on a dead node", pod("p", "n", v1.PodRunning, true), Node{Known: true, Dead: true}, OutOfService, -1},
		{"running on a dead node", pod("p", "n", v1.PodRunning, false), Node{Known: true, Dead: true}, None, -1},
		{"terminating on a living node", pod("p", "n", v1.PodRunning, true), Node{Known: true}, None, -1},
		{"only its finalizers hold it", gone, Node{Missing: t0}, None, -1},
	} {
		why, from := Evaluate(c.pod, c.node)
		if why != c.want || c.from >= 0 && from.Sub(t0) != c.from || c.from < 0 && !from.IsZero() {
			t.Errorf("%s: %q from %s, want %q", c.name, why, from, c.want)
		}
	}
}

func TestOutOfServiceNeedsANodeThatIsNotReady(t *testing.T) {
	n := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: v1.TaintNodeOutOfService, Value: "x", Effect: v1.TaintEffectNoSchedule}}}}
	for status, want := range map[v1.ConditionStatus]bool{v1.ConditionTrue: false, v1.ConditionFalse: true, v1.ConditionUnknown: true} {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: status}}
		if NodeOf(n).Dead != want {
			t.Errorf("Ready=%s: dead %v, want %v", status, !want, want)
		}
	}
}

// Finished picks what sorting everything would pick.
func TestFinishedEqualsSorting(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := newFinished()
		all := map[string]*v1.Pod{}
		limit := 1 + r.IntN(8)
		for range 60 {
			p := pod(fmt.Sprintf("p%02d", r.IntN(20)), "n", []v1.PodPhase{v1.PodRunning, v1.PodSucceeded, v1.PodFailed}[r.IntN(3)], false)
			p.CreationTimestamp = metav1.Unix(int64(r.IntN(5)), 0)
			if r.IntN(3) == 0 {
				p.Status.Reason = "Evicted"
			}
			if r.IntN(5) == 0 {
				f.Forget(p.Name)
				delete(all, p.Name)
			} else {
				f.Observe(p.Name, p)
				all[p.Name] = p
			}
			var want []string
			for name, p := range all {
				if p.Status.Phase != v1.PodRunning {
					want = append(want, name)
				}
			}
			slices.SortFunc(want, func(a, b string) int {
				key := func(n string) string {
					first := "1"
					if all[n].Status.Reason == "Evicted" {
						first = "0"
					}
					return first + all[n].CreationTimestamp.UTC().Format(time.RFC3339) + n
				}
				return strings.Compare(key(a), key(b))
			})
			want = want[:max(0, len(want)-limit)]
			got := f.TakeExcess(limit)
			if !slices.Equal(got, want) && len(got)+len(want) > 0 {
				t.Fatalf("seed %d: picked %v, want %v", seed, got, want)
			}
			for _, k := range got {
				if !f.Picked(k) {
					t.Fatalf("seed %d: %s was picked and forgotten", seed, k)
				}
				f.Forget(k)
				delete(all, k)
			}
			if len(f.TakeExcess(0)) != 0 {
				t.Fatal("a limit of 0 means none")
			}
		}
	}
}

// rig runs the shell on a fake API in virtual time.
func rig(t *testing.T, keep int, objects []runtime.Object, during func(*fake.Clientset)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := fake.NewClientset(objects...)
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)}, keep)
		}()
		synctest.Wait()
		during(client)
		cancel()
		<-done
		shared.Shutdown()
	})
}

func exists(t *testing.T, c *fake.Clientset, name string) bool {
	t.Helper()
	_, err := c.CoreV1().Pods("d").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestOrphansGoAfterQuarantineMarkedFailedFirst(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	rig(t, 0, []runtime.Object{node, pod("p", "n", v1.PodRunning, false)}, func(c *fake.Clientset) {
		ctx := context.Background()
		if err := c.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(39 * time.Second) // virtual
		synctest.Wait()
		if !exists(t, c, "p") {
			t.Fatal("collected within the quarantine")
		}
		c.ClearActions()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		actions := c.Actions()
		if exists(t, c, "p") {
			t.Fatal("not collected after the quarantine")
		}
		var verbs []string
		for _, a := range actions {
			verbs = append(verbs, a.GetVerb()+" "+a.GetResource().Resource+"/"+a.GetSubresource())
			if p, ok := a.(k8stesting.PatchAction); ok && (!strings.Contains(string(p.GetPatch()), `"phase":"Failed"`) ||
				!strings.Contains(string(p.GetPatch()), "DeletionByPodGC")) {
				t.Errorf("patched with %s", p.GetPatch())
			}
		}
		if got := strings.Join(verbs, ", "); got != "get nodes/, patch pods/status, delete pods/" {
			t.Errorf("did %s", got)
		}
	})
}

// A node that came back, and a cache that is late, cost no pod.
func TestNodeThatComesBackKeepsItsPods(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	rig(t, 0, []runtime.Object{node, pod("p", "n", v1.PodRunning, false)}, func(c *fake.Clientset) {
		ctx := context.Background()
		if err := c.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if _, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if !exists(t, c, "p") {
			t.Fatal("collected though its node came back")
		}
	})
}

// #142331: the taint is looked at in the API, not in a cache.
func TestOutOfServiceIsLookedAtLive(t *testing.T) {
	for _, stale := range []bool{false, true} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}}}
		p := pod("p", "n", v1.PodRunning, true)
		p.Finalizers = []string{"example.com/hold"} // the fake refuses terminating objects without one
		rig(t, 0, []runtime.Object{p}, func(c *fake.Clientset) {
			if stale {
				c.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, nil
				})
			}
			if _, err := c.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if exists(t, c, "p") != stale {
				t.Errorf("cache stale: %v, pod kept: %v", stale, !stale)
			}
		})
	}
}

func TestFinishedPodsOverTheLimitGo(t *testing.T) {
	var objects []runtime.Object
	for i := range 10 {
		p := pod(fmt.Sprintf("p%d", i), "n", v1.PodSucceeded, false)
		p.CreationTimestamp = metav1.Unix(int64(i), 0)
		objects = append(objects, p)
	}
	objects = append(objects, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	rig(t, 4, objects, func(c *fake.Clientset) {
		synctest.Wait()
		for i := range 10 {
			if name := fmt.Sprintf("p%d", i); exists(t, c, name) != (i >= 6) {
				t.Errorf("%s kept: %v", name, i < 6)
			}
		}
	})
}
