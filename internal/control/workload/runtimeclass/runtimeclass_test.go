package runtimeclass

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/controller"
)

func TestOffered(t *testing.T) {
	n := &v1.Node{Status: v1.NodeStatus{RuntimeHandlers: []v1.NodeRuntimeHandler{{Name: ""}, {Name: "runc"}, {Name: "kata"}, {Name: "crun"},
		{Name: "No.Label"}, {Name: "kata"}}}}
	if got := offered(n); !slices.Equal(got, []string{"crun", "kata"}) {
		t.Error(got)
	}
}

// TestOnce: a class is made once; a user's own, changed or removed one stays as it is.
func TestOnce(t *testing.T) {
	client := fake.NewClientset(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Handler: "kata"})
	e := controller.Env{Client: client}
	classes := client.NodeV1().RuntimeClasses()
	offerAll := func() {
		t.Helper()
		for _, h := range []string{"crun", "own"} {
			if err := offer(t.Context(), e, h); err != nil {
				t.Fatal(err)
			}
		}
	}
	offerAll()
	crun, err := classes.Get(t.Context(), "crun", metav1.GetOptions{})
	if err != nil || crun.Handler != "crun" {
		t.Fatal(crun, err)
	}
	if own, err := classes.Get(t.Context(), "own", metav1.GetOptions{}); err != nil || own.Handler != "kata" {
		t.Error("a user's class was changed:", own, err)
	}
	if err := classes.Delete(t.Context(), "crun", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	offerAll()
	if list, err := classes.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Error("a class that a user removed came back:", list, err)
	}
}
