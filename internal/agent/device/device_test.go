package device

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const thing = "example.com/thing"

// agent is a Manager with what it told of itself.
type agent struct {
	*Manager
	t       *testing.T
	offers  chan string
	changed chan types.UID
	stop    func()
}

func startAgent(t *testing.T, root string) *agent {
	t.Helper()
	a := &agent{t: t, offers: make(chan string, 100), changed: make(chan types.UID, 100)}
	m, err := New(Config{Log: slog.New(slog.DiscardHandler), RootDir: root,
		Offer: func(capacity, allocatable v1.ResourceList) {
			all, healthy := capacity[thing], allocatable[thing]
			a.offers <- fmt.Sprintf("%d/%d", healthy.Value(), all.Value())
		},
		Nodes: topology.Of(0, 1), Changed: func(uid types.UID) { a.changed <- uid }})
	if err != nil {
		t.Fatal(err)
	}
	a.Manager = m
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	var once sync.Once
	a.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
		})
	}
	t.Cleanup(a.stop)
	a.await("0/0")
	return a
}

// give allocates for all containers of a pod, and releases it where one fails.
func (a *agent) give(pod *v1.Pod) error {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := a.Allocate(a.t.Context(), pod, &list[i], 0); err != nil {
				a.Release(pod.UID)
				return err
			}
		}
	}
	return nil
}

// await waits until the agent offers healthy/all devices.
func (a *agent) await(want string) {
	a.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-a.offers:
			if got == want {
				return
			}
		case <-deadline:
			a.t.Fatalf("never offered %s", want)
		}
	}
}

// awaitPlugins waits until so many plugins serve the resource. Each loss makes an
// offer, also one that changes nothing.
func (a *agent) awaitPlugins(want int) {
	a.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		a.mu.Lock()
		got := len(a.plugins[thing])
		a.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-a.offers:
		case <-deadline:
			a.t.Fatalf("%d plugins, want %d", got, want)
		}
	}
}

func wants(name string, inits, mains []int64) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	limits := func(n int64) v1.ResourceRequirements {
		return v1.ResourceRequirements{Limits: v1.ResourceList{thing: *resource.NewQuantity(n, resource.DecimalSI),
			"other.example.com/x": resource.MustParse("1")}}
	}
	for i, n := range inits {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{Name: fmt.Sprint("init", i), Resources: limits(n)})
	}
	for i, n := range mains {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint("main", i), Resources: limits(n)})
	}
	return pod
}

func TestLifeOfADevice(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "device-plugins")
	first, second := wants("first", []int64{1}, []int64{2}), wants("second", nil, []int64{2})
	a := startAgent(t, root)
	s := startSample(t, dir, "a", "b", "c!")
	a.await("2/3")
	s.show("a", "b", "c")
	a.await("3/3")

	s.prefer = []string{"c", "b"}
	if err := a.give(first); err != nil {
		t.Fatal(err)
	}
	grant, err := a.Grant("first", "main0")
	if err != nil {
		t.Fatal(err)
	}
	// The init container's device is used again, then the preferred one.
	if grant.Envs["THINGS"] != "c,b" || grant.Devices[0].ContainerPath != "/dev/thing" || !grant.Mounts[0].ReadOnly ||
		grant.CDI[0] != "example.com/thing=c" || grant.Annotations["thing"] != "yes" {
		t.Errorf("granted %+v", grant)
	}
	if err := a.give(second); err == nil ||
		err.Error() != "requested number of devices unavailable for example.com/thing. Requested: 2, Available: 1" {
		t.Errorf("the second pod: %v", err)
	}
	if err := a.PreStart(t.Context(), "first", "main0"); err != nil || len(s.prepared) != 2 {
		t.Errorf("before the start: %v, prepared %v", err, s.prepared)
	}
	if listed := a.HeldBy("first", "main0"); len(listed) != 1 || len(listed[0].DeviceIds) != 2 || listed[0].Topology.Nodes[0].ID != 1 {
		t.Errorf("pod resources: %v", listed)
	}
	if offered := a.Offered(); len(offered) != 3 {
		t.Errorf("offered: %v", offered)
	}

	// The plugin restarts: no device is healthy meanwhile.
	a.health("Healthy")
	s.server.Stop()
	a.await("0/3")
	if told := <-a.changed; told != "first" {
		t.Errorf("told of %s", told)
	}
	a.health("Unhealthy")
	s = startSample(t, dir, "a", "b", "c")
	a.await("3/3")

	// The agent restarts: the plugin's socket goes, the plugin comes back, and
	// the first pod holds what it held.
	a.stop()
	a = startAgent(t, root)
	if _, err := os.Stat(filepath.Join(dir, "sample.sock")); err == nil {
		t.Error("the plugin's socket stays: the plugin will not notice")
	}
	s.server.Stop()
	s = startSample(t, dir, "a", "b", "c")
	a.await("3/3")
	if grant, err = a.Grant("first", "main0"); err != nil || grant.Envs["THINGS"] != "c,b" {
		t.Errorf("after the restart: %+v, %v", grant, err)
	}
	if err := a.give(first); err != nil {
		t.Error(err)
	}
	if a.give(second) == nil {
		t.Error("devices were given out twice")
	}

	// The first pod is over: its devices are free.
	if err := a.Keep(func(uid types.UID) bool { return uid != "first" }); err != nil {
		t.Fatal(err)
	}
	s.fail(true)
	if err := a.give(second); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("with a plugin that refuses: %v", err)
	}
	s.fail(false)
	if err := a.give(second); err != nil {
		t.Errorf("with free devices: %v", err)
	}
}

// health checks what the status of the first pod's container says.
func (a *agent) health(want v1.ResourceHealthStatus) {
	a.t.Helper()
	got := a.Health("first")["main0"]
	if len(got) != 1 || got[0].Name != thing || len(got[0].Resources) != 2 || got[0].Resources[0].ResourceID != "b" ||
		got[0].Resources[0].Health != want {
		a.t.Errorf("health is %+v, want %s", got, want)
	}
}

// TestPluginsOfTheWatchedDirectory registers a plugin as the plugin directory's
// watcher does.
func TestPluginsOfTheWatchedDirectory(t *testing.T) {
	root := t.TempDir()
	a := startAgent(t, root)
	s := serveSample(t, root, "a", "b")
	w := Watched{a.Manager}
	if err := w.Register(t.Context(), thing, s.socket, []string{"v1alpha"}); err == nil {
		t.Error("an unknown version was accepted")
	}
	if err := w.Register(t.Context(), "cpu", s.socket, []string{"v1beta1"}); err == nil {
		t.Error("a bad name was accepted")
	}
	if err := w.Register(t.Context(), thing, s.socket, []string{"v1beta1"}); err != nil {
		t.Fatal(err)
	}
	a.await("2/2")
	w.Deregister(thing, "/another.sock") // of an instance replaced before
	s.show("a")
	a.await("1/1")
	w.Deregister(thing, s.socket)
	a.await("0/1")
}

func TestBadRegistrationsAreRefused(t *testing.T) {
	r := registration{m: &Manager{}}
	for _, req := range []*pluginapi.RegisterRequest{
		{Version: "v1alpha1", Endpoint: "x.sock", ResourceName: thing},
		{Version: pluginapi.Version, Endpoint: "x.sock", ResourceName: "cpu"},
		{Version: pluginapi.Version, Endpoint: "../x.sock", ResourceName: thing},
	} {
		if _, err := r.Register(t.Context(), req); err == nil {
			t.Errorf("%v was accepted", req)
		}
	}
	// The API server would refuse the whole Node status because of these.
	for _, name := range []string{"a/b/c", "x/ y", "/x", "x/", "kubernetes.io/x", "node.kubernetes.io/x", "requests.a/b", "a_b.example/x",
		strings.Repeat("a", 250) + "/x"} {
		if checkResource(name) == nil {
			t.Errorf("resource %q was accepted", name)
		}
	}
	for _, name := range []string{thing, "nvidia.com/gpu", "squat.ai/video_0.1", "example.com/A-b"} {
		if err := checkResource(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestDamagedCheckpointIsNoObstacle(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "device-plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "device-plugins", checkpointName), []byte(`{"entries":[{"pod":"p"}],"checksum":"wrong"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Log: slog.New(slog.DiscardHandler), RootDir: root, Offer: func(v1.ResourceList, v1.ResourceList) {},
		Changed: func(types.UID) {}}); err != nil {
		t.Error(err)
	}
}

// FuzzPluginMessages takes in whatever a device plugin may send.
func FuzzPluginMessages(f *testing.F) {
	for _, m := range []*pluginapi.ListAndWatchResponse{
		{}, {Devices: []*pluginapi.Device{{ID: "a", Health: pluginapi.Healthy,
			Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: -1}, {ID: 64}, {ID: 1}}}}, {}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "vendor.example/thing")
	}
	m := &Manager{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	f.Fuzz(func(t *testing.T, message []byte, name string) {
		if err := checkResource(name); err == nil && len(validation.IsQualifiedName(name)) > 0 {
			t.Errorf("%q was accepted", name)
		}
		var list pluginapi.ListAndWatchResponse
		if proto.Unmarshal(message, &list) != nil {
			return
		}
		for _, d := range m.devicesOf(name, &list) {
			for _, n := range d.NUMA {
				if !topology.Of(int(n)).Has(int(n)) {
					t.Errorf("device %q is near to node %d", d.ID, n)
				}
			}
		}
	})
}
