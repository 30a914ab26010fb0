package container

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The vectors are what a kubelet computes (TestHashContainer and
// TestHashContainerWithoutResources of kubernetes/kubernetes, and containers
// that kubelet 1.36.2 left on a node); older is what berth wrote before.
func TestHashIsTheKubelets(t *testing.T) {
	for _, v := range []struct{ name, image, want, older string }{
		{"foo", "bar", "11a6d6d6", "8ae39d52"},
		{"test_container", "foo/image:v1", "8e45cbd0", "cd1853f2"},
		{"kube-proxy", "registry.k8s.io/kube-proxy:v1.31.0", "78ccb3c", "d87f4c50"},
		{"coredns", "registry.k8s.io/coredns/coredns:v1.11.1", "e6f52134", "75c4b438"},
		{"c", "registry.k8s.io/pause:3.10.2", "d7e0a3c", ""},
		{"c", "registry.k8s.io/e2e-test-images/agnhost:2.63.0", "8cd7e80f", ""},
		{"s", "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", "12ddb2e0", ""},
	} {
		c := &v1.Container{Name: v.name, Image: v.image, Args: []string{"not", "part", "of", "it"}}
		if got := Hash(c); got != v.want {
			t.Errorf("the hash of %s with %s is %s, a kubelet's is %s", v.name, v.image, got, v.want)
		}
		if !SameDefinition(v.want, c) || !SameDefinition("", c) || v.older != "" && !SameDefinition(v.older, c) {
			t.Errorf("%s with %s: a container of the same definition is taken for another", v.name, v.image)
		}
		if other := (&v1.Container{Name: v.name, Image: v.image + "0"}); SameDefinition(v.want, other) || v.older != "" &&
			SameDefinition(v.older, other) {
			t.Errorf("%s: another image than %s is taken for the same definition", v.name, v.image)
		}
	}
}
