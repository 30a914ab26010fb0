package volume

import (
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func anchor(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func bundle(name, signer, label string, anchors ...string) *certificates.ClusterTrustBundle {
	return &certificates.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}},
		Spec:       certificates.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: "comment\n" + strings.Join(anchors, "")},
	}
}

func TestTrustBundles(t *testing.T) {
	needRoot(t)
	signer, name, yes := "example.com/s", "one", true
	c := newCluster(t, false,
		bundle("one", signer, "a", anchor("1"), anchor("2")), bundle("two", signer, "b", anchor("2"), anchor("3")),
		bundle("other", "else/s", "a", anchor("4")))
	m := newTestManager(t, Config{Client: c})
	source := func(path string, p v1.ClusterTrustBundleProjection) v1.VolumeProjection {
		p.Path = path
		return v1.VolumeProjection{ClusterTrustBundle: &p}
	}
	vol := v1.Volume{Name: "ca", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		source("name", v1.ClusterTrustBundleProjection{Name: &name}),
		source("all", v1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: &metav1.LabelSelector{}}),
		source("some", v1.ClusterTrustBundleProjection{SignerName: &signer,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"l": "b"}}}),
		source("none", v1.ClusterTrustBundleProjection{SignerName: &signer, Optional: &yes}),
	}}}}
	dir := mustMount(t, m, testPod("a", vol))["ca"].HostPath
	for file, want := range map[string]int{"name": 2, "all": 3, "some": 2, "none": 0} {
		if got := strings.Count(readFile(t, dir, file), "BEGIN CERTIFICATE"); got != want {
			t.Errorf("%s holds %d anchors, want %d", file, got, want)
		}
	}
	waitWatch(t, c, "clustertrustbundles//")
	done := make(chan struct{})
	watchDir(t, dir, func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "name"))
		return strings.Count(string(b), "BEGIN") == 1
	}, done)
	if _, err := c.CertificatesV1().ClusterTrustBundles().Update(context.Background(), bundle("one", signer, "a", anchor("9")),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-done
	vol = *vol.DeepCopy()
	vol.Projected.Sources = vol.Projected.Sources[3:]
	vol.Projected.Sources[0].ClusterTrustBundle.Optional = nil
	if _, err := m.Mount(context.Background(), testPod("b", vol)); err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("no ClusterTrustBundle matches signerName %q", signer)) {
		t.Errorf("no match: %v", err)
	}
	mustUnmount(t, m, "a")
	mustUnmount(t, m, "b")
}
