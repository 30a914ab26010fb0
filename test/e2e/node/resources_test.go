package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

const staticPolicy = `
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
`

// TestExclusiveCPUs gives a CPU to a real container, which a restart
// of the agent does not take away, and to all others when the container goes.
func TestExclusiveCPUs(t *testing.T) {
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil || !strings.HasPrefix(string(online), "0-") {
		t.Skip("needs several CPUs, the first one online")
	}
	all := strings.TrimSpace(string(online))
	c := kit.NewCluster(t, agentFlags(t, staticPolicy)...)
	c.Up()
	c.Apply(kit.SimplePod("shared", ""))
	c.WaitReady("default", "app=shared", 1)
	allowed(c, "shared", all)
	c.Apply(kit.SimplePod("own", `{limits: {cpu: "1", memory: 32Mi}}`))
	c.WaitReady("default", "app=own", 1)
	allowed(c, "own", "1")
	rest := strings.TrimPrefix(strings.Replace("2-"+strings.TrimPrefix(all, "0-"), "2-1", "", 1), ",")
	if rest = "0," + rest; strings.HasSuffix(rest, ",") {
		rest = "0"
	}
	allowed(c, "shared", rest)

	before := c.Container("own")
	kit.KillProcess(t, c.PID())
	c.MustUp(t)
	if now := c.Container("own"); now.ID != before.ID {
		t.Errorf("the container was %s, is %s", before.ID, now.ID)
	}
	allowed(c, "own", "1")
	if got := podResources(c).of("own"); !slices.Equal(got.CpuIds, []int64{1}) {
		t.Errorf("the pod resources API says %v", got)
	}
	c.Kubectl("delete", "pod", "own", "--wait")
	allowed(c, "shared", all)

	// Another policy does not go with the state on disk.
	c.Down()
	c.Flags = agentFlags(t, "")
	if out, err := c.TryUp(); err == nil || !strings.Contains(out, "differs from state checkpoint policy") {
		t.Errorf("up with another policy: %v\n%s", err, out)
	}
}

// agentFlags configure the agent. Nearly full disks are not what these tests
// are about.
func agentFlags(t *testing.T, more string) []string {
	t.Helper()
	return []string{"--agent-config", kit.AgentConfig(t, "evictionHard: {memory.available: 100Mi}\n"+more)}
}

// allowed waits until a pod's process may run on exactly these CPUs.
func allowed(c *kit.Cluster, pod, want string) {
	c.T.Helper()
	c.Eventually("CPUs of "+pod, func() (bool, string) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.ContainerPIDs()[c.Container(pod).ID]))
		if err != nil {
			return false, err.Error()
		}
		for line := range strings.Lines(string(status)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				return strings.TrimSpace(list) == want, list + "instead of " + want
			}
		}
		return false, "no list"
	})
}

// resources is what the pod resources API tells.
type resources map[string]*podresourcesapi.ContainerResources

func (r resources) of(pod string) *podresourcesapi.ContainerResources { return r[pod] }

func podResources(c *kit.Cluster) resources {
	c.T.Helper()
	conn := dial(c.T, filepath.Join(c.Dir, "agent", "pod-resources", "kubelet.sock"))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	list, err := podresourcesapi.NewPodResourcesListerClient(conn).List(ctx, &podresourcesapi.ListPodResourcesRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		c.T.Fatal(err)
	}
	out := resources{}
	for _, p := range list.PodResources {
		if p.Namespace == "default" {
			out[p.Name] = p.Containers[0]
		}
	}
	return out
}

func dial(t testing.TB, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// devicePlugin is a whole device plugin. It serves on one socket, and
// registers with the agent's socket or is found in the plugin directory.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	registerapi.UnimplementedRegistrationServer
	t        testing.TB
	resource string
	socket   string
	cdi      string
	stop     func()

	mu      sync.Mutex
	devices []*pluginapi.Device
	changed chan struct{}
	pause   func() // before an allocation is answered; nil for none
}

func startPlugin(c *kit.Cluster, resource, socket string, ids ...string) *devicePlugin {
	c.T.Helper()
	p := &devicePlugin{t: c.T, resource: resource, socket: socket, changed: make(chan struct{})}
	p.set(pluginapi.Healthy, ids...)
	p.serve()
	return p
}

func (p *devicePlugin) serve() {
	p.t.Helper()
	_ = os.Remove(p.socket)
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		p.t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	registerapi.RegisterRegistrationServer(server, p)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	p.stop = func() {
		server.Stop()
		wg.Wait()
	}
	p.t.Cleanup(p.stop)
}

// set makes the devices be these, with this health.
func (p *devicePlugin) set(health string, ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = nil
	for _, id := range ids {
		p.devices = append(p.devices, &pluginapi.Device{ID: id, Health: health,
			Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}}}})
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// register tells the agent's socket of the plugin.
func (p *devicePlugin) register() {
	p.t.Helper()
	conn := dial(p.t, filepath.Join(filepath.Dir(p.socket), "kubelet.sock"))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	if _, err := pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version,
		Endpoint: filepath.Base(p.socket), ResourceName: p.resource}, grpc.WaitForReady(true)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *devicePlugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DevicePlugin, Name: p.resource, Endpoint: p.socket,
		SupportedVersions: []string{pluginapi.Version}}, nil
}

func (p *devicePlugin) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse,
	error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		list, changed := p.devices, p.changed
		p.mu.Unlock()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func (p *devicePlugin) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	p.mu.Lock()
	pause := p.pause
	p.mu.Unlock()
	if pause != nil {
		pause()
	}
	out := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": strings.Join(req.ContainerRequests[0].DevicesIds, ",")},
		Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/thing", Permissions: "rw"}}}
	if p.cdi != "" {
		out.CdiDevices = []*pluginapi.CDIDevice{{Name: p.cdi}}
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{out}}, nil
}

// TestDevicePlugin gives a plugin's device to a real container: with its
// device node, variables and CDI edits, through restarts of plugin and agent.
func TestDevicePlugin(t *testing.T) {
	c := kit.NewCluster(t, agentFlags(t, "")...)
	c.Up()
	thing := startPlugin(c, "example.com/thing", filepath.Join(c.Dir, "agent/device-plugins/thing.sock"), "a", "b")
	thing.cdi = cdiDevice(t)
	thing.register()
	offered(c, "example.com/thing", 2, 2)
	c.Apply(kit.SimplePod("user", `{limits: {example.com/thing: "1"}}`))
	c.WaitReady("default", "app=user", 1)
	pid := c.ContainerPIDs()[c.Container("user").ID]
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !strings.Contains(string(environ), "DEVICES=a\x00") || !strings.Contains(string(environ), "FROM_CDI=yes\x00") {
		t.Errorf("the container's environment: %q, %v", environ, err)
	}
	if st, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/thing", pid)); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("the container's device: %v, %v", st, err)
	}
	health(c, "user", v1.ResourceHealthStatusHealthy)

	// There is one left: a pod that wants two is refused by the node.
	c.Apply(strings.Replace(kit.SimplePod("greedy", `{limits: {example.com/thing: "2"}}`), "spec:\n", "spec:\n  nodeName: "+c.NodeName()+
		"\n",
		1))
	c.Eventually("the refusal", func() (bool, string) {
		p := c.Pods("default", "app=greedy")[0]
		want := "Pod was rejected: Allocate failed due to requested number of devices unavailable for example.com/thing. Requested: 2, " +
			"Available: 1, which is unexpected"
		return p.Status.Reason == "UnexpectedAdmissionError" && p.Status.Message == want, p.Status.Reason + ": " + p.Status.Message
	})

	// A plugin that is found in the plugin directory needs no help after a
	// restart of the agent; the other one notices that its socket is gone.
	other := startPlugin(c, "example.com/other", filepath.Join(c.Dir, "agent/plugins_registry/other.sock"), "x")
	offered(c, "example.com/other", 1, 1)
	before := c.Container("user")
	kit.KillProcess(t, c.PID())
	c.MustUp(t)
	offered(c, "example.com/other", 1, 1)
	if _, err := os.Stat(thing.socket); err == nil {
		t.Error("the plugin's socket is still there: it would not notice")
	}
	thing.stop()
	thing.serve()
	thing.register()
	offered(c, "example.com/thing", 2, 2)
	if now := c.Container("user"); now.ID != before.ID {
		t.Errorf("the container was %s, is %s", before.ID, now.ID)
	}
	if got := podResources(c).of("user").Devices; len(got) != 1 || got[0].ResourceName != thing.resource || !slices.Equal(got[0].DeviceIds,
		[]string{"a"}) {
		t.Errorf("the pod resources API says %v", got)
	}

	thing.set(pluginapi.Unhealthy, "a", "b")
	offered(c, "example.com/thing", 0, 2)
	health(c, "user", v1.ResourceHealthStatusUnhealthy)
	other.stop()
	offered(c, "example.com/other", 0, 1)
}

// offered waits until the node says that it has this many of a resource.
func offered(c *kit.Cluster, resource v1.ResourceName, allocatable, capacity int64) {
	c.T.Helper()
	c.Eventually(fmt.Sprintf("%d of %d %s", allocatable, capacity, resource), func() (bool, string) {
		node, err := c.Client.CoreV1().Nodes().Get(context.Background(), c.NodeName(), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		a, all := node.Status.Allocatable[resource], node.Status.Capacity[resource]
		return a.Value() == allocatable && all.Value() == capacity, fmt.Sprintf("%s of %s", a.String(), all.String())
	})
}

// health waits until the pod's status says how its device is.
func health(c *kit.Cluster, pod string, want v1.ResourceHealthStatus) {
	c.T.Helper()
	c.Eventually("health of "+pod, func() (bool, string) {
		s := c.Pods("default", "app="+pod)[0].Status.ContainerStatuses[0].AllocatedResourcesStatus
		return len(s) == 1 && len(s[0].Resources) == 1 && s[0].Resources[0].Health == want, fmt.Sprint(s)
	})
}

// cdiDevice describes a device to the runtime that sets a variable.
func cdiDevice(t *testing.T) string {
	t.Helper()
	kind := fmt.Sprintf("berth.example.com/e2e%d", os.Getpid())
	spec := `{"cdiVersion": "0.6.0", "kind": "` + kind + `", "devices": [{"name": "one", "containerEdits": {"env": ["FROM_CDI=yes"]}}]}`
	if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("/var/run/cdi", strings.ReplaceAll(kind, "/", "-")+".json")
	if err := os.WriteFile(file, []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })
	return kind + "=one"
}

// TestNodeAllocatable bounds all pods together, and a cgroup that stands for
// the node's own processes, by what is reserved; pods are offered the rest.
func TestNodeAllocatable(t *testing.T) {
	name := reservedCgroup(t)
	c := kit.NewCluster(t, agentFlags(t, `
kubeReserved: {cpu: 250m, memory: 256Mi, pid: "500"}
systemReserved: {memory: 128Mi}
enforceNodeAllocatable: [pods, kube-reserved]
kubeReservedCgroup: `+name+"\n")...)
	c.Up()
	if got, want := readLimits(t, name), (limits{weight: weightOf(250), memory: 256 * kit.MiB, pids: 500}); got != want {
		t.Errorf("%s is bounded by %+v, want %+v", name, got, want)
	}
	node, err := c.Client.CoreV1().Nodes().Get(context.Background(), c.NodeName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	capacity, offered := node.Status.Capacity.Memory().Value(), node.Status.Allocatable.Memory().Value()
	if capacity-offered != (256+128+100)*kit.MiB { // the last is the eviction threshold
		t.Errorf("of %d bytes %d are offered", capacity, offered)
	}
	most, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	pids, err := strconv.ParseInt(strings.TrimSpace(string(most)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := limits{weight: weightOf(node.Status.Capacity.Cpu().MilliValue() - 250), memory: (capacity - (256+128)*kit.MiB) / 4096 * 4096,
		pids: pids - 500}
	if got := readLimits(t, c.PodsCgroup()); got != want {
		t.Errorf("all pods are bounded by %+v, want %+v", got, want)
	}
	for _, want := range []string{"Updated Node Allocatable limit across pods", "Updated limits on kube reserved cgroup " + name} {
		c.Eventually("event "+want, func() (bool, string) {
			events, err := c.Client.CoreV1().Events("").List(context.Background(),
				metav1.ListOptions{FieldSelector: "reason=NodeAllocatableEnforced"})
			if err != nil {
				return false, err.Error()
			}
			return slices.ContainsFunc(events.Items, func(e v1.Event) bool { return e.Message == want }),
				fmt.Sprint(len(events.Items), " such events")
		})
	}
}
