package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource/cpus"
	"github.com/berth-dev/berth/internal/agent/resource/memory"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host has two NUMA nodes of four CPUs, 1000 bytes each.
func host() *topology.Host {
	m := &topology.Host{}
	for i := range 8 {
		m.CPUs = append(m.CPUs, topology.CPU{ID: i, Core: i / 2, Cache: i / 4, NUMA: i / 4, Socket: i / 4})
	}
	m.Nodes = []topology.Node{{ID: 0, Memory: 1000}, {ID: 1, Memory: 1000}}
	return m
}

// near is a device of one node that every pod with the label wants.
type near struct {
	node     int
	err      error
	given    map[types.UID]topology.Mask
	released []types.UID
}

func (n *near) Hints(p *v1.Pod, _ *v1.Container) topology.Wishes {
	if p.Labels["device"] == "" {
		return nil
	}
	return topology.Wishes{"device": {{Mask: topology.Of(n.node), Preferred: true}, {Mask: topology.Of(0, 1)}}}
}

func (n *near) Allocate(_ context.Context, p *v1.Pod, _ *v1.Container, nodes topology.Mask) error {
	if p.Labels["device"] == "" {
		return nil
	}
	n.given[p.UID] = nodes
	return n.err
}

func (n *near) Release(uid types.UID) { n.released = append(n.released, uid) }

func config(t *testing.T, root string) Config {
	m := host()
	return Config{Log: slog.New(slog.DiscardHandler), RootDir: root, Host: m, CPUs: &cpus.Static{Host: m, Reserved: cpuset.New(0)},
		Memory: memory.Reservation{0: {v1.ResourceMemory: 100}}, Topology: topology.Merger{Policy: topology.SingleNUMA},
		Devices: &near{node: 1, given: map[types.UID]topology.Mask{}}}
}

func pod(name string, cpu, mem int64) *v1.Pod {
	l := v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(mem,
		resource.BinarySI)}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: l, Limits: l}}}}}
}

func start(t *testing.T, cfg Config) *Manager {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestResourcesLieTogether(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := config(t, t.TempDir())
	cfg.Metrics = registry
	m := start(t, cfg)
	with := pod("with", 2000, 300)
	with.Labels["device"] = "yes"
	if r := m.Admit(t.Context(), with); r != nil {
		t.Fatal(r)
	}
	if p := m.Of("with", "c"); p != (placement{CPUs: "4-5", Mems: "1", Exclusive: true}) ||
		cfg.Devices.(*near).given["with"] != topology.Of(1) {
		t.Errorf("placed at %+v, device near %s", p, cfg.Devices.(*near).given["with"])
	}
	if p := m.Of("other", "c"); p != (placement{CPUs: "0-3,6-7"}) {
		t.Errorf("all others are at %+v", p)
	}
	// Five CPUs fit the host, not a node.
	r := m.Admit(t.Context(), pod("wide", 5000, 10))
	if r == nil || *r != (refusal{"TopologyAffinityError", "Resources cannot be allocated with Topology locality"}) {
		t.Errorf("refusal is %v", r)
	}
	if released := cfg.Devices.(*near).released; len(released) != 1 || released[0] != "wide" {
		t.Errorf("released %v", released)
	}
	want := `
# HELP kubelet_container_aligned_compute_resources_count Allocations of aligned resources, by scope and boundary.
# TYPE kubelet_container_aligned_compute_resources_count counter
kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="container"} 1
kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="pod"} 0
kubelet_container_aligned_compute_resources_count{boundary="physical_cpu",scope="container"} 0
kubelet_container_aligned_compute_resources_count{boundary="uncore_cache",scope="container"} 1
# HELP kubelet_cpu_manager_allocation_per_numa Processors owned by containers, by NUMA node.
# TYPE kubelet_cpu_manager_allocation_per_numa gauge
kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 0
kubelet_cpu_manager_allocation_per_numa{numa_node="1"} 2
# HELP kubelet_cpu_manager_exclusive_cpu_allocation_count Processors owned by containers.
# TYPE kubelet_cpu_manager_exclusive_cpu_allocation_count gauge
kubelet_cpu_manager_exclusive_cpu_allocation_count 2
# HELP kubelet_cpu_manager_shared_pool_size_millicores Size of the pool of shared processors.
# TYPE kubelet_cpu_manager_shared_pool_size_millicores gauge
kubelet_cpu_manager_shared_pool_size_millicores 5000
# HELP kubelet_topology_manager_admission_errors_total Admissions in which resources could not be aligned.
# TYPE kubelet_topology_manager_admission_errors_total counter
kubelet_topology_manager_admission_errors_total 1
# HELP kubelet_topology_manager_admission_requests_total Admissions in which resources have to be aligned.
# TYPE kubelet_topology_manager_admission_requests_total counter
kubelet_topology_manager_admission_requests_total 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kubelet_container_aligned_compute_resources_count",
		"kubelet_cpu_manager_allocation_per_numa", "kubelet_cpu_manager_exclusive_cpu_allocation_count",
		"kubelet_cpu_manager_shared_pool_size_millicores", "kubelet_topology_manager_admission_errors_total",
		"kubelet_topology_manager_admission_requests_total"); err != nil {
		t.Error(err)
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	cfg := config(t, t.TempDir())
	cfg.Topology.Policy = topology.None
	cfg.CPUs.Options.FullCores = true
	m := start(t, cfg)
	for _, c := range []struct {
		pod  *v1.Pod
		want refusal
	}{
		{pod("odd", 3000, 10), refusal{"SMTAlignmentError", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"}},
		{pod("many", 8000, 10),
			refusal{"SMTAlignmentError",
				"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2"}},
		{pod("much", 2000, 5000), refusal{"UnexpectedAdmissionError",
			"Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is " +
				"available, which is unexpected"}},
	} {
		if r := m.Admit(t.Context(), c.pod); r == nil || *r != c.want {
			t.Errorf("%s: %v", c.pod.Name, r)
		}
	}
	broken := pod("broken", 500, 10)
	broken.Labels["device"] = "yes"
	cfg.Devices.(*near).err = errors.New("out of order")
	if r := m.Admit(t.Context(), broken); r == nil || r.Message != "Allocate failed due to out of order, which is unexpected" {
		t.Errorf("refusal is %v", r)
	}
	if p := m.Of("any", "c"); p.CPUs != "0-7" {
		t.Errorf("refused pods left others at %s", p.CPUs)
	}
}

// TestRestart kills the manager after every step: the next one goes on from
// the files alone.
func TestRestart(t *testing.T) {
	root := t.TempDir()
	for i, cpu := range []int64{2000, 1000, 500, 2000} {
		m := start(t, config(t, root))
		before := m.Of(types.UID(fmt.Sprint("p", i-1)), "c")
		if r := m.Admit(t.Context(), pod(fmt.Sprint("p", i), cpu, 200)); r != nil {
			t.Fatal(r)
		}
		placed := m.Of(types.UID(fmt.Sprint("p", i)), "c")
		m = start(t, config(t, root))
		if again := m.Of(types.UID(fmt.Sprint("p", i)), "c"); again != placed {
			t.Errorf("p%d: %+v, after a restart %+v", i, placed, again)
		}
		if r := m.Admit(t.Context(), pod(fmt.Sprint("p", i), cpu, 200)); r != nil || m.Of(types.UID(fmt.Sprint("p", i)), "c") != placed {
			t.Errorf("p%d asked again: %v, %+v", i, r, m.Of(types.UID(fmt.Sprint("p", i)), "c"))
		}
		if i > 0 && before.Exclusive && m.Of(types.UID(fmt.Sprint("p", i-1)), "c") != before {
			t.Errorf("p%d moved", i-1)
		}
	}
	m := start(t, config(t, root))
	if err := m.Forget("p0"); err != nil {
		t.Fatal(err)
	}
	if m = start(t, config(t, root)); m.Exclusive("p0") || !m.Exclusive("p1") {
		t.Error("what p0 had is not free, or p1's is")
	}
}

func TestAnotherPolicyIsRefused(t *testing.T) {
	for file, change := range map[string]func(*Config){
		"cpu_manager_state":    func(c *Config) { c.CPUs = nil },
		"memory_manager_state": func(c *Config) { c.Memory = nil },
	} {
		root := t.TempDir()
		start(t, config(t, root))
		cfg := config(t, root)
		change(&cfg)
		_, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), "differs from state checkpoint policy") || !strings.Contains(err.Error(),
			filepath.Join(root, file)) {
			t.Errorf("%s: %v", file, err)
		}
		if err := os.Remove(filepath.Join(root, file)); err != nil {
			t.Fatal(err)
		}
		if _, err := New(cfg); err != nil {
			t.Errorf("without %s: %v", file, err)
		}
	}
}

func TestResizeOfPinnedPods(t *testing.T) {
	m := start(t, config(t, t.TempDir()))
	for _, c := range []struct {
		from, to *v1.Pod
		want     string
	}{
		{pod("p", 2000, 10), pod("p", 3000, 10), "CPU Manager"}, {pod("p", 500, 10), pod("p", 600, 10), "CPU Manager"},
		{pod("p", 500, 10), pod("p", 500, 20), "Memory Manager"}, {pod("p", 500, 10), pod("p", 500, 10), ""},
	} {
		if got := m.ResizeRefusal(c.from, c.to); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v to %v: %q", c.from.Spec.Containers[0].Resources, c.to.Spec.Containers[0].Resources, got)
		}
	}
	burstable := pod("p", 500, 10)
	burstable.Spec.Containers[0].Resources.Limits = nil
	if got := m.ResizeRefusal(burstable, pod("p", 600, 10)); got != "" {
		t.Errorf("a burstable pod: %q", got)
	}
}

// TestEverybodyMoves: when a pod gets CPUs of its own, running containers
// leave them, and come back when it is over; a failed move is tried again.
func TestEverybodyMoves(t *testing.T) {
	m := start(t, config(t, t.TempDir()))
	moves := make(chan string, 10)
	ready, changed := make(chan struct{}), make(chan struct{}, 1)
	fail := true
	over := make(chan struct{})
	f := Follower{Manager: m, Period: time.Hour, Ready: ready,
		Keep: func(uid types.UID) bool {
			select {
			case <-over:
				return uid != "own"
			default:
				return true
			}
		},
		Running: func() []Running { return []Running{{Pod: "shared", Name: "c", ID: "id1"}} },
		Changed: func() <-chan struct{} { return changed },
		Move: func(_ context.Context, id, set string) error {
			if fail {
				fail = false
				moves <- "failed"
				return errors.New("not now")
			}
			moves <- id + " to " + set
			return nil
		}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	expect := func(want string) {
		t.Helper()
		if got := <-moves; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	close(ready)
	expect("failed")
	changed <- struct{}{}
	expect("id1 to 0-7")
	if r := m.Admit(ctx, pod("own", 2000, 10)); r != nil {
		t.Fatal(r)
	}
	expect("id1 to 0-1,4-7")
	close(over)
	changed <- struct{}{}
	expect("id1 to 0-7")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
