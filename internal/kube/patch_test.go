package kube

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	applyv1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestPatchesAreGuarded(t *testing.T) {
	obj := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}, Status: v1.NodeStatus{Phase: v1.NodePending}}
	none := []string{}
	for _, c := range []struct {
		guard  Guard
		change Change
		want   string
	}{
		{SameObject, Change{Annotations: map[string]*string{"a": To("1"), "b": nil}},
			`{"metadata":{"annotations":{"a":"1","b":null},"uid":"u"}}`},
		{Unchanged, Change{Finalizers: &none}, `{"metadata":{"finalizers":[],"resourceVersion":"7","uid":"u"}}`},
		{Unchanged, Change{Owners: &[]metav1.OwnerReference{}}, `{"metadata":{"ownerReferences":[],"resourceVersion":"7","uid":"u"}}`},
		{SameObject, Change{Unfinalize: "f", Strategic: true}, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["f"],"uid":"u"}}`},
		{SameObject, Change{Spec: applyv1.NodeSpec().WithPodCIDR("10.0.0.0/24"), Labels: Texts(map[string]string{"l": "x"})},
			`{"metadata":{"labels":{"l":"x"},"uid":"u"},"spec":{"podCIDR":"10.0.0.0/24"}}`},
		{Unchanged, Change{Fields: map[string]any{"data": Instead(map[string]string{"old": "1", "same": "2"},
			map[string]string{"same": "3"})}},
			`{"data":{"old":null,"same":"3"},"metadata":{"resourceVersion":"7","uid":"u"}}`},
	} {
		got, err := c.change.Body(obj, c.guard)
		if err != nil || string(got) != c.want {
			t.Errorf("%+v:\n got %s %v\nwant %s", c.change, got, err, c.want)
		}
	}
}

func TestPatchStatusWritesTheDifferenceOnly(t *testing.T) {
	client := fake.NewClientset()
	var sent []k8stesting.PatchAction
	client.PrependReactor("patch", "nodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		sent = append(sent, a.(k8stesting.PatchAction))
		return true, &v1.Node{}, nil
	})
	obj := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}, Status: v1.NodeStatus{Phase: v1.NodePending}}
	want := obj.Status.DeepCopy()
	if _, changed, err := PatchStatus(context.Background(), client.CoreV1().Nodes(), obj, obj.Status, *want); changed || err != nil ||
		len(sent) > 0 {
		t.Errorf("no difference: %v %v %v", changed, err, sent)
	}
	want.Phase = v1.NodeRunning
	if _, changed, err := PatchStatus(context.Background(), client.CoreV1().Nodes(), obj, obj.Status, *want); !changed || err != nil ||
		len(sent) != 1 {
		t.Fatalf("a difference: %v %v %v", changed, err, sent)
	}
	if got := string(sent[0].GetPatch()); sent[0].GetSubresource() != "status" ||
		got != `{"metadata":{"resourceVersion":"7","uid":"u"},"status":{"phase":"Running"}}` {
		t.Errorf("sent %s to %q", got, sent[0].GetSubresource())
	}
}

// Each event is written with the client of whoever recorded it.
func TestEventsAreWrittenAsTheirComponent(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type write struct{ client, component string }
	wrote := make(chan write, 4)
	client := func(name string) *fake.Clientset {
		c := fake.NewClientset()
		c.PrependReactor("create", "events", func(a k8stesting.Action) (bool, runtime.Object, error) {
			e := a.(k8stesting.CreateAction).GetObject().(*v1.Event)
			wrote <- write{name, e.Source.Component}
			return true, e, nil
		})
		return c
	}
	r := NewRecorders(ctx)
	ref := &v1.ObjectReference{Kind: "Node", Name: "n"}
	one, two := r.As(client("1"))("one"), r.As(client("2"))("two")
	one.Event(ref, v1.EventTypeNormal, "A", "")
	if got := <-wrote; got != (write{"1", "one"}) {
		t.Error(got)
	}
	two.Event(ref, v1.EventTypeNormal, "B", "")
	if got := <-wrote; got != (write{"2", "two"}) {
		t.Error(got)
	}
}
