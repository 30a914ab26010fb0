package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/agent/container"
)

func TestSubPathMountsWhatTheVolumeHolds(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{})
	pod := testPod("a", emptyDirVolume("work", ""), downwardVolume("info"))
	c := &pod.Spec.Containers[0]
	c.VolumeMounts[0].SubPathExpr = "$(POD)/logs"
	c.VolumeMounts[1].SubPath = "name"
	mounted := mustMount(t, m, pod)
	got, err := m.SubPaths(context.Background(), pod, c, mounted, []container.EnvVar{{Name: "POD", Value: "p1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(got[0], "x"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if readFile(t, mounted["work"].HostPath, "p1", "logs", "x") != "hello" {
		t.Error("the subPath is not the volume's directory")
	}
	if readFile(t, got[1]) != "pod-a" {
		t.Error("the file behind the volume's links is not mounted")
	}
	again, err := m.SubPaths(context.Background(), pod, c, mounted, []container.EnvVar{{Name: "POD", Value: "p1"}})
	if err != nil || again[0] != got[0] {
		t.Errorf("second time: %v, %v", again, err)
	}
	if list, _ := mountsBelow(m.layout.pod("a") + "/volume-subpaths"); len(list) != 2 {
		t.Errorf("%d mounts after preparing twice, want 2", len(list))
	}
	_, err = m.SubPaths(context.Background(), pod, c, mounted, nil)
	if err == nil || err.Error() != `missing value for "POD"` {
		t.Errorf("unset variable: %v", err)
	}
	mustUnmount(t, m, "a")
}

func TestSubPathNeverLeavesTheVolume(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{})
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, link := range map[string]string{
		"absolute": outside, "relative": "../../../../../../../../../../" + outside, "magic": "/proc/self/root",
	} {
		pod := testPod("a", emptyDirVolume("work", ""))
		c := &pod.Spec.Containers[0]
		c.VolumeMounts[0].SubPath = "link/secret"
		mounted := mustMount(t, m, pod)
		if err := os.Symlink(link, filepath.Join(mounted["work"].HostPath, "link")); err != nil {
			t.Fatal(err)
		}
		_, err := m.SubPaths(context.Background(), pod, c, mounted, nil)
		var ce *container.ConfigError
		if !errors.As(err, &ce) || err.Error() != `failed to prepare subPath for volumeMount "work" of container "c"` {
			t.Errorf("%s: %v", name, err)
		}
		mustUnmount(t, m, "a")
	}
}

// Another container swaps a directory for a link to the host as fast as it
// can; whatever is prepared is never the host's.
func TestSubPathSurvivesASwappingNeighbour(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{})
	outside := t.TempDir()
	var host unix.Stat_t
	if err := unix.Stat(outside, &host); err != nil {
		t.Fatal(err)
	}
	pod := testPod("a", emptyDirVolume("work", ""))
	c := &pod.Spec.Containers[0]
	c.VolumeMounts[0].SubPath = "dir"
	mounted := mustMount(t, m, pod)
	dir := filepath.Join(mounted["work"].HostPath, "dir")
	evil := filepath.Join(mounted["work"].HostPath, "evil")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, evil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, evil, unix.RENAME_EXCHANGE)
			}
		}
	})
	prepared, refused := 0, 0
	for range 300 {
		got, err := m.SubPaths(context.Background(), pod, c, mounted, nil)
		if err != nil {
			refused++
			continue
		}
		prepared++
		var st unix.Stat_t
		if err := unix.Stat(got[0], &st); err != nil {
			t.Fatal(err)
		}
		if st.Ino == host.Ino && st.Dev == host.Dev {
			t.Fatal("the host's directory was mounted into the pod")
		}
		if err := (kernel{}).unmount(got[0], true); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("prepared %d times, refused %d times", prepared, refused)
	mustUnmount(t, m, "a")
}
