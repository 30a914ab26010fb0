package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// needRoot skips tests that mount.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount file systems")
	}
	probe := t.TempDir()
	if err := unix.Mount("tmpfs", probe, "tmpfs", 0, ""); err != nil {
		t.Skipf("needs the right to mount file systems: %v", err)
	}
	if err := unix.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}
}

// newTestManager makes a manager on a directory of its own that ends with the
// test and leaves no mount behind.
func newTestManager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	if cfg.RootDir == "" {
		cfg.RootDir = t.TempDir()
	}
	m := New(cfg)
	t.Cleanup(func() {
		m.Close()
		noMounts(t, cfg.RootDir)
	})
	return m
}

func noMounts(t *testing.T, dir string) {
	t.Helper()
	mounts, err := mountsBelow(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, mt := range mounts {
		t.Errorf("left mounted: %s (%s)", mt.Mountpoint, mt.FSType)
		_ = unix.Unmount(mt.Mountpoint, unix.MNT_DETACH)
	}
}

// testPod mounts each volume at /<name> of its only container.
func testPod(uid string, volumes ...v1.Volume) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid), Labels: map[string]string{"app": "a"}},
		Spec: v1.PodSpec{
			ServiceAccountName: "sa", Volumes: volumes, Containers: []v1.Container{{Name: "c"}},
		},
	}
	for _, v := range volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return p
}

func emptyDirVolume(name string, medium v1.StorageMedium) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: medium}}}
}

func downwardVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "meta/labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
	}}}}
}

func mustMount(t *testing.T, m *Manager, pod *v1.Pod) map[string]Mounted {
	t.Helper()
	out, err := m.Mount(context.Background(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustUnmount(t *testing.T, m *Manager, uid string) {
	t.Helper()
	if err := m.Unmount(context.Background(), types.UID(uid)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(m.layout.pod(types.UID(uid))); !os.IsNotExist(err) {
		t.Fatalf("pod directory is still there: %v", err)
	}
}

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// events collects what users are told.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(_ *v1.Pod, eventType, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, eventType+" "+reason+" "+message)
}

func (e *events) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.list, "\n")
}

func owner(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
