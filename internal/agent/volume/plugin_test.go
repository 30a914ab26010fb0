package volume

import (
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// Metrics name the kind of a volume, and the driver where there is one; what a
// claim is made of is known from what was set up.
func TestPluginNames(t *testing.T) {
	m := &Manager{layout: layout{root: t.TempDir()}}
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	if err := os.MkdirAll(m.layout.volume("u", pluginNFS, "nfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := m.layout.volume("u", pluginCSI, "pv-1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/"+volData, []byte(`{"volumeHandle":"h","driverName":"disk.example","berthPodVolume":"data"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		source v1.VolumeSource
		want   string
	}{
		{"e", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, "kubernetes.io/empty-dir"},
		{"s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, "kubernetes.io/secret"},
		{"p", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}, "kubernetes.io/projected"},
		{"i", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "inline.example"}}, "kubernetes.io/csi:inline.example"},
		{"data", claim, "kubernetes.io/csi:disk.example"},
		{"nfs", claim, "kubernetes.io/nfs"},
		{"new", claim, "N/A"},
	} {
		if got := m.Plugin("u", &v1.Volume{Name: c.name, VolumeSource: c.source}); got != c.want {
			t.Errorf("volume %s is of %q, want %q", c.name, got, c.want)
		}
	}
}
