package table

import (
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

var Node = of(nodeCells,
	nameColumn,
	text("Status", "Whether the node is ready, and whether it takes new pods."),
	text("Roles", "The roles of the node."),
	ageColumn,
	text("Version", v1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
	wide("Internal-IP", "The node's first address inside the cluster."),
	wide("External-IP", "The node's first address outside the cluster."),
	wide("OS-Image", v1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
	wide("Kernel-Version", v1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
	wide("Container-Runtime", v1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
)

func nodeCells(now time.Time, n *v1.Node) []any {
	info := &n.Status.NodeInfo
	kernel := or(info.KernelVersion, unknown)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{n.Name, nodeStatus(n), or(strings.Join(nodeRoles(n), ","), none), created(now, n), info.KubeletVersion,
		nodeAddress(n, v1.NodeInternalIP), nodeAddress(n, v1.NodeExternalIP),
		or(info.OSImage, unknown), kernel, or(info.ContainerRuntimeVersion, unknown)}
}

func nodeStatus(n *v1.Node) string {
	status := "Unknown"
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == v1.NodeReady {
			status = "NotReady"
			if c.Status == v1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

const (
	rolePrefix = "node-role.kubernetes.io/"
	roleLabel  = "kubernetes.io/role"
)

func nodeRoles(n *v1.Node) []string {
	set := map[string]bool{}
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, rolePrefix); ok && role != "" {
			set[role] = true
		} else if key == roleLabel && value != "" {
			set[value] = true
		}
	}
	roles := make([]string, 0, len(set))
	for r := range set {
		roles = append(roles, r)
	}
	sort.Strings(roles)
	return roles
}

func nodeAddress(n *v1.Node, kind v1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}
