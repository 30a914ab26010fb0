package proxy

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// Not every kernel has SCTP sockets, but tracking and translating SCTP needs
// none: these tests speak the first two messages of an association (RFC 9260)
// through raw sockets. What the endpoint has to say is its state cookie.
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7
	// sctpFixed is the length of the common header and an INIT chunk
	// without parameters.
	sctpFixed = 12 + 20
)

// sctpPorts gives every association of a test a source port of its own.
var sctpPorts atomic.Uint32

// sctpChunk is an INIT, or an INIT ACK with a cookie.
func sctpChunk(src, dst uint16, verify uint32, chunk byte, cookie string) []byte {
	b := make([]byte, sctpFixed, sctpFixed+4+len(cookie)+3)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	binary.BigEndian.PutUint32(b[4:], verify)
	b[12] = chunk
	binary.BigEndian.PutUint32(b[16:], 0x5eed) // the tag the other side must send
	binary.BigEndian.PutUint32(b[20:], 1<<16)  // receive window
	binary.BigEndian.PutUint16(b[24:], 1)      // streams out
	binary.BigEndian.PutUint16(b[26:], 1)      // and in
	if cookie != "" {
		b = binary.BigEndian.AppendUint16(b, sctpCookie)
		b = binary.BigEndian.AppendUint16(b, uint16(4+len(cookie)))
		b = append(b, cookie...)
	}
	binary.BigEndian.PutUint16(b[14:], uint16(len(b)-12))
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], sctpSum(b))
	return b
}

// sctpSum is the checksum of a packet, its own field counted as zero.
func sctpSum(b []byte) uint32 {
	b = append([]byte(nil), b...)
	clear(b[8:12])
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

// sctpRight says whether a packet came through whole: translation has to
// bring the checksum up to date.
func sctpRight(b []byte, chunk byte) bool {
	return len(b) >= sctpFixed && b[12] == chunk && binary.LittleEndian.Uint32(b[8:]) == sctpSum(b)
}

// raw opens a raw socket for SCTP, or for ICMP, of addr's family.
func raw(ns netns.NsHandle, addr netip.Addr, icmp bool) (c *net.IPConn, err error) {
	network := map[bool]string{false: "ip4:", true: "ip6:"}[addr.Is6()] + map[bool]string{false: "132", true: "icmp"}[icmp]
	if addr.Is6() && icmp {
		network = "ip6:ipv6-icmp"
	}
	err = netnstest.In(ns, func() error {
		p, err := net.ListenPacket(network, addr.String())
		if err == nil {
			c = p.(*net.IPConn)
		}
		return err
	})
	return c, err
}

// answerSCTP answers INITs at port 8080 of an address with "<id> <client>".
func (w *fixture) answerSCTP(ns netns.NsHandle, addr, id string) {
	c, err := raw(ns, netip.MustParseAddr(addr), false)
	w.must(err)
	w.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			b := buf[:n]
			if !sctpRight(b, sctpInit) || binary.BigEndian.Uint16(b[2:]) != 8080 {
				continue
			}
			_, _ = c.WriteTo(sctpChunk(8080, binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[16:]), sctpInitAck,
				id+" "+from.String()), from)
		}
	}()
}

// askSCTP sends an INIT from a namespace and returns what the INIT ACK says,
// "refused" or "silence". A source port of 0 is any.
func (w *fixture) askSCTP(from netns.NsHandle, to netip.AddrPort, src uint16) string {
	w.t.Helper()
	if src == 0 {
		src = uint16(20000 + sctpPorts.Add(1)%40000)
	}
	anyone := netip.IPv4Unspecified()
	if to.Addr().Is6() {
		anyone = netip.IPv6Unspecified()
	}
	answers, err := raw(from, anyone, false)
	w.must(err)
	refusals, err := raw(from, anyone, true)
	w.must(err)
	got := make(chan string, 1)
	say := func(s string) {
		select {
		case got <- s:
		default:
		}
	}
	var readers sync.WaitGroup
	read := func(c *net.IPConn, see func(b []byte, from net.Addr)) {
		readers.Go(func() {
			buf := make([]byte, 1500)
			for {
				n, from, err := c.ReadFrom(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					see(buf[:n], from)
				}
			}
		})
	}
	read(answers, func(b []byte, from net.Addr) {
		if sctpRight(b, sctpInitAck) && from.String() == to.Addr().String() && binary.BigEndian.Uint16(b) == to.Port() &&
			binary.BigEndian.Uint16(b[2:]) == src {
			size := int(binary.BigEndian.Uint16(b[sctpFixed+2:]))
			say(string(b[sctpFixed+4 : sctpFixed+size]))
		}
	})
	read(refusals, func(b []byte, _ net.Addr) {
		// An error carries the head of the packet it is about.
		unreachable, inner := len(b) > 8 && b[0] == 3 && b[1] == 3, 8+20
		if to.Addr().Is6() {
			unreachable, inner = len(b) > 8 && b[0] == 1 && b[1] == 4, 8+40
		}
		if unreachable && len(b) >= inner+4 && binary.BigEndian.Uint16(b[inner:]) == src &&
			binary.BigEndian.Uint16(b[inner+2:]) == to.Port() {
			say("refused")
		}
	})
	defer func() { answers.Close(); refusals.Close(); readers.Wait() }()
	if _, err := answers.WriteTo(sctpChunk(src, to.Port(), 0, sctpInit, ""), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return strings.TrimPrefix(err.Error(), "write ip ")
	}
	select {
	case s := <-got:
		return s
	case <-time.After(w.patience):
		return "silence"
	}
}
