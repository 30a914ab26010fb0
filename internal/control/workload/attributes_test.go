package workload

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAttributesClassInUse: a class that is deleted stays as long as a claim
// names it, and not a moment longer.
func TestAttributesClassInUse(t *testing.T) {
	c := newCluster(t)
	c.namespace("vac")
	classes := c.client.StorageV1().VolumeAttributesClasses()
	for _, name := range []string{"used", "idle"} {
		_, err := classes.Create(c.ctx, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			DriverName: "d.example.com", Parameters: map[string]string{"iops": "100"}}, metav1.CreateOptions{})
		c.must(err)
	}
	used, none := "used", "none"
	claims := c.client.CoreV1().PersistentVolumeClaims("vac")
	_, err := claims.Create(c.ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1.PersistentVolumeClaimSpec{
		StorageClassName: &none, VolumeAttributesClassName: &used, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}},
		metav1.CreateOptions{})
	c.must(err)
	gone := func(name string) {
		t.Helper()
		c.until(name+" is gone", func() string {
			if _, err := classes.Get(c.ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return "it is there"
			}
			return ""
		})
	}
	// One worker looks at both in this order: when the second is gone, the
	// first was looked at.
	for _, name := range []string{"used", "idle"} {
		c.must(classes.Delete(c.ctx, name, metav1.DeleteOptions{}))
	}
	gone("idle")
	if class, err := classes.Get(c.ctx, "used", metav1.GetOptions{}); err != nil || class.DeletionTimestamp == nil {
		t.Errorf("the class that is used: %+v, %v", class, err)
	}
	c.must(claims.Delete(c.ctx, "c", metav1.DeleteOptions{}))
	gone("used")
}
