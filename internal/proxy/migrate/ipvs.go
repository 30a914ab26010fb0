package migrate

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ipvsLink is the interface that holds the addresses of Services in IPVS mode.
const ipvsLink = "kube-ipvs0"

// ipSets are the IP sets of IPVS mode; those of IPv6 begin with KUBE-6-.
// kube-router's and others' begin with KUBE- as well.
var ipSets = []string{"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER",
	"KUBE-LOAD-BALANCER-FW",
	"KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-NODE-PORT-TCP",
	"KUBE-NODE-PORT-LOCAL-TCP",
	"KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
	"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS"}

func ownedSet(name string) bool {
	return slices.Contains(ipSets, strings.Replace(name, "KUBE-6-", "KUBE-", 1))
}

// removeIPVS removes kube-proxy's virtual servers, its interface and its IP
// sets. Without the interface IPVS mode did not run.
func removeIPVS(log *slog.Logger) error {
	link, err := netlink.LinkByName(ipvsLink)
	none := errors.As(err, &netlink.LinkNotFoundError{})
	if err != nil && !none {
		return fmt.Errorf("looking for %s: %w", ipvsLink, err)
	}
	sets, err := netlink.IpsetListAll()
	if err != nil && !none {
		log.Info("IP sets are not looked at", "err", err)
	}
	var errs []error
	if !none {
		if err := removeServers(link, nodePorts(sets), log); err != nil {
			// Without its interface no one could tell which are left.
			return err
		}
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", ipvsLink, err))
		} else {
			log.Info("removed kube-proxy's interface", "name", ipvsLink)
		}
	}
	for _, s := range sets {
		if !ownedSet(s.SetName) {
			continue
		}
		if err := destroy(s.SetName); err != nil {
			errs = append(errs, fmt.Errorf("removing the IP set %s: %w", s.SetName, err))
		}
	}
	return errors.Join(errs...)
}

// setTries is how often, releaseTime apart, the kernel is asked to remove a
// set: it lets go of rules that referred to one a moment after they are gone.
const (
	setTries    = 50
	releaseTime = 20 * time.Millisecond
)

func destroy(set string) (err error) {
	for range setTries {
		if err = netlink.IpsetDestroy(set); !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) && !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(releaseTime)
	}
	return err
}

// removeServers removes the virtual servers on the link's addresses, and those
// of node ports.
func removeServers(link netlink.Link, ports map[port]bool, log *slog.Logger) error {
	// Asked for first: the library would try to load modules and complain.
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		log.Warn("this kernel has no IPVS (CONFIG_IP_VS) now, so there are no virtual servers to remove", "err", err)
		return nil
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("listing the addresses of %s: %w", ipvsLink, err)
	}
	held := map[netip.Addr]bool{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			held[ip.Unmap()] = true
		}
	}
	h, err := ipvs.New("")
	if err != nil {
		return fmt.Errorf("opening IPVS: %w", err)
	}
	defer h.Close()
	servers, err := h.GetServices()
	if err != nil {
		return fmt.Errorf("listing virtual servers of IPVS: %w", err)
	}
	var errs []error
	removed := 0
	for _, s := range servers {
		if !ownedServer(s, held, ports) {
			continue
		}
		if err := h.DelService(s); err != nil {
			errs = append(errs, fmt.Errorf("removing the virtual server %s port %d: %w", s.Address, s.Port, err))
			continue
		}
		removed++
	}
	log.Info("removed kube-proxy's virtual servers", "removed", removed, "of others", len(servers)-removed)
	return errors.Join(errs...)
}

// port is a port of a protocol.
type port struct {
	proto  uint16
	number uint16
}

// nodePorts are the node ports kube-proxy's IP sets list: their virtual
// servers are on the node's own addresses.
func nodePorts(sets []netlink.IPSetResult) map[port]bool {
	out := map[port]bool{}
	for _, s := range sets {
		if !ownedSet(s.SetName) || !strings.Contains(s.SetName, "NODE-PORT") || strings.Contains(s.SetName, "HEALTH") {
			continue
		}
		proto := uint16(unix.IPPROTO_TCP)
		switch {
		case strings.Contains(s.SetName, "UDP"):
			proto = unix.IPPROTO_UDP
		case strings.Contains(s.SetName, "SCTP"):
			proto = unix.IPPROTO_SCTP
		}
		for _, e := range s.Entries {
			if e.Port != nil {
				out[port{proto, *e.Port}] = true
			}
		}
	}
	return out
}

// ownedServer says whether a virtual server is one of kube-proxy's: one for
// packets with a mark never is.
func ownedServer(s *ipvs.Service, held map[netip.Addr]bool, ports map[port]bool) bool {
	ip, ok := netip.AddrFromSlice(s.Address)
	return ok && s.FWMark == 0 && (held[ip.Unmap()] || ports[port{s.Protocol, s.Port}])
}
