package announce

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// lan is two nodes and a client on a bridge, each in a network namespace.
type lan struct {
	t     *testing.T
	hosts map[string]*lanHost
	// neighbours are the changes of the client's neighbour entries.
	neighbours chan netlink.NeighUpdate
}

type lanHost struct {
	ns  netns.NsHandle
	mac net.HardwareAddr
	s   *speaker
	// conflicts are claims of others that the speaker saw.
	conflicts chan string
}

func newLAN(t *testing.T) *lan {
	l := &lan{t: t, hosts: map[string]*lanHost{}, neighbours: make(chan netlink.NeighUpdate, 1000)}
	sw := netnstest.New(t)
	l.must(netnstest.In(sw, func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		return netlink.LinkSetUp(br)
	}))
	for i, name := range []string{"client", "a", "b"} {
		h := &lanHost{ns: netnstest.New(t), conflicts: make(chan string, 100)}
		l.hosts[name] = h
		l.must(netnstest.In(sw, func() error {
			br, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "to-" + name, MasterIndex: br.Attrs().Index}, PeerName: "eth0",
				PeerNamespace: netlink.NsFd(h.ns)}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			return netlink.LinkSetUp(veth)
		}))
		l.must(netnstest.In(h.ns, func() error { return h.up(i + 1) }))
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	ns := l.hosts["client"].ns
	l.must(netlink.NeighSubscribeAt(ns, l.neighbours, done))
	return l
}

// up gives a host addresses, and makes its neighbour entries change at once.
func (h *lanHost) up(n int) error {
	dev, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	h.mac = dev.Attrs().HardwareAddr
	for _, f := range []string{"ipv4/neigh/eth0/locktime", "ipv6/neigh/eth0/locktime"} {
		if err := os.WriteFile("/proc/sys/net/"+f, []byte("0"), 0o644); err != nil {
			return err
		}
	}
	for _, f := range []string{"ipv4/neigh/eth0/retrans_time_ms", "ipv6/neigh/eth0/retrans_time_ms"} {
		if err := os.WriteFile("/proc/sys/net/"+f, []byte("50"), 0o644); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return err
	}
	for _, text := range []string{fmt.Sprintf("192.0.2.%d/24", n), fmt.Sprintf("2001:db8::%d/64", n)} {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(dev, a); err != nil {
			return err
		}
	}
	return nil
}

func (l *lan) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// speak starts the speaker of a host.
func (l *lan) speak(name string) *speaker {
	h := l.hosts[name]
	h.s = newSpeaker(slog.New(slog.DiscardHandler), func(a netip.Addr, mac net.HardwareAddr) {
		select {
		case h.conflicts <- fmt.Sprint(a, " ", mac):
		default:
		}
	})
	h.s.within = func(f func() error) error { return netnstest.In(h.ns, f) }
	done := make(chan struct{})
	go func() { defer close(done); h.s.run(l.t.Context()) }()
	l.t.Cleanup(func() { <-done })
	return h.s
}

// ask has the client send something to an address, for which it needs the
// neighbour.
func (l *lan) ask(a netip.Addr) {
	l.must(netnstest.In(l.hosts["client"].ns, func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = c.Write([]byte("x")) // an earlier failure shows here
		return nil
	}))
}

// learn waits until the client's entry of an address has a host's link address,
// or for "" until it has failed.
func (l *lan) learn(a netip.Addr, host string) {
	l.t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case u := <-l.neighbours:
			if got, _ := netip.AddrFromSlice(u.IP); got.Unmap() != a {
				continue
			}
			if host == "" && u.State == netlink.NUD_FAILED || host != "" && u.HardwareAddr.String() == l.hosts[host].mac.String() &&
				u.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY|netlink.NUD_PROBE) != 0 {
				return
			}
		case <-late:
			l.t.Fatalf("the client did not learn that %s is at %q", a, host)
		}
	}
}

// forget takes the client's entry away.
func (l *lan) forget(a netip.Addr) {
	l.must(netnstest.In(l.hosts["client"].ns, func() error {
		dev, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: dev.Attrs().Index, IP: a.AsSlice()})
	}))
}

// TestNeighboursFindTheAnnouncer: real neighbours ask real questions, by ARP and
// by NDP; a move is told to them; and a node whose claim has lapsed is silent.
func TestNeighboursFindTheAnnouncer(t *testing.T) {
	for _, a := range addrs("192.0.2.100", "2001:db8::100") {
		t.Run(a.String(), func(t *testing.T) {
			l := newLAN(t)
			one, two := l.speak("a"), l.speak("b")
			long := boot() + time.Hour

			l.ask(a)
			l.learn(a, "") // nobody answers

			one.set([]netip.Addr{a}, long)
			l.forget(a)
			l.ask(a)
			l.learn(a, "a")

			// The client has an entry; the move changes it with nobody asking.
			one.set(nil, 0)
			began := time.Now()
			two.set([]netip.Addr{a}, long)
			l.learn(a, "b")
			t.Logf("%s moved to b for the client within %s", a, time.Since(began))

			// Who comes later asks, and gets one answer.
			l.forget(a)
			l.ask(a)
			l.learn(a, "b")

			// A claim that has lapsed is no claim.
			two.set([]netip.Addr{a}, boot())
			l.forget(a)
			l.ask(a)
			l.learn(a, "")
			// ... and one that is renewed after that is told anew.
			two.set([]netip.Addr{a}, long)
			l.forget(a)
			l.ask(a)
			l.learn(a, "b")
		})
	}
}

// TestConflict: a host that has the address of the load balancer is told of.
func TestConflict(t *testing.T) {
	a := addrs("192.0.2.100")[0]
	l := newLAN(t)
	one, two := l.speak("a"), l.speak("b")
	one.set([]netip.Addr{a}, boot()+time.Hour)
	two.set([]netip.Addr{a}, boot()+time.Hour)
	select {
	case got := <-l.hosts["a"].conflicts:
		if want := fmt.Sprint(a, " ", l.hosts["b"].mac); got != want {
			t.Errorf("conflict with %s, want %s", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nobody told of the conflict")
	}
}

// TestLinkThatComesLater: an address without a way to it is announced once there
// is one.
func TestLinkThatComesLater(t *testing.T) {
	a := addrs("198.51.100.7")[0]
	l := newLAN(t)
	one := l.speak("a")
	one.set([]netip.Addr{a}, boot()+time.Hour)
	for _, name := range []string{"client", "a"} {
		l.must(netnstest.In(l.hosts[name].ns, func() error {
			dev, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			_, dst, err := net.ParseCIDR("198.51.100.0/24")
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK})
		}))
	}
	one.look()
	l.ask(a)
	l.learn(a, "a")
}
