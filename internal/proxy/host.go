package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// layouts returns the fixed rules of each family this host can do.
func (cfg *Config) layouts() ([]rules.Layout, error) {
	c := cfg.Config
	bit := int32(14)
	if c.NFTables.MasqueradeBit != nil {
		bit = *c.NFTables.MasqueradeBit
	}
	if bit < 0 || bit > 31 {
		return nil, fmt.Errorf("reading nftables.masqueradeBit: %d is not within 0..31", bit)
	}
	cidrs := cfg.ClusterCIDR
	if cidrs == "" {
		cidrs = c.ClusterCIDR
	}
	base := rules.Layout{MarkBit: 1 << bit, MasqueradeAll: c.NFTables.MasqueradeAll}
	switch c.DetectLocalMode {
	case "", "ClusterCIDR":
		// With no CIDR given the bridge tells pods from others as well.
		if cidrs == "" {
			base.LocalBridge = cfg.BridgeName
		}
	case "BridgeInterface":
		base.LocalBridge = c.DetectLocal.BridgeInterface
	case "InterfaceNamePrefix":
		base.LocalPrefix = c.DetectLocal.InterfaceNamePrefix
	case "NodeCIDR":
		cidrs = "" // the Node tells, once it is seen
	default:
		return nil, fmt.Errorf("reading detectLocalMode: %q is not supported, use ClusterCIDR, NodeCIDR, BridgeInterface or "+
			"InterfaceNamePrefix", c.DetectLocalMode)
	}
	var out []rules.Layout
	for _, f := range families() {
		l := base
		l.Family = f
		if base.LocalBridge == "" && base.LocalPrefix == "" {
			for _, s := range strings.Split(cidrs, ",") {
				if s = strings.TrimSpace(s); s == "" {
					continue
				}
				p, err := netip.ParsePrefix(s)
				if err != nil {
					return nil, fmt.Errorf("reading clusterCIDR: %w", err)
				}
				if f.Has(p.Addr()) && len(l.LocalCIDRs) == 0 {
					l.LocalCIDRs = []netip.Prefix{p}
				}
			}
		}
		mine := 0
		for _, s := range c.NodePortAddresses {
			if s == kubeProxyPrimary {
				mine++
				continue
			}
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, fmt.Errorf("reading nodePortAddresses: %w", err)
			}
			if f.Has(p.Addr()) {
				mine++
				l.AllNodePorts = l.AllNodePorts || p.Bits() == 0
			}
		}
		l.AllNodePorts = l.AllNodePorts || len(c.NodePortAddresses) > 0 && mine == 0
		if cfg.BridgeName != "" && !bridgeFiltered(f) {
			l.SameBridge = cfg.BridgeName
			cfg.Log.Info("the kernel does not pass bridged packets to netfilter: connections between pods on the bridge through a "+
				"Service are masqueraded",
				"bridge", cfg.BridgeName, "family", f)
		}
		out = append(out, l)
	}
	return out, nil
}

func v6Enabled() bool {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return false
	}
	return !isOn("/proc/sys/net/ipv6/conf/all/disable_ipv6")
}

// bridgeFiltered says whether packets between two ports of a bridge pass the
// family's netfilter hooks, which undo the address translation of replies.
// It switches that on where it is off.
func bridgeFiltered(f model.Family) bool {
	file := "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if f == model.V6 {
		file = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"
	}
	return isOn(file) || os.WriteFile(file, []byte("1\n"), 0) == nil && isOn(file)
}

func isOn(file string) bool {
	b, err := os.ReadFile(file)
	return err == nil && string(bytes.TrimSpace(b)) != "0"
}

// forward switches on forwarding, without which no packet of a pod leaves
// its node. Forwarding of IPv6 makes a host ignore router advertisements, so
// it is only switched on where pods have IPv6 addresses.
func forward(cfg Config) error {
	files := []string{"/proc/sys/net/ipv4/ip_forward"}
	if strings.Contains(cfg.ClusterCIDR+cfg.Config.ClusterCIDR, ":") {
		files = append(files, "/proc/sys/net/ipv6/conf/all/forwarding")
	}
	for _, f := range files {
		if isOn(f) {
			continue
		}
		err := os.WriteFile(f, []byte("1\n"), 0)
		switch {
		case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
			cfg.Log.Warn("pods cannot be reached: forwarding is off and may not be changed", "file", f, "err", err)
		case err != nil:
			return fmt.Errorf("switching forwarding on: %w", err)
		default:
			cfg.Log.Info("switched forwarding on, since pods need it", "file", f)
		}
	}
	return nil
}

// ownAddress says whether an address is this host's.
func ownAddress(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addrs, func(n net.Addr) bool {
		p, err := netip.ParsePrefix(n.String())
		return err == nil && p.Addr().Unmap() == a
	})
}

// routesTo says whether the way to an address leads through a bridge, or
// through an interface whose name begins with prefix.
func routesTo(a netip.Addr, bridge, prefix string) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return false
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return false
	}
	name := link.Attrs().Name
	return bridge != "" && name == bridge || prefix != "" && strings.HasPrefix(name, prefix)
}
