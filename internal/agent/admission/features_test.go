package admission

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/container"
)

func TestDeclaredFeatures(t *testing.T) {
	plain, mounts := DeclaredFeatures(container.RuntimeFeatures{}), DeclaredFeatures(container.RuntimeFeatures{MountOptions: true})
	for _, name := range []string{"RestartAllContainersOnContainerExits", "InPlacePodVerticalScalingInitContainers"} {
		if !slices.Contains(plain, name) {
			t.Errorf("%s is not declared: %v", name, plain)
		}
	}
	if !slices.IsSorted(plain) || slices.Contains(plain, "VolumeBindMountOptions") || !slices.Contains(mounts, "VolumeBindMountOptions") {
		t.Errorf("declared without and with mount options: %v, %v", plain, mounts)
	}
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", BindMountOptions: []string{"noexec"}}}}}
	if why, message, ok := unsupported(p, plain); ok || why != "PodFeatureUnsupported" ||
		message != "Pod requires node features that are not available: VolumeBindMountOptions" {
		t.Errorf("a pod with mount options: %v %s %s", ok, why, message)
	}
	if _, message, ok := unsupported(p, mounts); !ok {
		t.Errorf("a pod with mount options on a runtime that has them: %s", message)
	}
}
