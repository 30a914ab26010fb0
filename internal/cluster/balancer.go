package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/workload/loadbalancer"
	podnetwork "github.com/berth-dev/berth/internal/network"
	"github.com/berth-dev/berth/internal/proxy/announce"
)

// Who gives addresses to Services of type LoadBalancer that name no class.
const (
	LoadBalancerNode = "node" // this control plane: the addresses of the nodes
	LoadBalancerPool = "pool" // this control plane: addresses of the pools
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

// noPools is the value of --load-balancer-pool that takes all pools away.
const noPools = "none"

// pools are the pools of addresses that Services of class berth.dev/pool get.
func (c *Config) pools() ([]loadbalancer.Pool, error) {
	if len(c.LoadBalancerPools) == 1 && c.LoadBalancerPools[0] == noPools {
		return nil, nil
	}
	return loadbalancer.ParsePools(c.LoadBalancerPools)
}

// validateBalancer checks who gives addresses to Services, and that no pool
// holds an address of somebody else.
func (c *Config) validateBalancer(pods, services []netip.Prefix) error {
	words := []string{LoadBalancerNode, LoadBalancerPool, LoadBalancerNone}
	if c.LoadBalancer != "" && !slices.Contains(words, c.LoadBalancer) {
		return fmt.Errorf("--load-balancer: %q is neither %s, %s nor %s", c.LoadBalancer, words[0], words[1], words[2])
	}
	pools, err := c.pools()
	if err != nil {
		return err
	}
	if c.LoadBalancer == LoadBalancerPool && len(pools) == 0 && c.Role.control() {
		return fmt.Errorf("--load-balancer=%s needs a pool: add --load-balancer-pool NAME=CIDR or NAME=FIRST-LAST", LoadBalancerPool)
	}
	if c.LoadBalancer == LoadBalancerNone && len(pools) > 0 {
		return fmt.Errorf("--load-balancer=%s: nobody gives addresses of --load-balancer-pool then; take away one of the two "+
			"(--load-balancer-pool=%s clears pools of an earlier start)", LoadBalancerNone, noPools)
	}
	var others []loadbalancer.Foreign
	for flag, list := range map[string][]netip.Prefix{"--cluster-cidr": pods, "--service-cidr": services} {
		for _, p := range list {
			others = append(others, loadbalancer.Foreign{Prefix: p, Holder: fmt.Sprintf("%s %s", flag, p)})
		}
	}
	if ip, err := netip.ParseAddr(c.NodeIP); err == nil {
		others = append(others, loadbalancer.Foreign{Prefix: netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()),
			Holder: fmt.Sprintf("the address %s of this node", ip)})
	}
	return loadbalancer.CheckPools(pools, others...)
}

// balancerConfig is how the controllers give addresses to Services.
func (u *up) balancerConfig() (loadbalancer.Config, error) {
	pools, err := u.pools()
	cfg := loadbalancer.Config{Reserved: u.reservedPorts(), Pools: pools, Classless: loadbalancer.Class}
	if u.LoadBalancer == LoadBalancerPool {
		cfg.Classless = loadbalancer.PoolClass
	}
	return cfg, err
}

// allowAnnouncing lets nodes claim addresses of pools: in a namespace of its own,
// where they may write each other's claims as far as admission lets them (see
// internal/control/admit/announce.go). A cluster without pools has no such
// namespace.
func allowAnnouncing(ctx context.Context, client kubernetes.Interface) error {
	opts := metav1.ApplyOptions{FieldManager: "berth", Force: true}
	if _, err := client.CoreV1().Namespaces().Apply(ctx, corev1ac.Namespace(announce.Namespace), opts); err != nil {
		return fmt.Errorf("making namespace %s: %w", announce.Namespace, err)
	}
	role := rbacv1ac.Role(announceRole, announce.Namespace).WithRules(rbacv1ac.PolicyRule().WithAPIGroups("coordination.k8s.io").
		WithResources("leases").WithVerbs("get", "list", "watch", "create", "update"))
	if _, err := client.RbacV1().Roles(announce.Namespace).Apply(ctx, role, opts); err != nil {
		return fmt.Errorf("granting nodes the claims of addresses: %w", err)
	}
	nodes := rbacv1ac.Subject().WithKind("Group").WithAPIGroup("rbac.authorization.k8s.io").WithName("system:nodes")
	binding := rbacv1ac.RoleBinding(announceRole, announce.Namespace).WithSubjects(nodes).
		WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup("rbac.authorization.k8s.io").WithKind("Role").WithName(announceRole))
	if _, err := client.RbacV1().RoleBindings(announce.Namespace).Apply(ctx, binding, opts); err != nil {
		return fmt.Errorf("granting nodes the claims of addresses: %w", err)
	}
	return nil
}

// announceRole is the role of nodes in that namespace.
const announceRole = "berth:announce"

// startAnnouncer leads traffic for addresses of pools to this node, if there
// are any.
func (u *up) startAnnouncer(context.Context) error {
	log, err := u.logs.part("announcer")
	if err != nil {
		return err
	}
	client, err := u.nodeClient()
	if err != nil {
		return err
	}
	cfg := announce.Config{NodeName: u.NodeName, Client: client, Informers: u.informers, Condition: loadbalancer.PoolCondition, Log: log,
		Journal: u.journal}
	u.keep("announcer", func(ctx context.Context) error { return announce.Run(ctx, cfg) })
	return nil
}
