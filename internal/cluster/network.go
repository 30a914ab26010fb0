package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/berth-dev/berth/internal/agent/network"
	podnetwork "github.com/berth-dev/berth/internal/network"
	"github.com/berth-dev/berth/internal/network/ports"
	"github.com/berth-dev/berth/internal/policy"
)

// Tunnel is the device that carries packets to nodes on other links;
// interface names hold 15 bytes at most.
func (c *Config) Tunnel() string {
	if name := c.Instance(); name != "berth" {
		return "bvx" + strings.TrimPrefix(name, "berth-")
	}
	return "berth0-vx"
}

// WireGuard is the device that does so in mode wireguard. Its key is not among
// those of the control plane, which servers share.
func (c *Config) WireGuard() podnetwork.Device {
	d := podnetwork.Device{Name: "berth0-wg", Port: c.Ports.WireGuard, KeyFile: c.Path("agent", "wireguard.key")}
	if name := c.Instance(); name != "berth" {
		d.Name = "bwg" + strings.TrimPrefix(name, "berth-")
	}
	return d
}

// checkNetwork says whether this host can do what --network asks for.
func (c *Config) checkNetwork() error {
	if c.Network != podnetwork.WireGuard || !c.Role.node() {
		return nil
	}
	if err := podnetwork.CheckWireGuard(c.WireGuard()); err != nil {
		return fmt.Errorf("--network=wireguard: %w", err)
	}
	return nil
}

// clusterCIDRs are the ranges of all pods, serviceCIDRs those of Services: one,
// or one of each family, the main one first.
func (c *Config) clusterCIDRs() ([]netip.Prefix, error) {
	return cidrs("--cluster-cidr", c.ClusterCIDR)
}

func (c *Config) serviceCIDRs() ([]netip.Prefix, error) {
	return cidrs("--service-cidr", c.ServiceCIDR)
}

func cidrs(flag, list string) (out []netip.Prefix, err error) {
	for _, s := range strings.Split(list, ",") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%s %q: not a CIDR such as 10.244.0.0/16, nor one of each family with a comma between", flag, list)
		}
		out = append(out, p.Masked())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("%s %q: more than one CIDR of a family", flag, list)
	}
	return out, nil
}

// bridge is the bridge the agent's pods hang on; none if someone else makes
// the pod network.
func (c *Config) bridge() string {
	if c.Network == podnetwork.None {
		return ""
	}
	return c.Bridge()
}

// cniConfDir is where the agent writes the pod network's configuration; empty
// leaves that to anyone who makes the network.
func (c *Config) cniConfDir() string {
	if c.Network == podnetwork.None {
		return ""
	}
	return c.Layout().CNIConfDir()
}

// cni shapes the pods' links. Masquerade is the node network's: the bridge
// plugin would do it to what goes to other nodes' pods, too.
func (c *Config) cni() (network.CNIOptions, error) {
	o := network.CNIOptions{Name: c.Instance(), Bridge: c.Bridge(), DataDir: c.Path("agent", "cni-leases"),
		OneStep: c.RuntimeEndpoint == ""}
	if c.Network == podnetwork.None {
		return o, nil
	}
	ip, err := netip.ParseAddr(c.NodeIP)
	if err != nil {
		return o, fmt.Errorf("--node-ip %q: %w", c.NodeIP, err)
	}
	o.MTU, err = podnetwork.PodMTU(c.Network, ip)
	return o, err
}

// startNetwork connects this node's pods with those of others.
func (u *up) startNetwork(context.Context) error {
	if u.Network == podnetwork.None {
		return u.leaveNetwork()
	}
	log, err := u.logs.part("network")
	if err != nil {
		return err
	}
	cidrs, err := u.clusterCIDRs()
	if err != nil {
		return err
	}
	self, err := u.nodeClient()
	if err != nil {
		return err
	}
	cfg := podnetwork.Config{NodeName: u.NodeName, Informers: u.informers, Mode: u.Network, ClusterCIDRs: cidrs, Tunnel: u.Tunnel(),
		WireGuard: u.WireGuard(),
		Client:    self, Instance: u.Instance(), Log: log}
	u.keep("network", func(ctx context.Context) error { return podnetwork.Run(ctx, cfg) })
	return nil
}

// startPorts binds the ports of the pods' bridge to their pods' addresses. Links
// of another party's network are theirs.
func (u *up) startPorts(context.Context) error {
	if u.bridge() == "" {
		return ports.Cleanup(u.Instance())
	}
	u.ports = ports.New(u.Instance(), u.bridge(), u.log)
	err := u.ports.Start()
	if errors.Is(err, ports.ErrUnable) {
		u.clock.note("node", fmt.Sprintf("pods can send from other pods' addresses: %v", err))
		return nil
	}
	return err
}

// leaveNetwork removes what an earlier start in another mode made: the network
// is another party's now.
func (u *up) leaveNetwork() error {
	cidrs, err := u.clusterCIDRs()
	if err != nil {
		return err
	}
	o, err := u.cni()
	if err != nil {
		return err
	}
	return errors.Join(network.RemoveCNI(u.Layout().CNIConfDir(), o), podnetwork.Cleanup(u.Instance(), u.Tunnel(), u.WireGuard().Name,
		cidrs))
}

// startPolicy enforces NetworkPolicy on this node's pods, if that is wanted.
func (u *up) startPolicy(context.Context) error {
	if !u.NetworkPolicy {
		return policy.Cleanup(u.Instance())
	}
	log, err := u.logs.part("policy")
	if err != nil {
		return err
	}
	u.policy, err = policy.New(policy.Config{NodeName: u.NodeName, Informers: u.informers, Instance: u.Instance(), Log: log,
		Metrics: u.metrics, Journal: u.journal, Bridge: u.bridge() != ""})
	if err != nil {
		return err
	}
	u.keep("network policy", u.policy.Run)
	return nil
}

// cleanNetwork removes what the network's parts put into the kernel.
func (c *Config) cleanNetwork() []error {
	errs := []error{policy.Cleanup(c.Instance()), ports.Cleanup(c.Instance())}
	cidrs, err := c.clusterCIDRs()
	if err != nil {
		// A start that failed before it knew its ranges made nothing.
		return errs
	}
	return append(errs, podnetwork.Cleanup(c.Instance(), c.Tunnel(), c.WireGuard().Name, cidrs))
}
