// Package assign gives containers the CPUs, memory and devices that are
// theirs alone, together where the topology policy wants them together, and
// keeps the CPUs of all others off them. The decisions are those of the
// packages cpus, memory and topology; this one holds the state and its files.
package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/checkpoint"
	"github.com/berth-dev/berth/internal/agent/resource/cpus"
	"github.com/berth-dev/berth/internal/agent/resource/memory"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
	"github.com/berth-dev/berth/internal/journal"
)

// devices gives out devices; package device does.
type devices interface {
	// Hints for a container, or with c nil for the whole pod.
	Hints(pod *v1.Pod, c *v1.Container) topology.Wishes
	// Allocate gives a container its devices, near the nodes as far as they
	// have any (0: anywhere). What it has it keeps.
	Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, nodes topology.Mask) error
	// Release takes back what a pod holds.
	Release(pod types.UID)
}

// Config is what a Manager works with. Log, RootDir and Machine are required.
type Config struct {
	Log     *slog.Logger
	RootDir string
	Host    *topology.Host
	// CPUs is the static policy; nil is policy none.
	CPUs *cpus.Static
	// Memory is the reservation of policy Static; nil is policy None.
	Memory memory.Reservation
	// Topology merges hints; PodScope does so for pods instead of containers.
	Topology topology.Merger
	PodScope bool
	// devices may be nil.
	Devices devices
	Metrics prometheus.Registerer
	// Journal records what pods got; nil: none.
	Journal journal.Sink
}

// Manager assigns. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	metrics *metrics

	admitting sync.Mutex // one pod at a time
	mu        sync.Mutex
	cpus      cpus.State
	memory    memory.State
	// changed is closed and replaced when the shared CPUs change.
	changed chan struct{}
}

// New takes up the state that a former agent left, or says why it cannot.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil || cfg.RootDir == "" || cfg.Host == nil {
		return nil, errors.New("configuring resource assignment: Log, RootDir and Machine are required")
	}
	if limit := max(cfg.Topology.Options.MaxNodes, topology.MaxNodes); len(cfg.Host.Nodes) > limit && cfg.Topology.Policy != topology.None {
		return nil, fmt.Errorf("unsupported on machines with more than %d NUMA Nodes: this one has %d; set topologyManagerPolicy none or "+
			"topologyManagerPolicyOptions[max-allowable-numa-nodes]", limit, len(cfg.Host.Nodes))
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	m := &Manager{cfg: cfg, changed: make(chan struct{})}
	m.cfg.Topology.Host = cfg.Host
	var err error
	if m.metrics, err = newMetrics(cfg.Metrics, cfg.CPUs != nil); err != nil {
		return nil, err
	}
	if err := m.loadCPUs(); err != nil {
		return nil, err
	}
	if err := m.loadMemory(); err != nil {
		return nil, err
	}
	m.measure()
	return m, nil
}

func (m *Manager) cpuPolicy() string {
	if m.cfg.CPUs == nil {
		return "none"
	}
	return "static"
}

func (m *Manager) memoryPolicy() string {
	if m.cfg.Memory == nil {
		return "None"
	}
	return "Static"
}

func (m *Manager) loadCPUs() error {
	path := filepath.Join(m.cfg.RootDir, checkpoint.CPUFile)
	file, found, err := checkpoint.ReadCPU(path)
	if err != nil {
		return err
	}
	if found && file.PolicyName != m.cpuPolicy() {
		return fmt.Errorf("could not restore state from checkpoint: configured policy %q differs from state checkpoint policy %q, please "+
			"drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet", m.cpuPolicy(), file.PolicyName, path)
	}
	if m.cfg.CPUs == nil {
		return m.saveCPUs(cpus.State{})
	}
	m.cpus = m.cfg.CPUs.Initial()
	if !found || file.DefaultCPUSet == "" && len(file.Entries) == 0 {
		return m.saveCPUs(m.cpus)
	}
	if m.cpus.Shared, err = cpuset.Parse(file.DefaultCPUSet); err != nil {
		return &checkpoint.CorruptError{Path: path, Err: err}
	}
	for pod, containers := range file.Entries {
		m.cpus.Owned[pod] = map[string]cpuset.CPUSet{}
		for name, text := range containers {
			if m.cpus.Owned[pod][name], err = cpuset.Parse(text); err != nil {
				return &checkpoint.CorruptError{Path: path, Err: err}
			}
		}
	}
	if err := m.cfg.CPUs.Check(m.cpus); err != nil {
		return fmt.Errorf("invalid state, please drain node and remove policy state file %s: %w", path, err)
	}
	return nil
}

func (m *Manager) loadMemory() error {
	path := filepath.Join(m.cfg.RootDir, checkpoint.MemoryFile)
	file, found, err := checkpoint.ReadMemory(path)
	if err != nil {
		return err
	}
	if found && file.PolicyName != m.memoryPolicy() {
		return fmt.Errorf("could not restore state from checkpoint: [memorymanager] configured policy %q differs from state checkpoint "+
			"policy %q, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet",
			m.memoryPolicy(), file.PolicyName, path)
	}
	if m.cfg.Memory == nil {
		return m.saveMemory(memory.State{})
	}
	initial := memory.Initial(m.cfg.Host, m.cfg.Memory)
	m.memory = initial
	if !found || len(file.MachineState) == 0 {
		return m.saveMemory(m.memory)
	}
	m.memory = memory.State{Nodes: file.MachineState, Owned: file.Entries}
	if err := memory.Check(m.memory, initial); err != nil {
		return fmt.Errorf("[memorymanager] invalid state, please drain node and remove policy state file %s: %w", path, err)
	}
	return nil
}

func (m *Manager) saveCPUs(s cpus.State) error {
	return checkpoint.Write(filepath.Join(m.cfg.RootDir, checkpoint.CPUFile), checkpoint.NewCPU(m.cpuPolicy(), s.Shared, s.Owned))
}

func (m *Manager) saveMemory(s memory.State) error {
	return checkpoint.Write(filepath.Join(m.cfg.RootDir, checkpoint.MemoryFile), checkpoint.NewMemory(m.memoryPolicy(), s))
}

// refusal is why a pod is not taken.
type refusal struct{ Reason, Message string }

// Admit gives a pod all it is to have alone, or nothing and says why.
func (m *Manager) Admit(ctx context.Context, pod *v1.Pod) *refusal {
	m.admitting.Lock()
	defer m.admitting.Unlock()
	began := time.Now()
	m.metrics.requests.Inc()
	defer func() { m.metrics.duration.Observe(float64(time.Since(began).Milliseconds())) }()

	m.mu.Lock()
	t := &try{m: m, pod: pod, cpus: m.cpus.Clone(), memory: m.memory.Clone()}
	m.mu.Unlock()
	refusal := t.run(ctx)
	if refusal == nil {
		if err := m.commit(t); err != nil {
			refusal = unexpected(err)
		} else {
			t.explain(began)
		}
	}
	if refusal != nil && m.cfg.Devices != nil {
		m.cfg.Devices.Release(pod.UID)
	}
	return refusal
}

// commit makes what was tried true, on disk first.
func (m *Manager) commit(t *try) error {
	if t.tookCPUs {
		if err := m.saveCPUs(t.cpus); err != nil {
			return err
		}
	}
	if t.tookMemory {
		if err := m.saveMemory(t.memory); err != nil {
			return err
		}
	}
	if !t.tookCPUs && !t.tookMemory {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cpus, m.memory = t.cpus, t.memory
	m.measure()
	if t.tookCPUs {
		close(m.changed)
		m.changed = make(chan struct{})
	}
	return nil
}

// Keep takes back what pods have that are not to be kept.
func (m *Manager) Keep(keep func(types.UID) bool) error {
	m.admitting.Lock()
	defer m.admitting.Unlock()
	m.mu.Lock()
	t := &try{m: m, cpus: m.cpus.Clone(), memory: m.memory.Clone()}
	m.mu.Unlock()
	byName := func(pod string) bool { return keep(types.UID(pod)) }
	if m.cfg.CPUs != nil {
		t.cpus, t.tookCPUs = m.cfg.CPUs.Release(t.cpus, byName)
	}
	if m.cfg.Memory != nil {
		t.tookMemory = memory.Release(t.memory, byName)
	}
	return m.commit(t)
}

// Forget takes back what a pod has.
func (m *Manager) Forget(pod types.UID) error {
	if m.cfg.Devices != nil {
		m.cfg.Devices.Release(pod)
	}
	return m.Keep(func(uid types.UID) bool { return uid != pod })
}

// placement is where a container runs; empty lists leave that to the kernel.
type placement struct {
	CPUs, Mems string
	// Exclusive: no one else runs on these CPUs.
	Exclusive bool
}

// Of returns a container's placement.
func (m *Manager) Of(pod types.UID, container string) placement {
	m.mu.Lock()
	defer m.mu.Unlock()
	var p placement
	if m.cfg.CPUs != nil {
		p.CPUs = m.cpus.Shared.String()
		if own, ok := m.cpus.Owned[string(pod)][container]; ok {
			p.CPUs, p.Exclusive = own.String(), true
		}
	}
	if nodes := m.memory.NodesOf(string(pod), container); nodes != 0 {
		p.Mems = nodes.String()
	}
	return p
}

// Exclusive tells whether a container of the pod owns CPUs.
func (m *Manager) Exclusive(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.cpus.Owned[string(pod)]) > 0
}

// CPUsOf are the CPUs a container owns.
func (m *Manager) CPUsOf(pod types.UID, container string) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cpus.Owned[string(pod)][container].List()
}

// MemoryOf is the memory a container owns.
func (m *Manager) MemoryOf(pod types.UID, container string) []memory.Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]memory.Block(nil), m.memory.Owned[string(pod)][container]...)
}

// AllocatableCPUs are all that containers may own.
func (m *Manager) AllocatableCPUs() []int {
	if m.cfg.CPUs == nil {
		return nil
	}
	return m.cfg.Host.All().Difference(m.cfg.CPUs.Reserved).List()
}

// AllocatableMemory is all that containers may own, a block per node and kind.
func (m *Manager) AllocatableMemory() []memory.Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []memory.Block
	for _, n := range m.cfg.Host.Nodes {
		state := m.memory.Nodes[n.ID]
		if state == nil {
			continue
		}
		for _, kind := range slices.Sorted(maps.Keys(state.MemoryMap)) {
			if size := state.MemoryMap[kind].Allocatable; size > 0 {
				out = append(out, memory.Block{NUMAAffinity: []int{n.ID}, Type: kind, Size: size})
			}
		}
	}
	return out
}

// ResizeRefusal tells why a pod can never be resized in place, or "". Which
// CPUs and memory are a Guaranteed pod's own is settled when it is
// admitted, so what they depend on cannot change later.
func (m *Manager) ResizeRefusal(now, desired *v1.Pod) string {
	if resource.QOS(now) != v1.PodQOSGuaranteed {
		return ""
	}
	if m.cfg.CPUs != nil && differs(now, desired, v1.ResourceCPU) {
		return "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy"
	}
	if m.cfg.Memory != nil && differs(now, desired, v1.ResourceMemory) {
		return "Resize is infeasible for Guaranteed Pods alongside Memory Manager static policy"
	}
	return ""
}

// differs tells whether any container asks for another amount.
func differs(a, b *v1.Pod, name v1.ResourceName) bool {
	amounts := func(p *v1.Pod) map[string]int64 {
		out := map[string]int64{}
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				q := list[i].Resources.Requests[name]
				out[list[i].Name] = q.MilliValue()
			}
		}
		return out
	}
	return !maps.Equal(amounts(a), amounts(b))
}

// Changed is closed when the shared CPUs change.
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}
