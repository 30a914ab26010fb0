package volume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/container"
)

const (
	crashRoot = "VOLUME_CRASH_ROOT"
	crashStep = "VOLUME_CRASH_STEP"
	// crashDriver is the socket of a CSI driver, for the script that uses one.
	crashDriver = "VOLUME_CRASH_DRIVER"
)

// TestMain turns the test binary into the process that gets killed.
func TestMain(m *testing.M) {
	if root := os.Getenv(crashRoot); root != "" {
		step, err := strconv.Atoi(os.Getenv(crashStep))
		if err != nil {
			panic(err)
		}
		script := func() error { return crashScript(root, step) }
		if socket := os.Getenv(crashDriver); socket != "" {
			script = func() error { return csiCrashScript(root, socket, step) }
		}
		if err := script(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func crashPod() *v1.Pod {
	pod := testPod("p", emptyDirVolume("mem", v1.StorageMediumMemory), emptyDirVolume("disk", ""), downwardVolume("info"))
	group := int64(77)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	mounts := pod.Spec.Containers[0].VolumeMounts
	mounts[0].SubPath = "in/mem"
	mounts[1].SubPath = "in/disk"
	return pod
}

// crashScript mounts, changes and unmounts a pod, and dies by SIGKILL before
// the given change to the file system.
func crashScript(root string, at int) error {
	var n atomic.Int64 // volumes are set up side by side
	cfg := Config{RootDir: root, step: func(string) {
		if n.Add(1) == int64(at) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}}
	m := New(cfg)
	defer m.Close()
	ctx := context.Background()
	pod := crashPod()
	mounted, err := m.Mount(ctx, pod)
	if err != nil {
		return err
	}
	if _, err := m.SubPaths(ctx, pod, &pod.Spec.Containers[0], mounted, nil); err != nil {
		return err
	}
	// A mount that something else made inside the pod's volume.
	inner := filepath.Join(mounted["disk"].HostPath, "inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(filepath.Join(root, "treasure"), inner, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	pod = pod.DeepCopy()
	pod.Labels["app"] = "changed"
	if _, err := m.Mount(ctx, pod); err != nil {
		return err
	}
	return m.Unmount(ctx, pod.UID)
}

// Killing the agent before each change it makes leaves nothing that the next
// one does not find: it can go on with the pod or take it down, and deletes
// nothing that a mount shows.
func TestKillAtEveryStep(t *testing.T) {
	needRoot(t)
	steps := 0
	for at := 1; ; at++ {
		root := t.TempDir()
		gold := filepath.Join(root, "treasure", "gold")
		if err := os.MkdirAll(filepath.Dir(gold), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(gold, []byte("gold"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashRoot+"="+root, crashStep+"="+strconv.Itoa(at))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled()) {
			t.Fatalf("step %d: %v: %s", at, err, out)
		}
		finished := err == nil
		m := New(Config{RootDir: root})
		if at%2 == 0 {
			// The pod is still wanted.
			pod := crashPod()
			mounted := mustMount(t, m, pod)
			if got := readFile(t, mounted["info"].HostPath, "name"); got != pod.Name {
				t.Errorf("step %d: contents %q after recovery", at, got)
			}
			if _, err := m.SubPaths(context.Background(), pod, &pod.Spec.Containers[0], mounted, nil); err != nil {
				t.Errorf("step %d: %v", at, err)
			}
			entries, _ := os.ReadDir(mounted["info"].HostPath)
			if len(entries) != 4 { // ..data, its directory, meta, name
				t.Errorf("step %d: interrupted writes left %v", at, entries)
			}
		}
		if err := m.Orphans(context.Background(), func(types.UID) bool { return false }); err != nil {
			t.Errorf("step %d: %v", at, err)
		}
		m.Close()
		if left, _ := os.ReadDir(filepath.Join(root, "pods")); len(left) != 0 {
			t.Errorf("step %d: orphan directory %v", at, left)
		}
		if readFile(t, gold) != "gold" {
			t.Fatalf("step %d: deleted through a mount", at)
		}
		noMounts(t, root)
		if finished {
			break
		}
		steps++
	}
	t.Logf("killed before each of %d steps", steps)
	if steps < 30 {
		t.Errorf("only %d steps: the script no longer covers mount, change and unmount", steps)
	}
}

// Random sequences of mounting, changing, unmounting and losing the agent's
// memory leave exactly the pods that are wanted, and in the end nothing.
func TestRandomSequencesLeaveNoOrphans(t *testing.T) {
	needRoot(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	root := t.TempDir()
	ctx := context.Background()
	m := New(Config{RootDir: root})
	defer func() { m.Close() }()
	wanted := map[string]bool{}
	for range 300 {
		uid := fmt.Sprint("p", r.IntN(5))
		switch r.IntN(6) {
		case 0, 1:
			pod := testPod(uid, emptyDirVolume("mem", v1.StorageMediumMemory), emptyDirVolume("disk", ""), downwardVolume("info"))
			pod.Spec.Containers[0].VolumeMounts[r.IntN(2)].SubPath = fmt.Sprint("s", r.IntN(3))
			mounted := mustMount(t, m, pod)
			if _, err := m.SubPaths(ctx, pod, &pod.Spec.Containers[0], mounted, []container.EnvVar{}); err != nil {
				t.Fatal(err)
			}
			wanted[uid] = true
		case 2:
			pod := testPod(uid, emptyDirVolume("mem", v1.StorageMediumMemory), emptyDirVolume("disk", ""), downwardVolume("info"))
			pod.Labels["app"] = fmt.Sprint(r.IntN(100))
			m.Update(pod)
		case 3:
			mustUnmount(t, m, uid)
			delete(wanted, uid)
		case 4: // the agent restarts
			m.Close()
			m = New(Config{RootDir: root})
		case 5:
			if err := m.Orphans(ctx, func(uid types.UID) bool { return wanted[string(uid)] }); err != nil {
				t.Fatal(err)
			}
			entries, _ := os.ReadDir(filepath.Join(root, "pods"))
			if len(entries) != len(wanted) {
				t.Fatalf("on disk %v, wanted %v", entries, wanted)
			}
		}
	}
	if err := m.Orphans(ctx, func(types.UID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(root, "pods")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	noMounts(t, root)
}
