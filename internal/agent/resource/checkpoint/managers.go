package checkpoint

import (
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource/memory"
)

// Files of the managers, below the agent's directory.
const (
	CPUFile    = "cpu_manager_state"
	MemoryFile = "memory_manager_state"
)

// Names and order of fields are part of the checksum.

// CPUManagerCheckpoint is the content of CPUFile.
type CPUManagerCheckpoint struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      Checksum                     `json:"checksum"`
}

var stateNames = []naming{
	{"(*checkpoint.CPUManagerCheckpoint)", "(*state.CPUManagerCheckpoint)"},
	{"(*checkpoint.MemoryManagerCheckpoint)", "(*state.MemoryManagerCheckpoint)"},
	{"checkpoint.Checksum", "checksum.Checksum"},
	{"checkpoint.NUMANodeMap", "state.NUMANodeMap"},
	{"checkpoint.ContainerMemoryAssignments", "state.ContainerMemoryAssignments"},
	{"memory.NodeState", "state.NUMANodeState"},
	{"memory.Table", "state.MemoryTable"},
	{"memory.Block", "state.Block"},
}

// NewCPU makes the content of CPUFile.
func NewCPU(policy string, shared cpuset.CPUSet, owned map[string]map[string]cpuset.CPUSet) *CPUManagerCheckpoint {
	c := &CPUManagerCheckpoint{PolicyName: policy, DefaultCPUSet: shared.String(), Entries: map[string]map[string]string{}}
	for pod, containers := range owned {
		c.Entries[pod] = map[string]string{}
		for name, set := range containers {
			c.Entries[pod][name] = set.String()
		}
	}
	c.Checksum = sum(c, stateNames...)
	return c
}

// ReadCPU reads CPUFile.
func ReadCPU(path string) (*CPUManagerCheckpoint, bool, error) {
	c := &CPUManagerCheckpoint{Entries: map[string]map[string]string{}}
	found, err := Read(path, c)
	if err != nil || !found {
		return nil, false, err
	}
	was := c.Checksum
	c.Checksum = 0
	if was != 0 && was != sum(c, stateNames...) { // 0 is what very old files have
		return nil, false, &CorruptError{path, errChecksum}
	}
	return c, true, nil
}

// NUMANodeMap and ContainerMemoryAssignments name types of the format.
type (
	NUMANodeMap                map[int]*memory.NodeState
	ContainerMemoryAssignments map[string]map[string][]memory.Block
)

// MemoryManagerCheckpoint is the content of MemoryFile.
type MemoryManagerCheckpoint struct {
	PolicyName   string                     `json:"policyName"`
	MachineState NUMANodeMap                `json:"machineState"`
	Entries      ContainerMemoryAssignments `json:"entries,omitempty"`
	Checksum     Checksum                   `json:"checksum"`
}

// NewMemory makes the content of MemoryFile.
func NewMemory(policy string, s memory.State) *MemoryManagerCheckpoint {
	c := &MemoryManagerCheckpoint{PolicyName: policy, MachineState: NUMANodeMap{}, Entries: ContainerMemoryAssignments{}}
	for id, n := range s.Nodes {
		c.MachineState[id] = n
	}
	for pod, containers := range s.Owned {
		c.Entries[pod] = containers
	}
	c.Checksum = sum(c, stateNames...)
	return c
}

// ReadMemory reads MemoryFile.
func ReadMemory(path string) (*MemoryManagerCheckpoint, bool, error) {
	c := &MemoryManagerCheckpoint{MachineState: NUMANodeMap{}, Entries: ContainerMemoryAssignments{}}
	found, err := Read(path, c)
	if err != nil || !found {
		return nil, false, err
	}
	was := c.Checksum
	c.Checksum = 0
	if was != sum(c, stateNames...) {
		return nil, false, &CorruptError{path, errChecksum}
	}
	return c, true, nil
}
