package core_test

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/api/kinds/core"
)

func TestVolumes(t *testing.T) {
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(apitest.Start(t)).CoreV1()
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	pv, err := client.PersistentVolumes().Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pv.Status.Phase != v1.VolumePending || !slices.Contains(pv.Finalizers, core.VolumeProtection) {
		t.Errorf("new volume is %+v", pv)
	}
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	pv.Status.Phase = v1.VolumeAvailable
	if pv, err = client.PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if pv.Status.Phase != v1.VolumeAvailable || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain {
		t.Errorf("volume after a status write is %+v", pv)
	}
	claims := client.PersistentVolumeClaims("default")
	group := "snapshot.storage.k8s.io"
	claim, err := claims.Create(ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: v1.VolumeResourceRequirements{Requests: size},
			DataSource: &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.Status.Phase != v1.ClaimPending || !slices.Contains(claim.Finalizers, core.ClaimProtection) ||
		claim.Spec.DataSourceRef == nil || claim.Spec.DataSourceRef.Name != "s" {
		t.Errorf("new claim is %+v", claim)
	}
	foreign, err := claims.Create(ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: v1.VolumeResourceRequirements{Requests: size},
			DataSourceRef: &v1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s", Namespace: new("kube-system")},
		},
	}, metav1.CreateOptions{})
	if err != nil || foreign.Spec.DataSourceRef.Namespace != nil || foreign.Spec.DataSource == nil {
		t.Errorf("a claim with a source in another namespace is %+v, %v; want the namespace dropped", foreign.Spec, err)
	}
	if err := claims.Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if claim, err = claims.Get(ctx, "c", metav1.GetOptions{}); err != nil || claim.DeletionTimestamp == nil {
		t.Errorf("a protected claim went at once: %+v, %v", claim, err)
	}
}
