package node

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestName(t *testing.T) {
	for _, test := range []struct{ host, override, want string }{{"Host.Example", "", "host.example"}, {"a", " B ", "b"}} {
		if got, err := Name(test.host, test.override); err != nil || got != test.want {
			t.Errorf("%q %q: %q, %v", test.host, test.override, got, err)
		}
	}
	if _, err := Name(" ", ""); err == nil {
		t.Error("an empty name was accepted")
	}
}

func TestCheckLabels(t *testing.T) {
	for key, allowed := range map[string]bool{
		"mine": true, "example.com/x": true, "kubernetes.io/arch": true, "topology.kubernetes.io/zone": true,
		"node.kubernetes.io/anything": true,
		"x.kubelet.kubernetes.io/y":   true, "node-role.kubernetes.io/worker": false, "node-restriction.kubernetes.io/x": false,
		"x.k8s.io/y": false, "kubernetes.io/x": false,
	} {
		if err := checkLabels(map[string]string{key: "v"}); (err == nil) != allowed {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestReconcileTouchesOnlyItsOwn(t *testing.T) {
	id := Identity{Name: "n1", AttachDetach: true, Labels: map[string]string{v1.LabelTopologyZone: "a", "mine": "x"}}
	existing := initial(id)
	if change := reconcile(id, existing); !change.Empty() {
		t.Errorf("nothing to correct, got %+v", change)
	}
	existing.Labels[v1.LabelHostname] = "wrong"
	existing.Labels[v1.LabelTopologyRegion] = "set by a person"
	existing.Labels["other"] = "y"
	delete(existing.Labels, "mine")
	delete(existing.Annotations, annotationAttachDetach)
	existing.Annotations[annotationProvidedNodeIP] = "192.0.2.1"
	change := reconcile(id, existing)
	if len(change.Labels) != 1 || *change.Labels[v1.LabelHostname] != "n1" {
		t.Errorf("labels: %v", change.Labels)
	}
	if len(change.Annotations) != 2 || *change.Annotations[annotationAttachDetach] != "true" ||
		change.Annotations[annotationProvidedNodeIP] != nil {
		t.Errorf("annotations: %v", change.Annotations)
	}
}

func TestExternalCloudLeavesAddressesToItsController(t *testing.T) {
	id := Identity{Name: "n1", ExternalCloud: true, NodeIPs: addrs("192.0.2.1", "2001:db8::1")}
	node := initial(id)
	if !hasTaint(node.Spec.Taints, taintUninitialized, v1.TaintEffectNoSchedule) ||
		node.Annotations[annotationProvidedNodeIP] != "192.0.2.1,2001:db8::1" {
		t.Errorf("initial: %+v", node)
	}
	have := v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "198.51.100.1"}}}
	if got := reportAddresses(id, have, Inputs{Addresses: nodeAddresses("n1", id.NodeIPs)}); got != nil {
		t.Errorf("the cloud's addresses are replaced by %v", got)
	}
}

func TestAddresses(t *testing.T) {
	host := Host{Interfaces: addrs("127.0.0.1", "10.0.0.5", "192.0.2.7", "2001:db8::7", "fe80::1"), Lookup: addrs("127.0.1.1", "192.0.2.7"),
		Default4: netip.MustParseAddr("10.0.0.5"), Default6: netip.MustParseAddr("2001:db8::7")}
	for name, test := range map[string]struct {
		ips  []netip.Addr
		host Host
		want string // first address, or a part of the error
	}{
		"given":                   {addrs("10.0.0.5"), host, "10.0.0.5"},
		"two given":               {addrs("10.0.0.5", "2001:db8::7"), host, "10.0.0.5"},
		"given, not here":         {addrs("203.0.113.1"), host, "not found in the host's network interfaces"},
		"given, loopback":         {addrs("127.0.0.1"), host, "loopback"},
		"dns":                     {nil, host, "192.0.2.7"},
		"default route":           {nil, Host{Interfaces: host.Interfaces, Default4: host.Default4}, "10.0.0.5"},
		"any default route":       {addrs("::"), host, "2001:db8::7"},
		"v4 default route":        {addrs("0.0.0.0"), host, "10.0.0.5"},
		"an interface's":          {nil, Host{Interfaces: host.Interfaces}, "10.0.0.5"},
		"nothing but loopback":    {nil, Host{Interfaces: addrs("127.0.0.1")}, "set --node-ip"},
		"host name is an address": {nil, Host{Interfaces: host.Interfaces, Name: netip.MustParseAddr("2001:db8::7")}, "2001:db8::7"},
	} {
		got, err := Addresses(Identity{Name: "n1", NodeIPs: test.ips}, test.host)
		text := ""
		if err != nil {
			text = err.Error()
		} else {
			text = got[0].Address
			if got[len(got)-1] != (v1.NodeAddress{Type: v1.NodeHostName, Address: "n1"}) {
				t.Errorf("%s: the host name is missing: %v", name, got)
			}
		}
		if !strings.Contains(text, test.want) {
			t.Errorf("%s: %s, want %s", name, text, test.want)
		}
	}
}

func TestCapacityAndAllocatable(t *testing.T) {
	set, err := SettingsFor(&kubeletv1beta1.KubeletConfiguration{MaxPods: 110, PodsPerCore: 10,
		SystemReserved: map[string]string{"cpu": "500m", "memory": "1Gi"}, KubeReserved: map[string]string{"memory": "1Gi"}},
		Identity{Name: "n1"}, "v")
	if err != nil {
		t.Fatal(err)
	}
	hostInfo := &HostInfo{CPUs: 4, MemoryBytes: 16 << 30, HugePages: map[int64]int64{2 << 20: 512}}
	devices := v1.ResourceList{"example.com/gpu": resource.MustParse("2")}
	capacity := Capacity(hostInfo, &FS{CapacityBytes: 1000}, set.Limits, devices)
	allocatable := Allocatable(capacity, set.Reserved, v1.ResourceList{"example.com/gpu": resource.MustParse("1")})
	for name, want := range map[v1.ResourceName][2]string{
		"cpu": {"4", "3500m"}, "memory": {"16Gi", "13212Mi"}, "pods": {"40", "40"}, "hugepages-2Mi": {"1Gi", "1Gi"},
		"ephemeral-storage": {"1000", "900"}, "example.com/gpu": {"2", "1"},
	} {
		all, left := capacity[name], allocatable[name]
		if all.Cmp(resource.MustParse(want[0])) != 0 || left.Cmp(resource.MustParse(want[1])) != 0 {
			t.Errorf("%s: %s and %s, want %v", name, all.String(), left.String(), want)
		}
	}
	set.Reserved.System[v1.ResourceMemory] = resource.MustParse("20Gi")
	if err := checkReservation(capacity, set.Reserved); err == nil || !strings.Contains(err.Error(),
		`Resource "memory" has a reservation of`) {
		t.Errorf("too much reserved: %v", err)
	}
}

func TestNotReadyNamesEveryCause(t *testing.T) {
	ready := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady",
		Status: true}, {Type: "NetworkReady", Status: true}}}}
	full := Capacity(&HostInfo{CPUs: 1, MemoryBytes: 1}, &FS{}, Limits{MaxPods: 1}, nil)
	for name, test := range map[string]struct {
		in       Inputs
		capacity v1.ResourceList
		want     string
	}{
		"all is well": {Inputs{Host: &HostInfo{}, Runtime: RuntimeView{LastAnswer: epoch, Status: ready}}, full, "[]"},
		"just started": {Inputs{Host: &HostInfo{}}, full,
			"[container runtime status check may not have completed yet, network state unknown]"},
		"never heard": {Inputs{Host: &HostInfo{}, Runtime: RuntimeView{Asked: epoch.Add(-time.Minute), Err: errors.New("refused")}}, full,
			"[container runtime is down: no answer to Status since 2026-01-02T03:03:05Z (refused), network state unknown]"},
		"silent": {Inputs{Host: &HostInfo{}, Runtime: RuntimeView{LastAnswer: epoch.Add(-31 * time.Second), Status: ready}}, full,
			"container runtime is down: no answer to Status since 2026-01-02T03:03:34Z"},
		"going down": {Inputs{Host: &HostInfo{}, Runtime: RuntimeView{LastAnswer: epoch, Status: ready}, ShuttingDown: true,
			OtherCauses: []string{"CSINode is not yet initialized"}}, full, "[CSINode is not yet initialized, node is shutting down]"},
		"nothing known": {Inputs{Runtime: RuntimeView{LastAnswer: epoch, Status: ready}, HostErr: errors.New("no /proc")},
			Capacity(nil, nil, Limits{}, nil), "missing node capacity for resources: cpu, memory, ephemeral-storage (no /proc)"},
	} {
		if got := joinCauses(notReady(test.in, test.capacity, epoch)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestConditionsAndTheirEvents(t *testing.T) {
	first, events := conditions("n1", nil, Pressure{}, nil, epoch)
	if len(first) != 4 || first[3].Type != v1.NodeReady || len(events) != 3 {
		t.Fatalf("first: %v %v", first, events)
	}
	later := epoch.Add(time.Minute)
	second, events := conditions("n1", first, Pressure{Memory: true}, []string{"a", "b"}, later)
	if len(events) != 2 || events[0].Reason != "NodeHasInsufficientMemory" || events[1].Text != "Node n1 status is now: NodeNotReady" {
		t.Errorf("events: %v", events)
	}
	if second[3].Message != "[a, b]" || !second[3].LastTransitionTime.Time.Equal(later) ||
		!second[1].LastTransitionTime.Time.Equal(epoch) || !second[1].LastHeartbeatTime.Time.Equal(later) {
		t.Errorf("second: %v", second)
	}
}

func TestRebootIsAnEvent(t *testing.T) {
	previous := v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{BootID: "one"}}
	_, events := status(previous, Settings{Identity: Identity{Name: "n1"}}, Inputs{Host: &HostInfo{BootID: "two"}}, epoch)
	if len(events) == 0 || events[0].Reason != "Rebooted" || events[0].Text != "Node n1 has been rebooted, boot id: two" {
		t.Errorf("events: %v", events)
	}
}

func TestImages(t *testing.T) {
	list := []*runtimeapi.Image{{Id: "small", Size: 1, RepoTags: []string{"s"}}, {Id: "big", Size: 9, RepoDigests: []string{"d1", "d2"},
		RepoTags: []string{"t1", "t2", "t3", "t4"}}, {Id: "mid", Size: 5}}
	got := images(list, 2)
	if len(got) != 2 || got[0].SizeBytes != 9 || !reflect.DeepEqual(got[0].Names, []string{"d1", "d2", "t1", "t2", "t3"}) {
		t.Errorf("got %v", got)
	}
	if len(images(list, -1)) != 3 || images(nil, 5) == nil {
		t.Error("no limit, or nothing, is handled wrongly")
	}
}

// TestStatusPatchGivesTheStatus applies the patch to a server's copy that
// others wrote to meanwhile.
func TestStatusPatchGivesTheStatus(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		draw := func(label string) v1.NodeStatus {
			status := v1.NodeStatus{Capacity: v1.ResourceList{"cpu": *resource.NewQuantity(rapid.Int64Range(0, 3).Draw(r, label+" cpu"),
				resource.DecimalSI)}}
			for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeReady} {
				status.Conditions = append(status.Conditions,
					v1.NodeCondition{Type: kind, Status: rapid.SampledFrom([]v1.ConditionStatus{"True", "False"}).Draw(r,
						label+" condition")})
			}
			for range rapid.IntRange(0, 3).Draw(r, label+" addresses") {
				status.Addresses = append(status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP,
					Address: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, label+" address")})
			}
			return status
		}
		from, to := draw("from"), draw("to")
		patch, err := statusPatch(from, to)
		if err != nil {
			r.Fatal(err)
		}
		server := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{Unschedulable: true}, Status: *from.DeepCopy()}
		server.Status.Conditions = append(server.Status.Conditions, v1.NodeCondition{Type: v1.NodeNetworkUnavailable,
			Status: v1.ConditionFalse})
		before, err := json.Marshal(server)
		if err != nil {
			r.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Node{})
		if err != nil {
			r.Fatal(err)
		}
		got := &v1.Node{}
		if err := json.Unmarshal(after, got); err != nil {
			r.Fatal(err)
		}
		if findCondition(got.Status.Conditions, v1.NodeNetworkUnavailable) == nil || !got.Spec.Unschedulable {
			r.Fatalf("others' fields are lost by %s", patch)
		}
		for _, condition := range to.Conditions {
			if have := findCondition(got.Status.Conditions, condition.Type); have == nil || have.Status != condition.Status {
				r.Fatalf("condition %s is %v after %s", condition.Type, have, patch)
			}
		}
		if len(got.Status.Addresses) != len(to.Addresses) || len(to.Addresses) > 0 && !reflect.DeepEqual(got.Status.Addresses,
			to.Addresses) {
			r.Fatalf("addresses are %v, want %v, after %s", got.Status.Addresses, to.Addresses, patch)
		}
	})
}

func TestCadence(t *testing.T) {
	c := cadence{Every: 5 * time.Minute, Slow: 10 * time.Second}
	if !c.Due(epoch, NoChange) {
		t.Error("the first status is not due")
	}
	c.Posted(epoch, true, 0.5)
	for _, test := range []struct {
		after  time.Duration
		change change
		want   bool
	}{{time.Second, NoChange, false}, {time.Second, SlowChange, false}, {11 * time.Second, SlowChange, true},
		{time.Second, UrgentChange, true}, {301 * time.Second, NoChange, true}} {
		if got := c.Due(epoch.Add(test.after), test.change); got != test.want {
			t.Errorf("after %v with change %d: %v", test.after, test.change, got)
		}
	}
	c.Failed(epoch, 0)
	if c.Due(epoch.Add(50*time.Millisecond), UrgentChange) || !c.Wake(UrgentChange).Equal(epoch.Add(100*time.Millisecond)) {
		t.Error("a failure does not back off")
	}
	for n := range 20 {
		if delay := backoff(n, 0); delay > 7*time.Second || n > 0 && delay < backoff(n-1, 0) {
			t.Errorf("try %d waits %v", n, delay)
		}
	}
}

func TestReadHostInfo(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/machine-id": "abc\n", "etc/os-release": "NAME=x\nPRETTY_NAME=\"Debian 12\"\n", "proc/sys/kernel/random/boot_id": "boot\n",
		"proc/sys/kernel/osrelease": "6.1\n",
		"proc/meminfo":              "MemTotal: 1024 kB\nSwapTotal: 2 kB\n", "sys/devices/system/cpu/online": "0-2,5\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadHostInfo(root)
	want := &HostInfo{CPUs: 4, MemoryBytes: 1 << 20, SwapBytes: 2048, HugePages: map[int64]int64{2 << 20: 3}, MachineID: "abc",
		SystemUUID: "abc", BootID: "boot", Kernel: "6.1", OSImage: "Debian 12"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestNewer(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{{"10", "9", true}, {"9", "10", false}, {"10", "10", false}, {"", "", true}} {
		if got := newer(test.a, test.b); got != test.want {
			t.Errorf("%s after %s: %v", test.a, test.b, got)
		}
	}
}

// TestRenewalsOfAFleetAreSpread: 10,000 nodes that start at the same moment do
// not beat together, neither in the first interval nor an hour later.
func TestRenewalsOfAFleetAreSpread(t *testing.T) {
	const nodes, slot = 10_000, 100 * time.Millisecond
	random := rand.New(rand.NewPCG(1, 2))
	interval := renewDelay(40, false, 0)
	if interval != 10*time.Second {
		t.Fatalf("the interval is %v", interval)
	}
	next := make([]time.Duration, nodes)
	for i := range next {
		next[i] = renewDelay(40, true, random.Float64())
	}
	for _, from := range []time.Duration{0, time.Minute, time.Hour} {
		renewals := make([]int, interval/slot)
		for i := range next {
			for next[i] < from {
				delay := renewDelay(40, false, random.Float64())
				if delay < interval || delay > interval+interval/25 {
					t.Fatalf("a renewal waits %v", delay)
				}
				next[i] += delay
			}
			if at := next[i] - from; at < interval {
				renewals[at/slot]++
			}
		}
		// Evenly would be 100 in each slot; five standard deviations are 50.
		if most := slices.Max(renewals); most > 150 {
			t.Errorf("from %v on %d of %d nodes beat within %v", from, most, nodes, slot)
		}
	}
}

// TestOldHugePagesGo: sizes that the host has no longer are not kept from the
// old status; what another party added is.
func TestOldHugePagesGo(t *testing.T) {
	amount := func(n int64) v1.ResourceList {
		return v1.ResourceList{"hugepages-3Mi": *resource.NewQuantity(n, resource.BinarySI), "example.com/added": *resource.NewQuantity(n,
			resource.DecimalSI)}
	}
	capacity, allocatable := v1.ResourceList{}, v1.ResourceList{}
	mergeCapacity(v1.NodeStatus{Capacity: amount(6), Allocatable: amount(4)}, capacity, allocatable)
	if c, a := capacity["example.com/added"], allocatable["example.com/added"]; len(capacity) != 1 || len(allocatable) != 1 ||
		c.Value() != 6 || a.Value() != 4 {
		t.Errorf("%v of %v", allocatable, capacity)
	}
}
