package cluster

import "fmt"

// Role is what this host is to its cluster.
type Role string

const (
	// RoleWhole runs everything: control plane and node (`berth up`).
	RoleWhole Role = ""
	// RoleServer runs the control plane alone (`berth server`).
	RoleServer Role = "server"
	// RoleNode runs a node of a cluster whose control plane is elsewhere
	// (`berth join`).
	RoleNode Role = "node"
)

// control says whether the control plane runs here.
func (r Role) control() bool { return r != RoleNode }

// node says whether containers run here.
func (r Role) node() bool { return r != RoleServer }

// Command is the sub-command that starts this role.
func (r Role) Command() string {
	switch r {
	case RoleServer:
		return "server"
	case RoleNode:
		return "join"
	}
	return "up"
}

// mustBe refuses to start a data directory as something it is not.
func (r Role) mustBe(kept Settings) error {
	if kept.Version != 0 && kept.Role != r {
		return fmt.Errorf("this data directory was made by `berth %s`: start it with that, or use another --data-dir", kept.Role.Command())
	}
	return nil
}
