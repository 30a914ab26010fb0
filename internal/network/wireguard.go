package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Device is how this node's WireGuard device is made.
type Device struct {
	Name string
	// Port is its UDP port; nodes may have different ones.
	Port int
	// KeyFile holds the private key; it is made when it is missing.
	KeyFile string
}

// guardian keeps the WireGuard device as planned.
type guardian struct {
	name string
	key  privateKey
	// space is another network namespace than the caller's, in tests.
	space []netns.NsHandle
	// client is opened when there is a device: it would not find the kernel's
	// part before that is loaded.
	client *wgctrl.Client
	// reported are the endpoints that were set; see Changes.
	reported map[wgtypes.Key]netip.AddrPort
}

func (g *guardian) close() {
	if g.client != nil {
		g.client.Close() //nolint:errcheck // a socket that is not needed any more
		g.client = nil
	}
}

// ensureGuard makes the device and carries into it what differs. Nothing that
// is right is touched: sessions go on.
func (m *hostNetwork) ensureGuard(w guard) (changed int, err error) {
	link, changed, err := m.guardLink(w)
	if err != nil {
		return changed, err
	}
	n, err := m.guard.configure(w.guardState)
	changed += n
	if err != nil {
		return changed, fmt.Errorf("configuring the WireGuard device %s: %w", w.Name, err)
	}
	n, err = m.ensureAddrs(link, w.Addrs)
	changed += n
	if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		changed++
		if err = m.handle.LinkSetUp(link); errors.Is(err, unix.EADDRINUSE) {
			err = taken(w.Port, err)
		}
	}
	if err != nil {
		return changed, fmt.Errorf("setting up the WireGuard device %s: %w", w.Name, err)
	}
	return changed, nil
}

// guardLink makes the link. A userspace device of that name is as good as the
// kernel's; it is its owner's to start.
func (m *hostNetwork) guardLink(w guard) (link netlink.Link, changed int, err error) {
	link, err = m.handle.LinkByName(w.Name)
	if err == nil && !guards(link) {
		changed++
		if err := m.handle.LinkDel(link); err != nil {
			return nil, changed, fmt.Errorf("replacing link %s, which is no WireGuard device: %w", w.Name, err)
		}
		link, err = m.handle.LinkByName(w.Name)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		changed++
		if err := m.handle.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: w.Name, MTU: w.MTU}}); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = fmt.Errorf("%w: %w", err, errNoWireGuard)
			}
			return nil, changed, fmt.Errorf("making the WireGuard device %s: %w", w.Name, err)
		}
		link, err = m.handle.LinkByName(w.Name)
	}
	if err == nil && link.Attrs().MTU != w.MTU {
		changed++
		err = m.handle.LinkSetMTU(link, w.MTU)
	}
	if err != nil {
		return nil, changed, fmt.Errorf("looking at the WireGuard device %s: %w", w.Name, err)
	}
	return link, changed, nil
}

func guards(l netlink.Link) bool { return l.Type() == "wireguard" || l.Type() == "tuntap" }

var errNoWireGuard = errors.New("this kernel has no WireGuard: load its module (modprobe wireguard), use a kernel with CONFIG_WIREGUARD, " +
	"or choose --network=vxlan, which does not encrypt")

func taken(port int, err error) error {
	return fmt.Errorf("UDP port %d is taken (%w): stop what listens there, or choose another with --wireguard-port or --ports-from", port,
		err)
}

// CheckWireGuard says whether this host can have the device, and changes
// nothing. A device that is there already, from an earlier run or in
// userspace, will do.
func CheckWireGuard(d Device) error {
	link, err := netlink.LinkByName(d.Name)
	if err == nil && guards(link) {
		return nil
	}
	// To ask for the family loads the module.
	if _, err := netlink.GenlFamilyGet(unix.WG_GENL_NAME); errors.Is(err, unix.ENOENT) {
		return errNoWireGuard
	} else if err != nil {
		return fmt.Errorf("looking for WireGuard in the kernel: %w", err)
	}
	l, err := net.ListenUDP("udp", &net.UDPAddr{Port: d.Port})
	if err != nil {
		return taken(d.Port, err)
	}
	return l.Close()
}

// configure brings peers, key and port to what they should be with one
// request, or none.
func (g *guardian) configure(want guardState) (changed int, err error) {
	defer func() {
		if err != nil {
			g.close() // the next try opens it again
		}
	}()
	if g.client == nil {
		if g.client, err = g.open(); err != nil {
			return 0, err
		}
	}
	have, err := g.state()
	if err != nil {
		return 0, err
	}
	c := want.Changes(have, g.reported)
	if c.Count() > 0 {
		if err := g.client.ConfigureDevice(g.name, g.request(c, want)); err != nil {
			if errors.Is(err, unix.EADDRINUSE) {
				err = taken(want.Port, err)
			}
			return 0, err
		}
	}
	g.reported = map[wgtypes.Key]netip.AddrPort{}
	for _, p := range want.Peers {
		g.reported[p.PublicKey] = p.Endpoint
	}
	return c.Count(), nil
}

// open opens the way to the devices of the namespace.
func (g *guardian) open() (c *wgctrl.Client, err error) {
	if len(g.space) == 0 {
		return wgctrl.New()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = netns.Set(g.space[0]); err == nil {
			c, err = wgctrl.New()
		}
	}()
	<-done
	return c, err
}

// state reads the device. What is read holds the private key, too: it goes no
// further than this.
func (g *guardian) state() (s guardState, err error) {
	d, err := g.client.Device(g.name)
	if errors.Is(err, os.ErrNotExist) {
		return s, errors.New("neither the kernel nor a program with a socket in /var/run/wireguard knows it")
	}
	if err != nil {
		return s, fmt.Errorf("reading it: %w", err)
	}
	s.published = published{d.PublicKey, d.ListenPort}
	for _, p := range d.Peers {
		peer := peer{PublicKey: p.PublicKey, Keepalive: p.PersistentKeepaliveInterval}
		if p.Endpoint != nil {
			ap := p.Endpoint.AddrPort()
			peer.Endpoint = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
		}
		for _, n := range p.AllowedIPs {
			if r, ok := prefix(&n); ok {
				peer.Allowed = append(peer.Allowed, r)
			}
		}
		s.Peers = append(s.Peers, peer)
	}
	return s, nil
}

func (g *guardian) request(c guardChanges, want guardState) (cfg wgtypes.Config) {
	if c.Key {
		secret := g.key.reveal()
		cfg.PrivateKey = &secret
	}
	if c.Port {
		cfg.ListenPort = &want.Port
	}
	for _, p := range c.Peers {
		out := wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: p.Remove, UpdateOnly: !p.New && !p.Remove,
			PersistentKeepaliveInterval: p.Keepalive}
		if p.Endpoint != nil {
			out.Endpoint = net.UDPAddrFromAddrPort(*p.Endpoint)
		}
		if p.Allowed != nil {
			out.ReplaceAllowedIPs = true
			for _, r := range *p.Allowed {
				out.AllowedIPs = append(out.AllowedIPs, *ipNet(r))
			}
		}
		cfg.Peers = append(cfg.Peers, out)
	}
	return cfg
}
