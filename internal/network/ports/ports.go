// Package ports binds each port of a node's bridge to its pod: what comes in
// through it must be from the pod's own addresses, of hardware and of both
// families of IP. The rules stand in the bridge family of nftables and need no
// br_netfilter.
//
// A port is bound after the pod's network was made and before any container of
// it starts, to what its other end then has: what a pod with NET_ADMIN does to
// its link later changes nothing.
package ports

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
)

// table is the name of an instance's table.
func table(instance string) string { return instance + "-ports" }

// Checker binds the ports of one bridge.
type Checker struct {
	table, bridge string
	log           *slog.Logger

	mu     sync.Mutex
	ready  bool
	kernel *nft.Netlink
	links  *netlink.Handle
	peers  *asker
	// bound are the ports in the table.
	bound map[uint32]binding
}

// New returns a Checker; the kernel is not touched before Start or Guard, which
// must run in the network namespace of the bridge.
func New(instance, bridge string, log *slog.Logger) *Checker {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Checker{table: table(instance), bridge: bridge, log: log}
}

// ErrUnable says that this kernel cannot check where pods send from.
var ErrUnable = errors.New("this kernel has no nftables for bridges (CONFIG_NF_TABLES_BRIDGE)")

// Start makes the table again and binds the ports that are there to what their
// pods have now: these were made by an earlier run, or one that bound nothing.
func (c *Checker) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start()
}

func (c *Checker) start() error {
	if c.ready {
		return nil
	}
	if err := c.open(); err != nil {
		return err
	}
	held, err := c.read()
	if err != nil {
		return err
	}
	ports, err := c.ports()
	if err != nil {
		return err
	}
	tx := nft.Replace(row.Bridge, c.table)
	build(tx)
	c.bound = map[uint32]binding{}
	for _, l := range ports {
		// What was bound stays so: the pod may have changed its link since.
		b, there := held[uint32(l.Attrs().Index)]
		if !there {
			p, err := c.peers.peer(l.Attrs().NetNsID, l.Attrs().ParentIndex)
			if err != nil || !slices.ContainsFunc(p.addrs, netip.Addr.IsGlobalUnicast) {
				continue // not a pod's, or not one yet
			}
			b = bind(l, p, p.addrs)
		}
		c.bound[b.Port] = b
		b.rows(tx, nft.AddRows)
	}
	if err := c.kernel.Apply(tx); err != nil {
		if nft.IsUnable(err) {
			return fmt.Errorf("%w: %w", ErrUnable, err)
		}
		return fmt.Errorf("checking what pods send from: %w", err)
	}
	c.ready = true
	return nil
}

func (c *Checker) open() (err error) {
	if c.kernel == nil {
		if c.kernel, err = nft.Open(); err != nil {
			return err
		}
	}
	if c.links == nil {
		if c.links, err = netlink.NewHandle(); err != nil {
			return fmt.Errorf("opening the machine's network: %w", err)
		}
	}
	if c.peers == nil {
		c.peers, err = newAsker()
	}
	return err
}

// Close lets the kernel's sockets go; the rules stay.
func (c *Checker) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel != nil {
		c.kernel.Close()
	}
	if c.links != nil {
		c.links.Close()
	}
	if c.peers != nil {
		c.peers.close()
	}
	c.kernel, c.links, c.peers, c.ready = nil, nil, nil, false
}

// read lists what an earlier run bound.
func (c *Checker) read() (map[uint32]binding, error) {
	out := map[uint32]binding{}
	each := func(set string, take func(b *binding, key []byte)) error {
		err := c.kernel.Rows(row.Bridge, c.table, set, func(key, _ []byte) bool {
			port := binary.NativeEndian.Uint32(key)
			b := out[port]
			b.Port = port
			take(&b, key[4:])
			out[port] = b
			return true
		})
		if nft.IsNotExist(err) {
			return nil
		}
		return err
	}
	addr := func(b *binding, key []byte) {
		a, _ := netip.AddrFromSlice(key)
		b.Addrs = append(b.Addrs, a)
	}
	err := errors.Join(each(bound.Name, func(*binding, []byte) {}),
		each(macs.Name, func(b *binding, key []byte) { b.MAC = slices.Clone(key[:6]) }), each(addrs4.Name, addr), each(addrs6.Name, addr))
	return out, err
}

// ports lists the ports of the bridge whose other end is in another namespace.
func (c *Checker) ports() ([]netlink.Link, error) {
	var missing netlink.LinkNotFoundError
	bridge, err := c.links.LinkByName(c.bridge)
	if errors.As(err, &missing) {
		return nil, nil // no pod yet
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the bridge %s: %w", c.bridge, err)
	}
	var links []netlink.Link
	for range 100 { // pods come and go while the kernel lists
		if links, err = c.links.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the ports of %s: %w", c.bridge, err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		return a.MasterIndex != bridge.Attrs().Index || l.Type() != "veth" || a.NetNsID < 0 || a.ParentIndex == 0
	}), nil
}

// bind is what a port may send from: the pod's addresses and those by which its
// link finds neighbours.
func bind(l netlink.Link, p peer, addrs []netip.Addr) binding {
	all := append(slices.Clone(addrs), linkLocal(p.mac))
	for _, a := range p.addrs {
		if a.Is6() && a.IsLinkLocalUnicast() {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return binding{Port: uint32(l.Attrs().Index), MAC: p.mac, Addrs: slices.Compact(all)}
}

// Guard binds the port of a pod with these addresses. The agent calls it before
// it starts a container.
func (c *Checker) Guard(_ context.Context, p *corev1.Pod, ips []string) error {
	if p.Spec.HostNetwork || len(ips) == 0 {
		return nil
	}
	var addrs []netip.Addr
	for _, s := range ips {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("binding the port of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		addrs = append(addrs, a.Unmap())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.start()
	if err == nil {
		err = c.guard(addrs)
	}
	if errors.Is(err, ErrUnable) {
		return nil // told at the start
	}
	if err != nil {
		return fmt.Errorf("binding the port of pod %s/%s to %v: %w", p.Namespace, p.Name, ips, err)
	}
	return nil
}

func (c *Checker) guard(addrs []netip.Addr) error {
	ports, err := c.ports()
	if err != nil {
		return err
	}
	here := map[uint32]bool{}
	var found *binding
	for _, l := range ports {
		index := uint32(l.Attrs().Index)
		here[index] = true
		if _, done := c.bound[index]; done || found != nil {
			continue
		}
		p, err := c.peers.peer(l.Attrs().NetNsID, l.Attrs().ParentIndex)
		if err != nil || len(p.mac) != 6 {
			continue // gone meanwhile
		}
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(p.addrs, a) }) {
			b := bind(l, p, addrs)
			found = &b
		}
	}
	tx := nft.NewTx(row.Bridge, c.table)
	var gone []uint32
	var silent []binding
	bound := false
	for index, b := range c.bound {
		holds := slices.ContainsFunc(b.Addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
		// An address that a new pod was given is no longer that of the one before,
		// whose link may still be going: that port keeps no address at all.
		switch {
		case !here[index]:
			b.rows(tx, nft.DeleteRows)
			gone = append(gone, index)
		case holds && found != nil:
			b.rows(tx, nft.DeleteRows)
			b = binding{Port: index}
			b.rows(tx, nft.AddRows)
			silent = append(silent, b)
		case holds:
			bound = true
		}
	}
	if found == nil && !bound {
		// A runtime with a network of its own hung the pod elsewhere.
		c.log.Info("a pod hangs on no port of the bridge, so what it sends from is not checked", "bridge", c.bridge, "addresses", addrs)
		return nil
	}
	if found != nil {
		found.rows(tx, nft.AddRows)
	}
	if tx.Empty() {
		return nil
	}
	if err := c.kernel.Apply(tx); err != nil {
		c.ready = false // what stands is read again
		return err
	}
	for _, index := range gone {
		delete(c.bound, index)
	}
	for _, b := range silent {
		c.bound[b.Port] = b
	}
	if found != nil {
		c.bound[found.Port] = *found
	}
	return nil
}

// Cleanup removes the table of an instance. It is no error when there is none.
func Cleanup(instance string) error {
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	if err := k.Apply(nft.Remove(row.Bridge, table(instance))); err != nil && !nft.IsUnable(err) {
		return err
	}
	return nil
}
