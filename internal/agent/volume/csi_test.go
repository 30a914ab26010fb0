package volume

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/agent/plugins"
)

// csiObjects are a bound claim "data" for handle h1, attached to node n.
func csiObjects(block bool) []runtime.Object {
	mode := v1.PersistentVolumeFilesystem
	if block {
		mode = v1.PersistentVolumeBlock
	}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	yes := true
	return []runtime.Object{
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-uid"}},
		&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "claim-uid"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size},
		},
		&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1", Annotations: map[string]string{"pv.beta.kubernetes.io/gid": "99"}},
			Spec: v1.PersistentVolumeSpec{
				Capacity: size, VolumeMode: &mode, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				ClaimRef: &v1.ObjectReference{UID: "claim-uid"},
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
					Driver: "test.csi", VolumeHandle: "h1", FSType: "ext4", VolumeAttributes: map[string]string{"a": "b"},
				}},
			}},
		&storage.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "csi-" + sum("h1", "test.csi", "n")},
			Status:     storage.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"dev": "x"}},
		},
		&storage.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "test.csi"}, Spec: storage.CSIDriverSpec{
			PodInfoOnMount:       &yes,
			VolumeLifecycleModes: []storage.VolumeLifecycleMode{storage.VolumeLifecyclePersistent, storage.VolumeLifecycleEphemeral},
		}},
	}
}

func claimVolume() v1.Volume {
	return v1.Volume{Name: "data",
		VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
}

func registered(t *testing.T, d *testDriver, client *fake.Clientset) *Drivers {
	t.Helper()
	drivers := NewDrivers(client, "n", nil)
	t.Cleanup(drivers.Close)
	if err := drivers.Register(context.Background(), "test.csi", d.endpoint, []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	return drivers
}

func TestCSIRegistration(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	client := fake.NewClientset(csiObjects(false)...)
	drivers := NewDrivers(client, "n", nil)
	defer drivers.Close()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() {
		ran <- plugins.Run(ctx, plugins.Config{Dir: dir, Handlers: map[string]plugins.Handler{plugins.CSIPlugin: drivers}})
	}()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "test-reg.sock")
	d := startDriver(t, socket)
	if s := <-d.notified; !s.PluginRegistered {
		t.Fatalf("not registered: %s", s.Error)
	}
	cn, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
	if err != nil || len(cn.Spec.Drivers) != 1 || cn.Spec.Drivers[0].NodeID != "id-1" || *cn.Spec.Drivers[0].Allocatable.Count != 5 ||
		!slices.Equal(cn.Spec.Drivers[0].TopologyKeys, []string{"test/zone"}) || cn.OwnerReferences[0].UID != "node-uid" {
		t.Errorf("CSINode %+v, %v", cn, err)
	}
	node, _ := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
	if node.Annotations[nodeIDAnnotation] != `{"test.csi":"id-1"}` || node.Labels["test/zone"] != "z1" {
		t.Errorf("node %v %v", node.Annotations, node.Labels)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	for { // deregistering ends with the write to the API, which has no event here
		cn, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
		if err == nil && len(cn.Spec.Drivers) == 0 {
			break
		}
	}
	if _, err := drivers.get("test.csi"); err == nil {
		t.Error("the driver is still there")
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestCSIVolumeOfAClaim(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	client := fake.NewClientset(csiObjects(false)...)
	var ev events
	m := newTestManager(t, Config{Client: client, NodeName: "n", Drivers: registered(t, d, client), Event: ev.add})
	group := int64(555)
	podA, podB := testPod("a", claimVolume()), testPod("b", claimVolume())
	podA.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	outA := mustMount(t, m, podA)["data"]
	if !slices.Equal(outA.Groups, []int64{99}) {
		t.Errorf("groups %v", outA.Groups)
	}
	info, err := os.Stat(outA.HostPath)
	if err != nil || info.Sys().(*syscall.Stat_t).Gid != 555 {
		t.Errorf("the volume is not the group's: %v", err)
	}
	if got := d.last.VolumeContext["csi.storage.k8s.io/pod.name"]; got != "pod-a" || d.last.VolumeContext["a"] != "b" ||
		d.last.PublishContext["dev"] != "x" {
		t.Errorf("the driver was told %v %v", d.last.VolumeContext, d.last.PublishContext)
	}
	if got := d.last.VolumeCapability.GetMount().GetFsType(); got != "ext4" {
		t.Errorf("file system %q", got)
	}
	outB := mustMount(t, m, podB)["data"]
	if err := os.WriteFile(filepath.Join(outA.HostPath, "f"), []byte("shared"), 0o644); err != nil {
		t.Fatal(err)
	}
	if readFile(t, outB.HostPath, "f") != "shared" {
		t.Error("the pods do not share the volume")
	}
	mustMount(t, m, podA)
	if got := d.take(); got != "stage h1, publish h1, stage h1, publish h1" {
		t.Errorf("calls %s", got)
	}
	if got := m.VolumesInUse(); !slices.Equal(got, []v1.UniqueVolumeName{"kubernetes.io/csi/test.csi^h1"}) {
		t.Errorf("in use %v", got)
	}
	mustUnmount(t, m, "a")
	if got := d.take(); got != "unpublish h1" {
		t.Errorf("calls %s", got)
	}
	// The claim grows.
	pv, _ := client.CoreV1().PersistentVolumes().Get(context.Background(), "pv-1", metav1.GetOptions{})
	pv.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("2Gi")
	if _, err := client.CoreV1().PersistentVolumes().Update(context.Background(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustMount(t, m, podB)
	if got := d.take(); got != "expand h1 to 2147483648" {
		t.Errorf("calls %s", got)
	}
	pvc, _ := client.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(), "data", metav1.GetOptions{})
	if q := pvc.Status.Capacity[v1.ResourceStorage]; q.String() != "2Gi" {
		t.Errorf("the claim reports %s", q.String())
	}
	if !strings.Contains(ev.text(), `Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv-1"`) {
		t.Errorf("events:\n%s", ev.text())
	}
	mustUnmount(t, m, "b")
	if got := d.take(); got != "unpublish h1, unstage h1" {
		t.Errorf("calls %s", got)
	}
	if got := readFile(t, d.store, "h1", "f"); got != "shared" {
		t.Error("the volume's contents were deleted")
	}
}

func TestCSIBlockAndInline(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	client := fake.NewClientset(csiObjects(true)...)
	m := newTestManager(t, Config{Client: client, NodeName: "n", Drivers: registered(t, d, client)})
	inline := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "test.csi"}}}
	pod := testPod("a", claimVolume(), inline)
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = c.VolumeMounts[1:]
	c.VolumeDevices = []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	out := mustMount(t, m, pod)
	info, err := os.Stat(out["data"].HostPath)
	if err != nil || info.Mode()&os.ModeDevice == 0 || !out["data"].Block {
		t.Errorf("block volume %+v: %v", out["data"], err)
	}
	if err := os.WriteFile(filepath.Join(out["scratch"].HostPath, "f"), nil, 0o600); err != nil {
		t.Error(err)
	}
	mustUnmount(t, m, "a")
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.staged)+len(d.published) != 0 {
		t.Errorf("left staged %v published %v", d.staged, d.published)
	}
}

func TestCSIWaitsForAttachmentAndDriver(t *testing.T) {
	needRoot(t)
	d := startDriver(t, "")
	client := fake.NewClientset(csiObjects(false)...)
	drivers := NewDrivers(client, "n", nil)
	t.Cleanup(drivers.Close)
	node := &v1.Node{}
	woken := make(chan types.UID, 10)
	m := newTestManager(t, Config{
		Client: client, NodeName: "n", Drivers: drivers, ControllerAttach: true,
		Node: func() *v1.Node { return node }, Wake: func(uid types.UID) { woken <- uid },
	})
	pod := testPod("a", claimVolume())
	fails := func(want string) {
		t.Helper()
		if _, err := m.Mount(context.Background(), pod); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %s", err, want)
		}
	}
	fails("driver name test.csi not found in the list of registered CSI drivers")
	if err := drivers.Register(context.Background(), "test.csi", d.endpoint, []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	if uid := <-woken; uid != "a" {
		t.Errorf("woke %s", uid)
	}
	fails("volume kubernetes.io/csi/test.csi^h1 is not in the node's status.volumesAttached")
	node = &v1.Node{Status: v1.NodeStatus{VolumesAttached: []v1.AttachedVolume{{Name: "kubernetes.io/csi/test.csi^h1"}}}}
	m.NodeChanged()
	<-woken
	mustMount(t, m, pod)
	// Taking down waits for a driver that is away, and does not forget.
	drivers.Deregister("test.csi", d.endpoint)
	if err := m.Unmount(context.Background(), "a"); err == nil {
		t.Error("unmounted without the driver")
	}
	if err := drivers.Register(context.Background(), "test.csi", d.endpoint, []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	mustUnmount(t, m, "a")
}

func TestClaimErrors(t *testing.T) {
	objects := csiObjects(false)
	client := fake.NewClientset(objects...)
	m := newTestManager(t, Config{Client: client, NodeName: "n"})
	ctx := context.Background()
	mount := func() string {
		_, err := m.Mount(ctx, testPod("a", claimVolume()))
		if err == nil {
			return ""
		}
		return err.(*MountError).Errs[0].Error()
	}
	pvc, _ := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "data", metav1.GetOptions{})
	pvc.Status.Phase = v1.ClaimPending
	_, _ = client.CoreV1().PersistentVolumeClaims("ns").Update(ctx, pvc, metav1.UpdateOptions{})
	if got := mount(); got != "error processing PVC ns/data: PVC is not bound" {
		t.Error(got)
	}
	pvc.Status.Phase, pvc.UID = v1.ClaimBound, "another"
	_, _ = client.CoreV1().PersistentVolumeClaims("ns").Update(ctx, pvc, metav1.UpdateOptions{})
	if got := mount(); got != `error processing PVC ns/data: PersistentVolume "pv-1" is bound to another claim` {
		t.Error(got)
	}
	_ = client.CoreV1().PersistentVolumeClaims("ns").Delete(ctx, "data", metav1.DeleteOptions{})
	if got := mount(); got != `error processing PVC ns/data: persistentvolumeclaims "data" not found` {
		t.Error(got)
	}
	mustUnmount(t, m, "a")
}

func TestLocalVolume(t *testing.T) {
	needRoot(t)
	source := t.TempDir()
	objects := csiObjects(false)
	pv := objects[2].(*v1.PersistentVolume)
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: source}}
	client := fake.NewClientset(objects...)
	m := newTestManager(t, Config{Client: client, NodeName: "n"})
	out := mustMount(t, m, testPod("a", claimVolume()))["data"]
	if err := os.WriteFile(filepath.Join(out.HostPath, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustMount(t, m, testPod("a", claimVolume()))
	mustUnmount(t, m, "a")
	if readFile(t, source, "f") != "x" {
		t.Error("the local volume's contents are gone")
	}
}

// csiCrashScript is crashScript for a claim whose driver lives elsewhere.
func csiCrashScript(root, socket string, at int) error {
	var n atomic.Int64 // volumes are set up side by side
	client := fake.NewClientset(csiObjects(false)...)
	drivers := NewDrivers(client, "n", nil)
	if err := drivers.Register(context.Background(), "test.csi", socket, []string{"1.0.0"}); err != nil {
		return err
	}
	m := New(Config{RootDir: root, Client: client, NodeName: "n", Drivers: drivers, step: func(string) {
		if n.Add(1) == int64(at) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}})
	for _, uid := range []string{"a", "b"} {
		if _, err := m.Mount(context.Background(), testPod(uid, claimVolume())); err != nil {
			return err
		}
	}
	for _, uid := range []string{"a", "b"} {
		if err := m.Unmount(context.Background(), types.UID(uid)); err != nil {
			return err
		}
	}
	return nil
}

func TestKillAtEveryStepWithADriver(t *testing.T) {
	needRoot(t)
	steps := 0
	for at := 1; ; at++ {
		root := t.TempDir()
		d := startDriver(t, "")
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashRoot+"="+root, crashStep+"="+strconv.Itoa(at), crashDriver+"="+d.endpoint)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled()) {
			t.Fatalf("step %d: %v: %s", at, err, out)
		}
		client := fake.NewClientset(csiObjects(false)...)
		m := New(Config{RootDir: root, Client: client, NodeName: "n", Drivers: registered(t, d, client)})
		if at%2 == 0 {
			mounted := mustMount(t, m, testPod("a", claimVolume()))
			if err := os.WriteFile(filepath.Join(mounted["data"].HostPath, "f"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Orphans(context.Background(), func(types.UID) bool { return false }); err != nil {
			t.Errorf("step %d: %v", at, err)
		}
		m.Close()
		d.mu.Lock()
		if len(d.staged)+len(d.published) != 0 {
			t.Errorf("step %d: the driver still has staged %v, published %v", at, maps.Clone(d.staged), d.published)
		}
		d.mu.Unlock()
		for _, dir := range []string{"pods", "plugins/kubernetes.io/csi/test.csi"} {
			if left, _ := os.ReadDir(filepath.Join(root, dir)); len(left) != 0 {
				t.Errorf("step %d: left %v in %s", at, left, dir)
			}
		}
		if at%2 == 0 && readFile(t, d.store, "h1", "f") != "x" {
			t.Fatalf("step %d: deleted through a mount", at)
		}
		noMounts(t, root)
		if err == nil {
			break
		}
		steps++
	}
	t.Logf("killed before each of %d steps", steps)
	if steps < 20 {
		t.Errorf("only %d steps", steps)
	}
}
