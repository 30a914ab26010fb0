package volume

import (
	"context"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// TestReadWriteOncePod: of two pods that were put on a node past the scheduler
// one gets the volume; the other is woken when the first is gone.
func TestReadWriteOncePod(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	objects := csiObjects(false)
	objects[2].(*v1.PersistentVolume).Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	client := fake.NewClientset(objects...)
	var ev events
	woken := make(chan types.UID, 10)
	m := newTestManager(t, Config{
		Client: client, NodeName: "n", Drivers: registered(t, d, client), Event: ev.add,
		Wake: func(uid types.UID) { woken <- uid },
	})
	ctx := context.Background()
	errs := map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, uid := range []string{"a", "b"} {
		wg.Go(func() {
			_, err := m.Mount(ctx, testPod(uid, claimVolume()))
			mu.Lock()
			defer mu.Unlock()
			errs[uid] = err
		})
	}
	wg.Wait()
	first, second := "a", "b"
	if errs["a"] != nil {
		first, second = "b", "a"
	}
	const want = `MountVolume.SetUp failed for volume "data" : volume uses the ReadWriteOncePod access mode and is already in use by ` +
		`another pod`
	if errs[first] != nil || errs[second] == nil || !strings.Contains(ev.text(), "Warning FailedMount "+want) {
		t.Fatalf("mounting gave %v, the events are\n%s", errs, ev.text())
	}
	mustMount(t, m, testPod(first, claimVolume())) // its own volume is no obstacle
	mustUnmount(t, m, first)
	if got := <-woken; got != types.UID(second) {
		t.Errorf("woke %s, want %s", got, second)
	}
	mustMount(t, m, testPod(second, claimVolume()))
	mustUnmount(t, m, second)
}

func TestModeOfAClaim(t *testing.T) {
	device := testPod("a", claimVolume())
	device.Spec.Containers[0].VolumeMounts = nil
	device.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	for _, c := range []struct {
		pod   *v1.Pod
		block bool
		want  string
	}{
		{device, false, "volume data has volumeMode Filesystem, but is specified in volumeDevices"},
		{testPod("a", claimVolume()), true, "volume data has volumeMode Block, but is specified in volumeMounts"},
	} {
		m := newTestManager(t, Config{Client: fake.NewClientset(csiObjects(c.block)...), NodeName: "n"})
		if _, err := m.Mount(context.Background(), c.pod); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("mounting: %v, want %q", err, c.want)
		}
		mustUnmount(t, m, "a")
	}
}
