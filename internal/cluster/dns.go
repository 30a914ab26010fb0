package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/dns"
)

// resolvConf names the servers that get the questions which are not the
// cluster's.
const resolvConf = "/etc/resolv.conf"

// dnsIP is the address of cluster DNS: the tenth of the service range, as
// everywhere.
func (c *Config) dnsIP() (net.IP, error) {
	all, err := c.serviceCIDRs()
	if err != nil {
		return nil, err
	}
	services := all[0]
	ip := services.Addr()
	for range 10 {
		ip = ip.Next()
	}
	if !services.Contains(ip) {
		return nil, fmt.Errorf("--service-cidr %s: too small to hold the address of cluster DNS, its tenth: use a /28 or larger", services)
	}
	return ip.AsSlice(), nil
}

// startDNS runs cluster DNS on this host's address. The control plane
// publishes the Service that pods are told of; a node says that its own server
// answers, and its pods then ask that one.
func (u *up) startDNS(context.Context) error {
	log, err := u.logs.part("dns")
	if err != nil {
		return err
	}
	ip, err := u.dnsIP()
	if err != nil {
		return err
	}
	pods, err := u.clusterCIDRs()
	if err != nil {
		return err
	}
	node, err := netip.ParseAddr(u.NodeIP)
	if err != nil {
		return fmt.Errorf("--node-ip %q: %w", u.NodeIP, err)
	}
	cfg := dns.Config{
		// The node's address may be on an open network: a resolver for
		// strangers would be a tool for attacks.
		Clients: append(pods, netip.PrefixFrom(node, node.BitLen()), netip.MustParsePrefix("127.0.0.0/8"),
			netip.MustParsePrefix("::1/128")), Nodes: true,
		Listen: []string{net.JoinHostPort(u.NodeIP, strconv.Itoa(u.Ports.DNS))}, Domain: u.ClusterDomain,
		Informers: u.informers, Upstreams: resolvConf, Log: log, Metrics: u.metrics,
	}
	at := netip.AddrPortFrom(node.Unmap(), uint16(u.Ports.DNS))
	answers := make(chan struct{})
	told := sync.OnceFunc(func() { close(answers) })
	cfg.Ready = func([]string) { told() }
	u.keep("dns", func(ctx context.Context) error { return dns.Run(ctx, cfg) })
	if u.Role.control() {
		publisher := dns.Publisher{ClusterIP: ip, Host: u.NodeName, Own: at}.Controller()
		u.keep("dns service", publisher.Start(controller.Env{Client: u.client, Informers: u.informers, Log: log},
			controller.Acting(u.api.As)))
	}
	if u.Role.node() {
		self, err := u.nodeClient()
		if err != nil {
			return err
		}
		u.keep("dns of the node", func(ctx context.Context) error {
			select {
			case <-answers:
			case <-ctx.Done():
				return nil
			}
			return dns.Advertise(ctx, self, u.informers, u.NodeName, at)
		})
	}
	return nil
}
