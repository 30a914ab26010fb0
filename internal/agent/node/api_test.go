package node

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// awaitNode watches until the Node is as wanted.
func awaitNode(t *testing.T, client kubernetes.Interface, what string, wanted func(*v1.Node) bool) *v1.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
		"n1").String()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var last *v1.Node
	for event := range events.ResultChan() {
		if node, ok := event.Object.(*v1.Node); ok {
			if last = node; event.Type != "DELETED" && wanted(node) {
				return node
			}
		}
	}
	t.Fatalf("the node never was %s; last seen: %+v", what, last)
	return nil
}

func isReady(node *v1.Node) bool { return readyOf(node).Status == v1.ConditionTrue }

// TestAgainstTheRealServer runs the role against a real API server. The test
// server knows no Node authorizer, hence the second group.
func TestAgainstTheRealServer(t *testing.T) {
	env := apitest.StartEnv(t)
	admin := kubernetes.NewForConfigOrDie(env.Config)
	asNode := kubernetes.NewForConfigOrDie(env.As(t, "system:node:n1", "system:nodes", "system:masters"))
	cri := &fakeRuntime{network: true}
	cfg := testConfig(t, cri, nil)
	cfg.Client = asNode
	cfg.Settings.Identity.Labels = map[string]string{v1.LabelTopologyZone: "a"}
	stop := start(t, cfg)

	node := awaitNode(t, admin, "ready", isReady)
	if node.Labels[v1.LabelTopologyZone] != "a" || node.Annotations[annotationAttachDetach] != "true" {
		t.Errorf("metadata is %v %v", node.Labels, node.Annotations)
	}
	awaitLease(t, admin, node)

	// Others' fields survive the next status.
	patch := []byte(`{"metadata":{"labels":{"mine":"yes"}},"spec":{"unschedulable":true}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), "n1", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	foreign := []byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"RouteCreated"}],` +
		`"capacity":{"example.com/thing":"3"}}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), "n1", "application/strategic-merge-patch+json", foreign, metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
	cfg.Board.SetPressure(Pressure{Disk: true})
	node = awaitNode(t, admin, "under disk pressure", func(node *v1.Node) bool {
		disk := findCondition(node.Status.Conditions, v1.NodeDiskPressure)
		return disk != nil && disk.Status == v1.ConditionTrue
	})
	thing := node.Status.Capacity["example.com/thing"]
	if findCondition(node.Status.Conditions, v1.NodeNetworkUnavailable) == nil || thing.Value() != 3 || node.Labels["mine"] != "yes" ||
		!node.Spec.Unschedulable {
		t.Errorf("something of others was lost: %+v", node)
	}

	// Deleted while the agent runs, the node comes back.
	if err := admin.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := awaitNode(t, admin, "registered again", func(fresh *v1.Node) bool { return fresh.UID != node.UID && isReady(fresh) })
	stop()

	// A restart finds the node and does not touch what did not change.
	before, err := admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg2 := testConfig(t, cri, nil)
	cfg2.Client, cfg2.Settings = asNode, cfg.Settings
	seen := make(chan time.Time, 1)
	begun := time.Now()
	cfg2.OnNode = func(node *v1.Node) {
		if node != nil && node.ResourceVersion != before.ResourceVersion && isReady(node) {
			select {
			case seen <- time.Now():
			default:
			}
		}
	}
	defer start(t, cfg2)()
	t.Logf("restart: first status posted after %v", (<-seen).Sub(begun))
	after, err := admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.UID != again.UID || readyOf(after).LastTransitionTime != readyOf(before).LastTransitionTime {
		t.Errorf("the restart flipped the node: %+v to %+v", readyOf(before), readyOf(after))
	}
}

func awaitLease(t *testing.T, client kubernetes.Interface, node *v1.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if _, open := <-events.ResultChan(); open {
		lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != node.UID || *lease.Spec.HolderIdentity != "n1" ||
			*lease.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease is %+v", lease)
		}
		return
	}
	t.Fatal("no lease appeared")
}
