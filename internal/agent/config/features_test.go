package config

import (
	"fmt"
	"strings"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Every gate that a configuration may name is told, the one that can be
// switched as it was.
func TestFeatures(t *testing.T) {
	for _, on := range []bool{false, true} {
		list := Features(&kubeletv1beta1.KubeletConfiguration{FeatureGates: map[string]bool{memoryQoS: on}})
		if len(list) != len(gateValues)+1 {
			t.Fatalf("%d features of %d", len(list), len(gateValues)+1)
		}
		for _, f := range list {
			want, stage := gateValues[f.Name], ""
			if f.Name == memoryQoS {
				want, stage = on, "ALPHA"
			}
			if f.Enabled != want || f.Stage != stage {
				t.Errorf("%+v, want %v in stage %q", f, want, stage)
			}
		}
	}
}

// TestGatesOfWhatIsAlwaysOn: naming a feature that is part of berth is no
// mistake, switching it off is.
func TestGatesOfWhatIsAlwaysOn(t *testing.T) {
	for _, gate := range []string{"ImageMaximumGCAge", "KubeletEnsureSecretPulledImages", "PodReadyToStartContainersCondition",
		"UserNamespacesSupport", "KubeletPodResourcesGet"} {
		for on, want := range map[bool]string{true: "", false: "featureGates." + gate + " cannot be false"} {
			_, err := load(t, map[string]string{"c.yaml": fmt.Sprintf("%sfeatureGates: {%s: %v}\n", header, gate, on)},
				"--config=DIR/c.yaml")
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s %v: %v", gate, on, err)
			}
		}
	}
}
