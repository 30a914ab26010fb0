// Package hostcheck tells what a host lacks before berth is started on it, and
// the command that provides it. Probe reads facts below a root directory; Judge
// is pure and makes findings of them.
package hostcheck

import "github.com/berth-dev/berth/internal/cluster/host"

// hostFacts are what is known of a host.
type hostFacts struct {
	// Distribution is ID of os-release, or the first word of ID_LIKE that
	// remedies exist for; Name is PRETTY_NAME.
	Distribution, Name string
	Kernel             string
	// Init is "systemd", "openrc" or empty.
	Init string
	Host host.Facts
	// HostError is why Host is incomplete.
	HostError string
	// Modules are the kernel's features by module name.
	Modules map[string]moduleState
	// ModulesListed is false for a kernel that came without a list of its
	// modules: then one that is not present may be built in all the same.
	ModulesListed bool
	// Namespaces are the kinds the kernel has.
	Namespaces []string
	// Sysctls are by dotted name; one that is not there is missing.
	Sysctls map[string]string
	// Capabilities is the effective set, a bit each.
	Capabilities uint64
	// Tools are paths by program name.
	Tools map[string]string
	// Listeners hold ports.
	Listeners []listener
	// Processes are PIDs by program name, of programs that Judge knows.
	Processes map[string]int
	Hostname  string
	// MemoryKiB and SwapKiB are totals.
	MemoryKiB, SwapKiB int64
	// ClockSynced is nil if that is not known.
	ClockSynced *bool
	// Failures are what a start would fail by, as the start itself found them.
	Failures []Failure
}

// moduleState is how a kernel feature can be had.
type moduleState int

// States of a module.
const (
	ModuleMissing moduleState = iota
	ModuleLoadable
	ModulePresent
)

// listener is a program that holds a port.
type listener struct {
	// Protocol is tcp or udp.
	Protocol string
	Port     int
	// PID and Program are empty where /proc hides them.
	PID     int
	Program string
}

// Failure is one thing without which a start fails.
type Failure struct {
	// Name is that of the requirement, such as "port 6443".
	Name    string
	Message string
}

// Want is what the host shall be.
type Want struct {
	// Command is up, server, join or agent.
	Command string
	// NodeName was given; empty: the host's name is used.
	NodeName string
	// ForeignRuntime is true where the bundled containerd is not used.
	ForeignRuntime bool
}

// node says whether containers shall run on the host.
func (w Want) node() bool { return w.Command != "server" }

// level is how bad a finding is.
type level string

// Levels of findings.
const (
	OK   level = "ok"
	Warn level = "warn"
	Fail level = "fail"
)

// Finding is one line of the answer.
type Finding struct {
	Level   level  `json:"level"`
	Name    string `json:"name"`
	Message string `json:"message"`
	// Remedy are commands or words; empty for what is well.
	Remedy string `json:"remedy,omitempty"`
}
