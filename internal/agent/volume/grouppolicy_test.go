package volume

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestGroupChangePolicy: what a second pod finds of a volume whose files
// someone gave to other groups, by policy and by group of both pods.
func TestGroupChangePolicy(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		name               string
		policy             v1.PodFSGroupChangePolicy
		first              int64
		top, below         int // groups given in between; 0: none
		second             int64
		wantTop, wantBelow uint32
	}{
		{"always, another group", v1.FSGroupChangeAlways, 1000, 0, 0, 2000, 2000, 2000},
		{"always, changed, same group", v1.FSGroupChangeAlways, 1000, 2000, 3000, 1000, 1000, 1000},
		{"always, changed, another group", v1.FSGroupChangeAlways, 1000, 2000, 3000, 4000, 4000, 4000},
		{"mismatch, another group", v1.FSGroupChangeOnRootMismatch, 1000, 0, 0, 2000, 2000, 2000},
		{"mismatch, changed, same group", v1.FSGroupChangeOnRootMismatch, 1000, 2000, 3000, 1000, 2000, 3000},
		{"mismatch, changed, another group", v1.FSGroupChangeOnRootMismatch, 1000, 2000, 3000, 4000, 4000, 4000},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := t.TempDir()
			objects := csiObjects(false)
			objects[2].(*v1.PersistentVolume).Spec.PersistentVolumeSource = v1.PersistentVolumeSource{
				Local: &v1.LocalVolumeSource{Path: source}}
			m := newTestManager(t, Config{Client: fake.NewClientset(objects...), NodeName: "n"})
			pod := func(uid string, group int64) *v1.Pod {
				p := testPod(uid, claimVolume())
				p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: &c.policy}
				return p
			}
			groupOf := func(path string) uint32 {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				return info.Sys().(*syscall.Stat_t).Gid
			}
			dir := mustMount(t, m, pod("a", c.first))["data"].HostPath
			top, below := filepath.Join(dir, "file1"), filepath.Join(dir, "subdir", "file2")
			for _, err := range []error{os.Mkdir(filepath.Dir(below), 0o777), os.WriteFile(top, nil, 0o644),
				os.WriteFile(below, nil, 0o644)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if groupOf(top) != uint32(c.first) || groupOf(below) != uint32(c.first) {
				t.Errorf("new files belong to %d and %d, want %d", groupOf(top), groupOf(below), c.first)
			}
			for path, group := range map[string]int{top: c.top, below: c.below} {
				if group == 0 {
					continue
				}
				if err := os.Chown(path, -1, group); err != nil {
					t.Fatal(err)
				}
			}
			mustUnmount(t, m, "a")
			dir = mustMount(t, m, pod("b", c.second))["data"].HostPath
			if a, b := groupOf(filepath.Join(dir, "file1")), groupOf(filepath.Join(dir, "subdir", "file2")); a != c.wantTop ||
				b != c.wantBelow {
				t.Errorf("the files belong to %d and %d, want %d and %d", a, b, c.wantTop, c.wantBelow)
			}
			mustUnmount(t, m, "b")
		})
	}
}
