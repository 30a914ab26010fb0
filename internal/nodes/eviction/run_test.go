package eviction

import (
	"context"
	"log/slog"
	"slices"
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

func TestShellEvictsWhenTheTolerationRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		seconds := int64(30)
		client := fake.NewClientset(
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
				Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}}}},
			&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
				Spec: v1.PodSpec{NodeName: "n",
					Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}}}})
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
		}()
		for _, c := range []struct {
			wait time.Duration
			gone bool
		}{{29 * time.Second, false}, {2 * time.Second, true}} {
			time.Sleep(c.wait) // virtual
			synctest.Wait()
			_, err := client.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
			if apierrors.IsNotFound(err) != c.gone {
				t.Errorf("after %s more: %v, want gone %v", c.wait, err, c.gone)
			}
		}
		cancel()
		<-done
		shared.Shutdown()
	})
}

// #139992, #140198, #90794, #119862: pods deleted for a taint that was gone from
// the API but not from a cache.
func TestTaintGoneInTheAPIAlone_139992(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := fake.NewClientset(
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
				Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "x", Effect: v1.TaintEffectNoExecute}}}},
			&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: v1.PodSpec{NodeName: "n"}})
		client.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, nil
		})
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
		}()
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		if _, err := client.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{}); err != nil {
			t.Errorf("the pod: %v", err)
		}
		cancel()
		<-done
		shared.Shutdown()
	})
}

// A toleration that is edited moves the deadline, both ways; a taint that goes
// ends it.
func TestEditedTolerationMovesTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		added := metav1.NewTime(time.Now())
		client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "x", Effect: v1.TaintEffectNoExecute, TimeAdded: &added}}}})
		pods := client.CoreV1().Pods("default")
		bear := func(name string, seconds int64, write func(context.Context, *v1.Pod) error) {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1.PodSpec{NodeName: "n",
				Tolerations: []v1.Toleration{{Key: "x", Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}}}}
			if err := write(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		create := func(ctx context.Context, p *v1.Pod) error {
			_, err := pods.Create(ctx, p, metav1.CreateOptions{})
			return err
		}
		update := func(ctx context.Context, p *v1.Pod) error {
			_, err := pods.Update(ctx, p, metav1.UpdateOptions{})
			return err
		}
		for _, name := range []string{"sooner", "later", "same"} {
			bear(name, 100, create)
		}
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
		}()
		left := func(at time.Duration, want ...string) {
			t.Helper()
			time.Sleep(time.Until(added.Add(at))) // virtual
			synctest.Wait()
			l, err := pods.List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range l.Items {
				got = append(got, p.Name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("after %s: %v are left, want %v", at, got, want)
			}
		}
		left(20*time.Second, "later", "same", "sooner")
		bear("sooner", 40, update)
		bear("later", 200, update)
		left(39*time.Second, "later", "same", "sooner")
		left(41*time.Second, "later", "same")
		left(101*time.Second, "later")
		n, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Spec.Taints = nil
		if _, err := client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		left(time.Hour, "later")
		cancel()
		<-done
		shared.Shutdown()
	})
}

// A restart neither moves a deadline nor forgets one: it counts from the
// taint's timeAdded.
func TestRestartKeepsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		added, seconds := metav1.NewTime(time.Now()), int64(100)
		client := fake.NewClientset(
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
				Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "x", Effect: v1.TaintEffectNoExecute, TimeAdded: &added}}}},
			&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: v1.PodSpec{NodeName: "n",
				Tolerations: []v1.Toleration{{Key: "x", Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}}}})
		for _, c := range []struct {
			until time.Duration
			gone  bool
		}{{20 * time.Second, false}, {70 * time.Second, false}, {99 * time.Second, false}, {101 * time.Second, true}} {
			ctx, cancel := context.WithCancel(t.Context())
			shared := informers.NewSharedInformerFactory(client, 0)
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
			}()
			time.Sleep(time.Until(added.Add(c.until))) // virtual
			synctest.Wait()
			_, err := client.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
			if apierrors.IsNotFound(err) != c.gone {
				t.Errorf("%s after the taint: %v, want gone %v", c.until, err, c.gone)
			}
			cancel()
			<-done
			shared.Shutdown()
		}
	})
}
