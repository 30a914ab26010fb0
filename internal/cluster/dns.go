package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/berth-dev/berth/internal/dns"
)

// resolvConf names the servers that get the questions which are not the
// cluster's.
const resolvConf = "/etc/resolv.conf"

// dnsIP is the address of cluster DNS: the tenth of the service range, as
// everywhere.
func (c *Config) dnsIP() (net.IP, error) {
	services, err := netip.ParsePrefix(c.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("--service-cidr %q: %w", c.ServiceCIDR, err)
	}
	ip := services.Masked().Addr()
	for range 10 {
		ip = ip.Next()
	}
	if !services.Contains(ip) {
		return nil, fmt.Errorf("--service-cidr %s: too small to hold the address of cluster DNS, its tenth: use a /28 or larger", services)
	}
	return ip.AsSlice(), nil
}

// startDNS runs cluster DNS on the node's address and publishes it as the
// Service that pods are told of.
func (u *up) startDNS(parts context.Context) error {
	log, err := u.logs.part("dns")
	if err != nil {
		return err
	}
	ip, err := u.dnsIP()
	if err != nil {
		return err
	}
	pods, err := netip.ParsePrefix(u.ClusterCIDR)
	if err != nil {
		return fmt.Errorf("--cluster-cidr %q: %w", u.ClusterCIDR, err)
	}
	node, err := netip.ParseAddr(u.NodeIP)
	if err != nil {
		return fmt.Errorf("--node-ip %q: %w", u.NodeIP, err)
	}
	cfg := dns.Config{
		// The node's address may be on an open network: a resolver for
		// strangers would be a tool for attacks.
		Clients: []netip.Prefix{pods, netip.PrefixFrom(node, node.BitLen()), netip.MustParsePrefix("127.0.0.0/8")},
		Listen:  []string{net.JoinHostPort(u.NodeIP, strconv.Itoa(u.Ports.DNS))}, Domain: u.ClusterDomain,
		Informers: u.informers, Upstreams: resolvConf, Log: log, Metrics: u.metrics,
	}
	u.crew.start(parts, part{"dns", func(ctx context.Context) error { return dns.Run(ctx, cfg) }})
	// A part of its own: it is tried again until the API takes it.
	u.crew.start(parts, part{"dns service", func(ctx context.Context) error {
		if err := dns.Publish(ctx, u.client, ip, net.ParseIP(u.NodeIP), u.Ports.DNS); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}})
	return nil
}
