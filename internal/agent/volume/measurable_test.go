package volume

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMeasurableVolumes(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	for _, c := range []struct {
		source v1.VolumeSource
		ok     bool
		shared bool
		claim  string
	}{
		{v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, true, true, ""},
		{v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}, true, false, ""},
		{v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, true, true, ""},
		{v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, true, false, ""},
		{v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}, true, false, ""},
		{v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}, true, false, ""},
		{v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}, true, false, ""},
		{v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}, true, false, "c"},
		{v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}, true, false, "p-v"},
		{v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}, false, false, ""},
		{v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}, false, false, ""},
		{v1.VolumeSource{Image: &v1.ImageVolumeSource{}}, false, false, ""},
	} {
		got, ok := measurableAs(p, &v1.Volume{Name: "v", VolumeSource: c.source})
		if ok != c.ok || ok && (got.Name != "v" || got.Shared != c.shared || got.Claim != c.claim) {
			t.Errorf("%+v: %+v %v", c.source, got, ok)
		}
	}
}
