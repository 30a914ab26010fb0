package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// repeats are when an address is announced to all neighbours after it came
// here: at once, and again since the first may be lost, and since Linux
// neighbours ignore what comes within a second of an earlier change (locktime).
var repeats = []time.Duration{0, 1100 * time.Millisecond, 2200 * time.Millisecond, 4400 * time.Millisecond}

// boot is a clock that no one sets and that goes on while the host sleeps.
func boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("reading CLOCK_BOOTTIME: %v", err)) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// speaker answers the neighbours of this host.
type speaker struct {
	log *slog.Logger
	// clock is boot; within runs what opens sockets, in the network namespace
	// of the tests.
	clock  func() time.Duration
	within func(func() error) error
	// conflict is told when another host claims an address of this one.
	conflict func(a netip.Addr, mac net.HardwareAddr)
	wake     chan struct{}

	mu    sync.RWMutex
	until time.Duration
	held  map[netip.Addr]*announced
	links map[int]*link
}

// announced is an address that this node answers for.
type announced struct {
	link  *link // nil where the host has no way to it
	group int   // the socket that joined the address' group, -1 without
	done  int   // of repeats
	since time.Duration
}

// link is an interface with neighbours.
type link struct {
	index   int
	name    string
	mac     net.HardwareAddr
	sockets []*os.File // of ARP, of IPv6
}

func newSpeaker(log *slog.Logger, conflict func(netip.Addr, net.HardwareAddr)) *speaker {
	return &speaker{log: log, clock: boot, within: func(f func() error) error { return f() }, conflict: conflict,
		wake: make(chan struct{}, 1), held: map[netip.Addr]*announced{}, links: map[int]*link{}}
}

// set replaces what is answered for, until a time. When it returns, no answer
// for any other address is under way.
func (s *speaker) set(addrs []netip.Addr, until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	lapsed := now >= s.until
	s.until = until
	for a, h := range s.held {
		if !slices.Contains(addrs, a) {
			s.leave(h)
			delete(s.held, a)
		} else if lapsed {
			h.done, h.since = 0, now // others may have answered meanwhile
		}
	}
	for _, a := range addrs {
		if s.held[a] == nil {
			h := &announced{group: -1, since: now}
			s.held[a] = h
			s.attach(a, h)
		}
	}
	for i, l := range s.links {
		if !s.uses(l) {
			l.close()
			delete(s.links, i)
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *speaker) uses(l *link) bool {
	for _, h := range s.held {
		if h.link == l {
			return true
		}
	}
	return false
}

// look finds the links again: routes or interfaces changed.
func (s *speaker) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	for a, h := range s.held {
		index, err := s.linkOf(a)
		if err == nil && h.link != nil && index == h.link.index && s.same(h.link) {
			continue
		}
		s.leave(h)
		if l := h.link; l != nil && !s.same(l) {
			l.close()
			delete(s.links, l.index)
		}
		h.link, h.done, h.since = nil, 0, now
		s.attach(a, h)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// same says whether an interface is still the one whose sockets are open.
func (s *speaker) same(l *link) bool {
	ok := false
	_ = s.within(func() error {
		dev, err := netlink.LinkByIndex(l.index)
		ok = err == nil && dev.Attrs().HardwareAddr.String() == l.mac.String() && s.links[l.index] == l
		return nil
	})
	return ok
}

// linkOf is the interface on which this host would look for an address: its
// neighbours are those who ask.
func (s *speaker) linkOf(a netip.Addr) (index int, err error) {
	err = s.within(func() error {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err != nil {
			return fmt.Errorf("looking for the way to %s: %w", a, err)
		}
		for _, r := range routes {
			if r.Type == unix.RTN_UNICAST && r.LinkIndex != 0 {
				index = r.LinkIndex
				return nil
			}
		}
		return fmt.Errorf("looking for the way to %s: it is this host's own address, or has no interface", a)
	})
	return index, err
}

// attach opens what it takes to answer for an address. A failure is logged: a
// later change of routes tries again.
func (s *speaker) attach(a netip.Addr, h *announced) {
	index, err := s.linkOf(a)
	if err == nil {
		err = s.within(func() error {
			l := s.links[index]
			if l == nil {
				if l, err = s.open(index); err != nil {
					return err
				}
				s.links[index] = l
			}
			h.link = l
			if a.Is6() {
				h.group, err = join(a, index)
			}
			return err
		})
	}
	if err != nil {
		s.log.Error("nobody is led to an address of the load balancer", "address", a, "err", err)
	}
}

// join makes the interface and the switches before it pass on what neighbours
// ask about an address.
func join(a netip.Addr, index int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening a socket for the group of %s: %w", a, err)
	}
	req := &unix.IPv6Mreq{Multiaddr: solicitedGroup(a).As16(), Interface: uint32(index)}
	if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, req); err != nil {
		return -1, errors.Join(fmt.Errorf("joining the group of %s: %w", a, err), unix.Close(fd))
	}
	return fd, nil
}

func (s *speaker) leave(h *announced) {
	if h.group >= 0 {
		_ = unix.Close(h.group)
		h.group = -1
	}
}

// solicitations passes neighbour solicitations alone: an interface sees all
// other IPv6 packets too.
var solicitations = []bpf.Instruction{
	bpf.LoadAbsolute{Off: etherLen + 6, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nextICMPv6, SkipTrue: 3},
	bpf.LoadAbsolute{Off: etherLen + ip6Len, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: solicitation, SkipTrue: 1},
	bpf.RetConstant{Val: 1 << 16},
	bpf.RetConstant{Val: 0},
}

// open listens on an interface.
func (s *speaker) open(index int) (*link, error) {
	dev, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("looking at interface %d: %w", index, err)
	}
	at := dev.Attrs()
	if len(at.HardwareAddr) != 6 || at.RawFlags&unix.IFF_NOARP != 0 {
		return nil, fmt.Errorf("interface %s has no neighbours that ask: addresses of pools need a link such as Ethernet", at.Name)
	}
	l := &link{index: index, name: at.Name, mac: at.HardwareAddr}
	for _, kind := range []uint16{etherARP, etherIP6} {
		f, err := listen(index, kind)
		if err != nil {
			l.close()
			return nil, fmt.Errorf("listening on %s: %w", at.Name, err)
		}
		l.sockets = append(l.sockets, f)
		go s.serve(l, f)
	}
	return l, nil
}

// listen opens a socket for frames of one kind. It is bound after its filter is
// there, so that it sees no other.
func listen(index int, kind uint16) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if kind == etherIP6 {
		raw, aerr := bpf.Assemble(solicitations)
		if err = aerr; err == nil {
			filter := make([]unix.SockFilter, len(raw))
			for i, r := range raw {
				filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
			}
			err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
		}
	}
	if err == nil {
		wire := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, kind))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: wire, Ifindex: index})
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "packet"), nil
}

func (l *link) close() {
	for _, f := range l.sockets {
		_ = f.Close()
	}
}

// serve answers until the socket is closed.
func (s *speaker) serve(l *link, f *os.File) {
	buf := make([]byte, 2048)
	for {
		n, err := f.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if errors.Is(err, unix.ENETDOWN) {
			continue // the interface is down: reading waits for the next frame
		}
		if err != nil {
			s.log.Error("an interface is not listened to any more", "interface", l.name, "err", err)
			return
		}
		if slices.Equal(buf[6:12], l.mac) {
			continue // this host's own
		}
		if q, ok := parse(buf[:n]); ok {
			s.reply(l, f, q)
		}
	}
}

func (s *speaker) reply(l *link, f *os.File, q question) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h := s.held[q.target]
	if h == nil || h.link != l || s.clock() >= s.until {
		return
	}
	if q.claim {
		s.conflict(q.target, q.mac)
		return
	}
	if _, err := f.Write(answer(q, l.mac)); err != nil {
		s.log.Warn("a neighbour got no answer", "address", q.target, "interface", l.name, "err", err)
	}
}

// run tells all neighbours of addresses that came here, until ctx ends.
func (s *speaker) run(ctx context.Context) {
	defer s.set(nil, 0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		if next := s.announce(); next > 0 {
			timer.Reset(next)
		}
	}
}

// announce sends what is due, and says when the next is; 0 for never.
func (s *speaker) announce() (next time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.clock()
	if now >= s.until {
		return 0
	}
	for a, h := range s.held {
		for ; h.link != nil && h.done < len(repeats) && now >= h.since+repeats[h.done]; h.done++ {
			socket := h.link.sockets[0]
			if a.Is6() {
				socket = h.link.sockets[1]
			}
			for _, frame := range gratuitous(a, h.link.mac) {
				if _, err := socket.Write(frame); err != nil {
					s.log.Warn("neighbours were not told of an address", "address", a, "interface", h.link.name, "err", err)
				}
			}
		}
		if h.link != nil && h.done < len(repeats) {
			if d := h.since + repeats[h.done] - now; next == 0 || d < next {
				next = d
			}
		}
	}
	return next
}
