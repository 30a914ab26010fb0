package health

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// The whole shell in virtual time: one of two nodes falls silent, is marked
// and tainted with its pod, while the other stays as it is.
func TestShellMarksTheSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := fake.NewClientset()
		for _, name := range []string{"dead", "alive"} {
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"},
				Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1.PodSpec{NodeName: name},
				Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}}
			l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.NamespaceNodeLease},
				Spec: coordination.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now()}}}
			for _, err := range []error{client.Tracker().Add(n), client.Tracker().Add(p), client.Tracker().Add(l)} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		shared := informers.NewSharedInformerFactory(client, 0)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)})
		}()
		leases := client.CoordinationV1().Leases(v1.NamespaceNodeLease)
		for range 7 {
			time.Sleep(10 * time.Second) // virtual
			l, err := leases.Get(ctx, "alive", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if _, err := leases.Update(ctx, l, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for name, want := range map[string]struct {
			ready, pod v1.ConditionStatus
			taints     int
		}{"dead": {v1.ConditionUnknown, v1.ConditionFalse, 2}, "alive": {v1.ConditionTrue, v1.ConditionTrue, 0}} {
			n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got, pod := n.Status.Conditions[0].Status, p.Status.Conditions[0].Status
			if got != want.ready || len(n.Spec.Taints) != want.taints || pod != want.pod {
				t.Errorf("%s: Ready %s, taints %v, pod ready %s; want %+v", name, got, n.Spec.Taints, p.Status.Conditions[0].Status, want)
			}
		}
		cancel()
		<-done
		shared.Shutdown()
	})
}
