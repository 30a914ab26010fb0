package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestMountPropagation checks all three kinds of mount propagation with real
// mounts: one made on the node, and one made inside a container.
func TestMountPropagation(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	c.Kubectl("apply", "-f", filepath.Join("testdata", "propagation.yaml"))
	pod := c.WaitReady("default", "app=propagation", 1)[0]
	volume := filepath.Join(c.Dir, "agent", "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "v")
	ids := map[string]int{}
	pids := c.ContainerPIDs()
	for _, s := range pod.Status.ContainerStatuses {
		ids[s.Name] = pids[strings.TrimPrefix(s.ContainerID, "containerd://")]
	}
	mustMount := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	outer := filepath.Join(volume, "outer")
	mustMount(os.Mkdir(outer, 0o755))
	mustMount(os.Mkdir(filepath.Join(volume, "inner"), 0o755))
	mustMount(unix.Mount("tmpfs", outer, "tmpfs", 0, ""))
	mustMount(os.WriteFile(filepath.Join(outer, "by-node"), nil, 0o644))
	mustMount(inside(ids["both"], func() error { return unix.Mount("tmpfs", "/v/inner", "tmpfs", 0, "") }))
	mustMount(inside(ids["both"], func() error { return os.WriteFile("/v/inner/by-container", nil, 0o644) }))

	if _, err := os.Stat(filepath.Join(volume, "inner", "by-container")); err != nil {
		t.Errorf("Bidirectional: the node does not see the container's mount: %v", err)
	}
	for container, sees := range map[string]bool{"none": false, "down": true, "both": true} {
		for _, file := range []string{"outer/by-node", "inner/by-container"} {
			_, err := c.TryKubectl("", "exec", pod.Name, "-c", container, "--", "stat", "/v/"+file)
			if (err == nil) != sees {
				t.Errorf("container %s sees %s: %v, want %v", container, file, err == nil, sees)
			}
		}
	}
	// Taking the pod down ends mounts that were made in its volume.
	c.Kubectl("delete", "pod", pod.Name, "--wait")
	c.Eventually("the volume is gone", func() (bool, string) {
		_, err := os.Lstat(volume)
		return os.IsNotExist(err), fmt.Sprint(err)
	})
}

// inside runs f in the mount namespace of a process.
func inside(pid int, f func() error) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		// The thread stays in the other namespace, so it must end with us.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}
