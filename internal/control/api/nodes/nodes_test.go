package nodes_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

func TestNode(t *testing.T) {
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(apitest.Start(t))
	nodes := client.CoreV1().Nodes()
	cpu := v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}
	n, err := nodes.Create(ctx, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec:       v1.NodeSpec{PodCIDR: "10.1.0.0/24"},
		Status:     v1.NodeStatus{Capacity: cpu, Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Status.Addresses) != 1 || n.Status.Allocatable.Cpu().String() != "4" || len(n.Spec.PodCIDRs) != 1 || n.Generation != 0 {
		t.Errorf("new node is %+v", n)
	}
	n.Spec.Unschedulable = true
	n.Status.Addresses = nil
	if n, err = nodes.Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !n.Spec.Unschedulable || len(n.Status.Addresses) != 1 {
		t.Errorf("updated node is %+v", n)
	}
	n.Spec.Unschedulable = false
	n.Labels = map[string]string{"kept": "1"}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	if n, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !n.Spec.Unschedulable || n.Labels["kept"] != "1" || len(n.Status.Conditions) != 1 {
		t.Errorf("node after a status write is %+v", n)
	}
	_, err = nodes.Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "dual"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := nodes.Patch(ctx, "dual", types.MergePatchType, []byte(`{"spec":{"podCIDRs":["10.2.0.0/24","fd00::/64"]}}`),
		metav1.PatchOptions{})
	if err != nil || d.Spec.PodCIDR != "10.2.0.0/24" {
		t.Errorf("node with CIDRs is %+v, %v", d, err)
	}
	// Asking a node without an address, or none at all.
	err = client.CoreV1().RESTClient().Get().MaxRetries(0).Resource("nodes").Name("dual").SubResource("proxy").Suffix("healthz").Do(
		ctx).Error()
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("proxy to a node without address gave %v, want 503", err)
	}
	err = client.CoreV1().RESTClient().Get().Resource("nodes").Name("absent").SubResource("proxy").Do(ctx).Error()
	if !apierrors.IsNotFound(err) {
		t.Errorf("proxy to a missing node gave %v, want 404", err)
	}
	if err := nodes.Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Get(ctx, "n", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deleted node is still there: %v", err)
	}
}
