package registry_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scheme"
)

func volume(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: "local",
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}}}}
}

// owned says whether a manager owns a field of an object through a subresource.
func owned(t *testing.T, pv *v1.PersistentVolume, manager, subresource, field string) bool {
	t.Helper()
	for _, m := range pv.ManagedFields {
		if m.Manager == manager && m.Subresource == subresource {
			return strings.Contains(string(m.FieldsV1.Raw), `"f:`+field+`"`)
		}
	}
	return false
}

// What the special storages share, seen through the API by volumes: each endpoint
// writes its own half of the object, and lets clients own no more.
func TestEndpointsOfAStore(t *testing.T) {
	ctx := t.Context()
	client := kubernetes.NewForConfigOrDie(apitest.Start(t))
	volumes := client.CoreV1().PersistentVolumes()
	apply := func(pv *v1.PersistentVolume, manager string, sub ...string) (*v1.PersistentVolume, error) {
		body, err := json.Marshal(pv)
		if err != nil {
			t.Fatal(err)
		}
		force := true
		return volumes.Patch(ctx, pv.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager, Force: &force}, sub...)
	}
	both := volume("pv")
	both.Status = v1.PersistentVolumeStatus{Phase: v1.VolumeFailed, Message: "from spec"}

	t.Run("a subresource never creates", func(t *testing.T) {
		if _, err := volumes.UpdateStatus(ctx, both, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("PUT of the status of a volume that is not there: %v", err)
		}
		if _, err := apply(both, "status-writer", "status"); !apierrors.IsNotFound(err) {
			t.Errorf("apply to the status of a volume that is not there: %v", err)
		}
		if list, err := volumes.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			t.Errorf("created nevertheless: %v, %v", list, err)
		}
	})
	t.Run("fields of the other half are neither written nor owned", func(t *testing.T) {
		pv, err := apply(both, "spec-writer")
		if err != nil {
			t.Fatal(err)
		}
		if pv.Status.Message != "" || owned(t, pv, "spec-writer", "", "status") || !owned(t, pv, "spec-writer", "", "spec") {
			t.Errorf("after apply of both halves: %+v, managed %+v", pv.Status, pv.ManagedFields)
		}
		other := volume("pv")
		other.Spec.StorageClassName, other.Status = "changed", v1.PersistentVolumeStatus{Phase: v1.VolumeReleased, Message: "from status"}
		if pv, err = apply(other, "status-writer", "status"); err != nil {
			t.Fatal(err)
		}
		if pv.Spec.StorageClassName != "local" || pv.Status.Message != "from status" || owned(t, pv, "status-writer", "status", "spec") ||
			!owned(t, pv, "status-writer", "status", "status") {
			t.Errorf("after apply to the status: class %q, %+v, managed %+v", pv.Spec.StorageClassName, pv.Status, pv.ManagedFields)
		}
	})
	t.Run("each endpoint validates", func(t *testing.T) {
		pv, err := volumes.Get(ctx, "pv", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/other"}}
		if _, err := volumes.Update(ctx, pv, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("a changed source: %v", err)
		}
		bad := volume("bad")
		bad.Spec.AccessModes = nil
		if _, err := volumes.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("without access modes: %v", err)
		}
	})
	t.Run("an update may go without a version, a stale one is refused", func(t *testing.T) {
		pv, err := volumes.Get(ctx, "pv", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stale := pv.DeepCopy()
		pv.ResourceVersion, pv.Labels = "", map[string]string{"a": "b"}
		if pv, err = volumes.Update(ctx, pv, metav1.UpdateOptions{}); err != nil || pv.Labels["a"] != "b" {
			t.Fatalf("without a version: %v", err)
		}
		if _, err = volumes.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("with a stale version: %v", err)
		}
		if _, err = volumes.UpdateStatus(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("of the status, with a stale version: %v", err)
		}
	})
	t.Run("kubectl's names", func(t *testing.T) {
		list, err := client.Discovery().ServerResourcesForGroupVersion("v1")
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]metav1.APIResource{}
		for _, r := range list.APIResources {
			names[r.Name] = r
		}
		pv, status := names["persistentvolumes"], names["persistentvolumes/status"]
		if !slices.Equal(pv.ShortNames, []string{"pv"}) || pv.SingularName != "persistentvolume" || pv.Namespaced {
			t.Errorf("discovery says %+v", pv)
		}
		if !slices.Equal(status.Verbs, []string{"get", "patch", "update"}) {
			t.Errorf("verbs of the status: %v", status.Verbs)
		}
	})
}

// Fields left empty do the ordinary thing, and the status strategy keeps none of
// the main one's rights.
func TestStrategyOfTheStatus(t *testing.T) {
	no := func(where string) field.ErrorList {
		return field.ErrorList{field.Forbidden(field.NewPath(where), "")}
	}
	set := scheme.Shared()
	kind := registry.Kind[*v1.Node]{GroupVersion: v1.SchemeGroupVersion, Kind: "Node", Resource: "nodes", NamespaceScoped: true,
		AllowCreateOnUpdate: true, HasStatus: true,
		Validate:             func(*v1.Node) field.ErrorList { return no("create") },
		ValidateUpdate:       func(_, _ *v1.Node) field.ErrorList { return no("update") },
		ValidateStatusUpdate: func(_, _ *v1.Node) field.ErrorList { return no("status") },
		WarningsOnUpdate:     func(_ context.Context, _, _ *v1.Node) []string { return []string{"old field"} }}
	ctx, n := t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1"}}
	main, status := registry.Strategies(&kind, set.Scheme)
	if !main.AllowCreateOnUpdate(ctx) || status.AllowCreateOnUpdate(ctx) || !status.NamespaceScoped() ||
		main.AllowUnconditionalUpdate(ctx) {
		t.Error("a PUT to a status may create, or the scope is another")
	}
	if got := status.ValidateUpdate(ctx, n, n); len(got) != 1 || got[0].Field != "status" {
		t.Errorf("the status is validated by %v", got)
	}
	if got := main.ValidateUpdate(ctx, n, n); len(got) != 1 || got[0].Field != "update" {
		t.Errorf("the object is validated by %v", got)
	}
	if len(main.WarningsOnUpdate(ctx, n, n)) != 1 || len(status.WarningsOnUpdate(ctx, n, n)) != 0 {
		t.Error("a write of the status warns of the spec")
	}
	empty, _ := registry.Strategies(&registry.Kind[*v1.Node]{AllowUnconditionalUpdate: true}, set.Scheme)
	empty.PrepareForUpdate(ctx, n, n)
	empty.Canonicalize(n)
	if empty.ValidateUpdate(ctx, n, n) != nil || empty.WarningsOnUpdate(ctx, n, n) != nil ||
		!empty.AllowUnconditionalUpdate(ctx) || empty.AllowCreateOnUpdate(ctx) {
		t.Error("an empty kind refuses something")
	}
}
