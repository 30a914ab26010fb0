package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// peer is the other end of a port, in the pod's network namespace.
type peer struct {
	mac   net.HardwareAddr
	addrs []netip.Addr
}

// asker reads links of other network namespaces, by the numbers this one knows
// them by (IFLA_LINK_NETNSID). netlink cannot.
type asker struct {
	fd  int
	seq uint32
}

const (
	iflaTargetNetNSID   = 46 // IFLA_TARGET_NETNSID, Linux 5.0
	ifaTargetNetNSID    = 10 // IFA_TARGET_NETNSID, Linux 5.0
	netlinkGetStrictChk = 12 // NETLINK_GET_STRICT_CHK, Linux 4.20
)

func newAsker() (*asker, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a route socket: %w", err)
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, netlinkGetStrictChk, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("preparing the route socket (Linux 4.20 or later is needed): %w", err)
	}
	return &asker{fd: fd}, nil
}

func (a *asker) close() { unix.Close(a.fd) }

// peer reads the link of an index in a namespace.
func (a *asker) peer(ns, index int) (peer, error) {
	var p peer
	// struct ifinfomsg: family, padding, type, index, flags, change.
	head := make([]byte, 16)
	binary.NativeEndian.PutUint32(head[4:], uint32(index))
	err := a.ask(unix.RTM_GETLINK, 0, head, iflaTargetNetNSID, ns, 16, func(_ []byte, typ uint16, data []byte) {
		if typ == unix.IFLA_ADDRESS && len(data) == 6 {
			p.mac = append(net.HardwareAddr(nil), data...)
		}
	})
	if err != nil {
		return p, fmt.Errorf("reading link %d of a pod's network namespace: %w", index, err)
	}
	// struct ifaddrmsg: family, prefix length, flags, scope, index.
	head = make([]byte, 8)
	binary.NativeEndian.PutUint32(head[4:], uint32(index))
	err = a.ask(unix.RTM_GETADDR, unix.NLM_F_DUMP, head, ifaTargetNetNSID, ns, 8, func(head []byte, typ uint16, data []byte) {
		// IPv4 tells the own address as IFA_LOCAL, IPv6 as IFA_ADDRESS.
		own := uint16(unix.IFA_LOCAL)
		if head[0] == unix.AF_INET6 {
			own = unix.IFA_ADDRESS
		}
		if addr, ok := netip.AddrFromSlice(data); ok && typ == own && binary.NativeEndian.Uint32(head[4:]) == uint32(index) {
			p.addrs = append(p.addrs, addr)
		}
	})
	if err != nil {
		return p, fmt.Errorf("reading the addresses of link %d of a pod's network namespace: %w", index, err)
	}
	return p, nil
}

// ask sends one question with the attribute that names a namespace, and hands
// every attribute of the answers to each, with the answer's head of size bytes.
func (a *asker) ask(typ, flags uint16, head []byte, target uint16, ns, size int, each func(head []byte, typ uint16, data []byte)) error {
	a.seq++
	q := binary.NativeEndian.AppendUint32(nil, uint32(16+len(head)+8))
	q = binary.NativeEndian.AppendUint16(q, typ)
	q = binary.NativeEndian.AppendUint16(q, unix.NLM_F_REQUEST|flags)
	q = binary.NativeEndian.AppendUint32(q, a.seq)
	q = append(binary.NativeEndian.AppendUint32(q, 0), head...)
	q = binary.NativeEndian.AppendUint16(q, 8)
	q = binary.NativeEndian.AppendUint16(q, target)
	q = binary.NativeEndian.AppendUint32(q, uint32(ns))
	if err := unix.Sendto(a.fd, q, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(a.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		for m := buf[:n]; len(m) >= 16; {
			length := int(binary.NativeEndian.Uint32(m))
			if length < 16 || length > len(m) {
				break
			}
			msg := m[:length]
			m = m[min(len(m), (length+3)/4*4):]
			if binary.NativeEndian.Uint32(msg[8:]) != a.seq {
				continue
			}
			switch binary.NativeEndian.Uint16(msg[4:]) {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if len(msg) < 20 {
					return errors.New("an answer of the kernel is cut short")
				}
				if errno := -int32(binary.NativeEndian.Uint32(msg[16:])); errno != 0 {
					return unix.Errno(errno)
				}
				return nil
			}
			if len(msg) >= 16+size {
				walk(msg[16+size:], func(t uint16, d []byte) { each(msg[16:16+size], t, d) })
			}
			if flags&unix.NLM_F_DUMP == 0 {
				return nil
			}
		}
	}
}

// walk reads attributes.
func walk(b []byte, each func(typ uint16, data []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		each(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:n])
		b = b[min(len(b), (n+3)/4*4):]
	}
}
