package namespaces_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestLifeOfANamespace follows one namespace from creation to its end.
func TestLifeOfANamespace(t *testing.T) {
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(apitest.Start(t))
	namespaces := client.CoreV1().Namespaces()

	ns, err := namespaces.Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ns.Labels["kubernetes.io/metadata.name"] != "short" || ns.Status.Phase != v1.NamespaceActive ||
		len(ns.Spec.Finalizers) != 1 || ns.Spec.Finalizers[0] != "kubernetes" {
		t.Errorf("new namespace is %+v", ns)
	}
	ns.Labels = map[string]string{"kubernetes.io/metadata.name": "forged", "a": "b"}
	ns.Spec.Finalizers = nil
	if ns, err = namespaces.Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ns.Labels["kubernetes.io/metadata.name"] != "short" || ns.Labels["a"] != "b" || len(ns.Spec.Finalizers) != 1 {
		t.Errorf("updated namespace is %+v", ns)
	}

	if err := namespaces.Delete(ctx, "short",
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("wrong")}); !apierrors.IsConflict(err) {
		t.Errorf("a wrong UID gave %v, want Conflict", err)
	}
	got := &v1.Namespace{}
	var code int
	if err := client.CoreV1().RESTClient().Delete().Resource("namespaces").Name("short").Do(ctx).StatusCode(&code).Into(got); err != nil {
		t.Fatal(err)
	}
	if code != 200 || got.DeletionTimestamp == nil || got.Status.Phase != v1.NamespaceTerminating {
		t.Errorf("first delete gave %d, %+v", code, got)
	}
	if err := namespaces.Delete(ctx, "short", metav1.DeleteOptions{}); err != nil {
		t.Errorf("second delete: %v", err)
	}
	if ns, err = namespaces.Get(ctx, "short", metav1.GetOptions{}); err != nil {
		t.Fatalf("the namespace went before it was finalized: %v", err)
	}
	ns.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(ctx, "short", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a finalized namespace is still there: %v", err)
	}
}

func TestHeldByMetadata(t *testing.T) {
	ctx := context.Background()
	namespaces := kubernetes.NewForConfigOrDie(apitest.Start(t)).CoreV1().Namespaces()
	_, err := namespaces.Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.test/hold"}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(ctx, "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := namespaces.Get(ctx, "held", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Spec.Finalizers = nil
	if ns, err = namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ns.Finalizers = nil
	if _, err = namespaces.Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(ctx, "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
}

func TestImmortal(t *testing.T) {
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(apitest.Start(t))
	for _, name := range []string{"default", "kube-system", "kube-public"} {
		if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("deleting %s gave %v, want Forbidden", name, err)
		}
	}
	err := client.CoreV1().RESTClient().Delete().Resource("namespaces").Do(ctx).Error()
	if !apierrors.IsMethodNotSupported(err) {
		t.Errorf("deleting the collection gave %v, want method not allowed", err)
	}
}
