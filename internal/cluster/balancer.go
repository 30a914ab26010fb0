package cluster

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/workload/loadbalancer"
	podnetwork "github.com/berth-dev/berth/internal/network"
)

// Who gives addresses to Services of type LoadBalancer that name no class.
const (
	LoadBalancerNode = "node" // this control plane: the addresses of the nodes
	LoadBalancerNone = "none" // someone else, or no one
)

// reservedPorts are ports on the nodes' addresses that no Service of type
// LoadBalancer may have: anyone who took one would cut the cluster or its
// administrator off.
func (u *up) reservedPorts() map[loadbalancer.Port]string {
	out := map[loadbalancer.Port]string{{Protocol: v1.ProtocolTCP, Number: 22}: "ssh of the hosts"}
	for n, holder := range map[int]string{u.Ports.API: "the API server", u.Ports.Agent: "the node agents",
		u.Ports.ProxyHealthz: "the proxies' health check", u.Ports.DNS: "cluster DNS"} {
		out[loadbalancer.Port{Protocol: v1.ProtocolTCP, Number: int32(n)}] = holder
	}
	for n, holder := range map[int]string{u.Ports.DNS: "cluster DNS", u.Ports.WireGuard: "WireGuard between the nodes",
		podnetwork.Port: "VXLAN between the nodes"} {
		out[loadbalancer.Port{Protocol: v1.ProtocolUDP, Number: int32(n)}] = holder
	}
	return out
}
