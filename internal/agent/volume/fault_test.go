package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A disk that is full fails the pod that needs room, by name, and no one else.
func TestFullDiskFailsOnePod(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(root, unix.MNT_DETACH) }()
	big := configMap("big", strings.Repeat("x", 900_000), 1)
	var ev events
	m := New(Config{RootDir: root, Client: newCluster(t, false, big, configMap("small", "ok", 1)), Event: ev.add})
	defer m.Close()
	if _, err := m.Mount(context.Background(), testPod("a", configMapVolume("big"))); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("mounted 900 kB on a disk of 512 kB: %v", err)
	}
	if !strings.Contains(ev.text(), `Warning FailedMount MountVolume.SetUp failed for volume "big" : `) || !strings.Contains(ev.text(),
		"no space left") {
		t.Errorf("events:\n%s", ev.text())
	}
	out := mustMount(t, m, testPod("b", configMapVolume("small")))
	if got := readFile(t, out["small"].HostPath, "key"); got != "ok" {
		t.Errorf("contents %q", got)
	}
	mustUnmount(t, m, "a")
	mustUnmount(t, m, "b")
}

// A driver that never answers holds up the pod that needs it, and that alone:
// not pods of other volumes, not pods of the same driver, not the taking down
// of others.
func TestHungDriverHoldsUpOnePod(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	hung, release := make(chan struct{}), make(chan struct{})
	d.hang = func(r *spec.NodePublishVolumeRequest) {
		if strings.Contains(r.TargetPath, "pods/stuck/") {
			close(hung)
			<-release
		}
	}
	client := fake.NewClientset(csiObjects(false)...)
	var ev events
	m := newTestManager(t, Config{Client: client, NodeName: "n", Drivers: registered(t, d, client), Event: ev.add})
	inline := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "test.csi"}}}
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := m.Mount(ctx, testPod("stuck", inline))
		failed <- err
	}()
	<-hung
	mustMount(t, m, testPod("other", emptyDirVolume("mem", v1.StorageMediumMemory)))
	mustMount(t, m, testPod("same", inline, claimVolume()))
	mustUnmount(t, m, "other")
	mustUnmount(t, m, "same")
	cancel()
	// Anyone who notices first: the caller's context or the call to the driver.
	if err := <-failed; !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		t.Errorf("the pod's own mount: %v", err)
	}
	close(release)
	mustUnmount(t, m, "stuck")
	if ev.text() != "" {
		t.Errorf("a caller that gave up was told as a failure: %s", ev.text())
	}
}

// Contents that a subPath shows stay as they were when the container started.
func TestSubPathKeepsTheContentsOfItsStart(t *testing.T) {
	needRoot(t)
	c := newCluster(t, false, configMap("cm", "one", 1))
	m := newTestManager(t, Config{Client: c})
	pod := testPod("a", configMapVolume("cm"))
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "key"
	out := mustMount(t, m, pod)
	paths, err := m.SubPaths(context.Background(), pod, &pod.Spec.Containers[0], out, nil)
	if err != nil {
		t.Fatal(err)
	}
	waitWatches(t, c, 1)
	done := make(chan struct{})
	watchDir(t, out["cm"].HostPath, func() bool {
		b, _ := os.ReadFile(filepath.Join(out["cm"].HostPath, "key"))
		return string(b) == "two"
	}, done)
	_, _ = c.CoreV1().ConfigMaps("ns").Update(context.Background(), configMap("cm", "two", 10), metav1.UpdateOptions{})
	<-done
	if got := readFile(t, paths[0]); got != "one" {
		t.Errorf("the subPath shows %q", got)
	}
	mustUnmount(t, m, "a")
}

// FuzzRecord reads arbitrary records: none makes the agent remove something
// outside of its root.
func FuzzRecord(f *testing.F) {
	f.Add(`{"driverName":"d","volumeHandle":"h"}`)
	f.Add(`{"driverName":"d","volumeHandle":"h","berthTarget":"/etc"}`)
	f.Add(`{"driverName":"d","volumeHandle":"h","berthTarget":"/root/agent/../../etc","berthStaging":"/"}`)
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, volData), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := readRecord(dir)
		if err != nil || r.within(dir) != nil {
			return
		}
		for _, path := range []string{r.Target, r.Staging} {
			if path != "" && !strings.HasPrefix(filepath.Clean(path), dir+"/") {
				t.Errorf("%q passes for a place below %s", path, dir)
			}
		}
	})
}

// FuzzDriverAnswers takes arbitrary numbers and names from a driver.
func FuzzDriverAnswers(f *testing.F) {
	f.Add("node", int64(5), "topology/zone", "a", int64(10), int64(4), int32(1))
	f.Add("", int64(-1), "bad key", "bad value!", int64(-10), int64(1<<62), int32(9))
	f.Fuzz(func(t *testing.T, id string, most int64, key, value string, total, used int64, unit int32) {
		info := &spec.NodeGetInfoResponse{NodeId: id, MaxVolumesPerNode: most,
			AccessibleTopology: &spec.Topology{Segments: map[string]string{key: value}}}
		if checkInfo(info) == nil && (id == "" || most < 0 || key == "") {
			t.Errorf("accepted id %q, %d volumes, topology %q", id, most, key)
		}
		size, err := sizeOf([]*spec.VolumeUsage{{Unit: spec.VolumeUsage_Unit(unit), Total: total, Used: used}, nil})
		if err == nil && (total < 0 || used < 0) || size.Capacity > 1<<63 || size.Used > 1<<63 {
			t.Errorf("total %d, used %d gave %+v, %v", total, used, size, err)
		}
	})
}
