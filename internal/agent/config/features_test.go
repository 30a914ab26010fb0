package config

import (
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
