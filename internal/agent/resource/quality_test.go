package resource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestMemoryIsProtectedAllTheWayUp makes pods on a made v2 tree: a pod's own
// protection and the sums above it, up as pods come and down as they go.
func TestMemoryIsProtectedAllTheWayUp(t *testing.T) {
	dir := t.TempDir()
	c, err := New(Config{Driver: Cgroupfs, PerQOS: true, Pod: PodOptions{ReserveMemory: true}, Hierarchy: Hierarchy{Unified: dir}})
	if err != nil {
		t.Fatal(err)
	}
	c.create = true
	if err := c.EnsureRoot(); err != nil {
		t.Fatal(err)
	}
	pod := func(name, memory string, guaranteed bool) *v1.Pod {
		list := v1.ResourceList{v1.ResourceMemory: apiresource.MustParse(memory), v1.ResourceCPU: apiresource.MustParse("100m")}
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Resources: v1.ResourceRequirements{Requests: list}}}}}
		if guaranteed {
			p.Spec.Containers[0].Resources.Limits = list
		}
		return p
	}
	holds := func(path, file, want string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(dir, path, file))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s of %s is %q, want %s (%v)", file, path, got, want, err)
		}
	}
	for _, p := range []*v1.Pod{pod("g", "1Mi", true), pod("b1", "2Mi", false), pod("b2", "3Mi", false)} {
		if _, err := c.EnsurePod(p); err != nil {
			t.Fatal(err)
		}
	}
	class := c.names.class(v1.PodQOSBurstable)
	holds(c.names.pod("g", v1.PodQOSGuaranteed), "memory.min", "1048576")
	holds(c.names.pod("b1", v1.PodQOSBurstable), "memory.low", "2097152")
	holds(c.PodsPath(), "memory.min", "1048576")
	holds(c.PodsPath(), "memory.low", "5242880")
	holds(class, "memory.low", "5242880")
	c.mu.Lock()
	delete(c.reserved[v1.PodQOSBurstable], "b2") // what RemovePod does beside removing directories
	err = c.writeProtection()
	c.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	holds(class, "memory.low", "2097152")
	holds(c.PodsPath(), "memory.low", "2097152")
}
