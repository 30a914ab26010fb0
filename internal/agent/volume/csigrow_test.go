package volume

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

// A PersistentVolume that became larger grows under the running pod, within a
// minute and at the latest when the driver comes back.
func TestVolumesGrowUnderARunningPod(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	client := fake.NewClientset(csiObjects(false)...)
	ctx, stop := context.WithCancel(context.Background())
	told := make(chan string, 10)
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	m := newTestManager(t, Config{
		Client: client, NodeName: "n", Drivers: registered(t, d, client), Clock: clk,
		Event: func(_ *v1.Pod, _, reason, message string) { told <- reason + " " + message },
	})
	var run sync.WaitGroup
	run.Go(func() { _ = m.Run(ctx) })
	defer run.Wait()
	defer stop()
	mustMount(t, m, testPod("a", claimVolume()))
	resize := func(size string, state v1.ClaimResourceStatus) {
		t.Helper()
		pv, err := client.CoreV1().PersistentVolumes().Get(ctx, "pv-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
		if _, err := client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pvc := claim(t, client)
		pvc.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: state}
		pvc.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending,
			Status: v1.ConditionTrue}}
		if _, err := client.CoreV1().PersistentVolumeClaims("ns").Update(ctx, pvc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	resize("2Gi", v1.PersistentVolumeClaimNodeResizePending)
	waitTimer(t, clk)
	clk.Step(growEvery)
	if got := <-told; got != `FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv-1"` {
		t.Errorf("told %s", got)
	}
	if c := claim(t, client); c.Status.Capacity.Storage().String() != "2Gi" || len(c.Status.AllocatedResourceStatuses) != 0 ||
		len(c.Status.Conditions) != 0 {
		t.Errorf("the claim says %+v", c.Status)
	}
	// What the driver can never do is said once and not asked again.
	d.mu.Lock()
	d.noRoom = true
	d.mu.Unlock()
	resize("3Gi", v1.PersistentVolumeClaimNodeResizePending)
	waitTimer(t, clk)
	clk.Step(growEvery)
	if got := <-told; !strings.HasPrefix(got, `VolumeResizeFailed MountVolume.NodeExpandVolume failed for volume "pv-1" : `) {
		t.Errorf("told %s", got)
	}
	waitTimer(t, clk)
	if c := claim(t, client); c.Status.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizeInfeasible {
		t.Errorf("the claim says %+v", c.Status)
	}
	d.take()
	clk.Step(growEvery)
	waitTimer(t, clk)
	if got := d.take(); got != "" {
		t.Errorf("asked again: %s", got)
	}
	// A later size may fit, and a driver that registers is asked at once.
	d.mu.Lock()
	d.noRoom = false
	d.mu.Unlock()
	resize("4Gi", v1.PersistentVolumeClaimNodeResizePending)
	if err := m.cfg.Drivers.Register(ctx, "test.csi", d.endpoint, []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	if got := <-told; !strings.HasPrefix(got, "FileSystemResizeSuccessful") {
		t.Errorf("told %s", got)
	}
	mustUnmount(t, m, "a")
}

func claim(t *testing.T, client *fake.Clientset) *v1.PersistentVolumeClaim {
	t.Helper()
	c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// waitTimer waits until Run sleeps: its timer exists. The clock offers no event
// for that.
func waitTimer(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 30_000 {
		if clk.HasWaiters() {
			return
		}
		<-tick.C
	}
	t.Fatal("nothing waits for the clock")
}

func TestAttachLimitIsNamed(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	objects := csiObjects(false)
	va := objects[3].(*storage.VolumeAttachment)
	full := int32(codes.ResourceExhausted)
	va.Status = storage.VolumeAttachmentStatus{AttachError: &storage.VolumeError{Message: "5 of 5", ErrorCode: &full}}
	client := fake.NewClientset(objects...)
	var ev events
	m := newTestManager(t, Config{Client: client, NodeName: "n", Drivers: registered(t, d, client), Event: ev.add})
	if _, err := m.Mount(context.Background(), testPod("a", claimVolume())); !errors.Is(err, ErrAttachLimit) {
		t.Errorf("got %v", err)
	}
	va.Status = storage.VolumeAttachmentStatus{}
	if _, err := client.StorageV1().VolumeAttachments().Update(context.Background(), va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Mount(context.Background(), testPod("a", claimVolume())); err == nil || errors.Is(err, ErrAttachLimit) {
		t.Errorf("waiting for an attachment: %v", err)
	}
	if ev.text() != "" {
		t.Errorf("what the attaching controller tells was told again: %s", ev.text())
	}
	mustUnmount(t, m, "a")
}

func TestMeasureAsksTheDriver(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	client := fake.NewClientset(csiObjects(false)...)
	drivers := registered(t, d, client)
	registry := prometheus.NewRegistry()
	m := newTestManager(t, Config{Client: client, NodeName: "n", Drivers: drivers, Metrics: registry})
	mustMount(t, m, testPod("a", claimVolume(), emptyDirVolume("mem", v1.StorageMediumMemory)))
	if ask, ok := m.Measure("a", "data"); ask != nil || !ok {
		t.Error("a driver that cannot tell was asked")
	}
	if _, ok := m.Measure("a", "mem"); ok {
		t.Error("an emptyDir has no driver")
	}
	d.mu.Lock()
	d.caps = append(d.caps, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	d.mu.Unlock()
	if err := drivers.Register(context.Background(), "test.csi", d.endpoint, []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	ask, _ := m.Measure("a", "data")
	size, err := ask(context.Background())
	if want := (Size{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 9, InodesUsed: 1}); err != nil || size != want {
		t.Errorf("got %+v, %v", size, err)
	}
	mustUnmount(t, m, "a")
	if n := testutil.CollectAndCount(registry, "csi_operations_seconds"); n < 5 {
		t.Errorf("%d kinds of calls were counted, want stage, publish, stats, unpublish and unstage at least", n)
	}
}
