package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// node is a network namespace with a bridge that no netfilter of IP sees, and
// pods on it. What passes the table is heard on the bridge itself.
type node struct {
	t    *testing.T
	ns   netns.NsHandle
	pods map[string]*pod
	c    *Checker
	// voice is a pod whose port is not bound, seq counts frames.
	voice *pod
	seq   int
}

type pod struct {
	name string
	ns   netns.NsHandle
	mac  net.HardwareAddr
	ips  []string
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func run(lines ...string) (err error) {
	for _, l := range lines {
		if out, e := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("ip %s: %w: %s", l, e, out))
		}
	}
	return err
}

func newNode(t *testing.T) *node {
	n := &node{t: t, ns: netnstest.New(t), pods: map[string]*pod{}}
	n.in(func() error {
		for _, f := range []string{"iptables", "ip6tables", "arptables"} {
			// The file is not there where the kernel has no br_netfilter.
			if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+f, []byte("0"), 0); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return run("link set lo up", "link add br0 type bridge mcast_snooping 0", "addr add 10.0.0.1/24 dev br0",
			"addr add fd00::1/64 dev br0 nodad", "link set br0 up")
	})
	n.c = New("test", "br0", nil)
	t.Cleanup(n.c.Close)
	return n
}

func (n *node) in(f func() error) {
	n.t.Helper()
	n.must(netnstest.In(n.ns, f))
}

func (n *node) add(name string, ips ...string) *pod {
	n.t.Helper()
	p := &pod{name: name, ns: netnstest.New(n.t), ips: ips}
	n.in(func() error {
		if err := run("link add v"+name+" type veth peer name tmp"+name, "link set v"+name+" master br0 up"); err != nil {
			return err
		}
		l, err := netlink.LinkByName("tmp" + name)
		if err != nil {
			return err
		}
		p.mac = l.Attrs().HardwareAddr
		return netlink.LinkSetNsFd(l, int(p.ns))
	})
	n.must(netnstest.In(p.ns, func() error {
		err := run("link set lo up", "link set tmp"+name+" name eth0")
		for _, ip := range ips {
			if strings.Contains(ip, ":") {
				err = errors.Join(err, run("addr add "+ip+"/64 dev eth0 nodad"))
			} else {
				err = errors.Join(err, run("addr add "+ip+"/24 dev eth0"))
			}
		}
		return errors.Join(err, run("link set eth0 up"))
	}))
	n.pods[name] = p
	n.forwards(p)
	return p
}

// forwards returns once the bridge hands on what the pod sends, which is a
// moment after its link is up. Each look waits for a frame, not for time.
func (n *node) forwards(p *pod) {
	n.t.Helper()
	received, out := n.raw(n.ns, "br0"), n.raw(p.ns, "eth0")
	n.must(unix.SetsockoptTimeval(received, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}))
	hello, buf := "hello-"+p.name, make([]byte, 4096)
	for range testtimeout.Attempts(400) {
		_, err := unix.Write(out, append(ether(p.mac, 0x0800, ipv4(p.ips[0], 17)), hello...))
		if err != nil && !errors.Is(err, unix.ENETDOWN) {
			n.t.Fatal(err)
		}
		for size := 1; size > 0; {
			if size, err = unix.Read(received, buf); err == nil && strings.Contains(string(buf[:size]), hello) {
				return
			}
		}
	}
	n.t.Fatalf("what pod %s sends does not come to the bridge", p.name)
}

func (n *node) guard(p *pod, ips ...string) error {
	var err error
	n.in(func() error {
		err = n.c.Guard(n.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: p.name}}, ips)
		return nil
	})
	return err
}

// raw opens a socket for frames on a link of a namespace.
func (n *node) raw(ns netns.NsHandle, link string) (fd int) {
	n.t.Helper()
	n.must(netnstest.In(ns, func() (err error) {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: l.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	}))
	n.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// passes sends a frame from a pod, then one that always passes, and says
// whether the first came to the bridge before the second.
func (n *node) passes(from *pod, frame []byte) bool {
	n.t.Helper()
	received, out := n.raw(n.ns, "br0"), n.raw(from.ns, "eth0")
	n.seq++
	mark := fmt.Appendf(nil, "mark-%d", n.seq)
	end := fmt.Appendf(nil, "over-%d", n.seq)
	_, err := unix.Write(out, append(frame, mark...))
	n.must(err)
	// Whatever is bound, the last word comes through a port of the test's own.
	_, err = unix.Write(n.raw(n.voice.ns, "eth0"), append(ether(n.voice.mac, 0x0800, ipv4("10.0.0.99", 17)), end...))
	n.must(err)
	buf := make([]byte, 4096)
	passed := false
	for {
		size, err := unix.Read(received, buf)
		n.must(err)
		switch got := string(buf[:size]); {
		case strings.Contains(got, string(mark)):
			passed = true
		case strings.Contains(got, string(end)):
			return passed
		}
	}
}

func ether(src net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, src...)
	return append(binary.BigEndian.AppendUint16(b, kind), payload...)
}

func ipv4(src string, proto byte) []byte {
	a, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr("10.0.0.255").As4()
	b := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, proto, 0, 0}
	b = append(append(b, a[:]...), d[:]...)
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	return append(b, make([]byte, 20)...)
}

func arp(mac net.HardwareAddr, src string) []byte {
	a := netip.MustParseAddr(src).As4()
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, mac...)
	b = append(append(b, a[:]...), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	return append(b, 10, 0, 0, 1)
}

func ipv6(src string, next byte, payload ...byte) []byte {
	a, d := netip.MustParseAddr(src).As16(), netip.MustParseAddr("ff02::1").As16()
	payload = append(payload, make([]byte, 40)...)
	b := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
	b = append(append(append(b, next, 255), a[:]...), d[:]...)
	return append(b, payload...)
}

// advert is a neighbour advertisement for an address.
func advert(target string) []byte {
	a := netip.MustParseAddr(target).As16()
	return append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, a[:]...)
}

// TestNobodySendsAsAnother: whatever a pod with NET_RAW and NET_ADMIN sends, only
// what is from its own addresses passes its port; both families, ARP and
// neighbour discovery, without br_netfilter. Its neighbours are not disturbed.
func TestNobodySendsAsAnother(t *testing.T) {
	n := newNode(t)
	n.voice = n.add("voice", "10.0.0.99")
	a, b := n.add("a", "10.0.0.2", "fd00::2"), n.add("b", "10.0.0.3", "fd00::3")
	// Before the port is bound everything passes: this is what is fixed.
	if !n.passes(a, ether(a.mac, 0x0800, ipv4("10.0.0.3", 17))) {
		t.Fatal("a frame is not heard at all")
	}
	n.must(n.guard(a, a.ips...))
	n.must(n.guard(b, b.ips...))
	n.must(n.guard(a, a.ips...)) // asked again for its next container
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"own IPv4", ether(a.mac, 0x0800, ipv4("10.0.0.2", 17)), true},
		{"another's IPv4", ether(a.mac, 0x0800, ipv4("10.0.0.3", 17)), false},
		{"the bridge's IPv4", ether(a.mac, 0x0800, ipv4("10.0.0.1", 17)), false},
		{"no IPv4", ether(a.mac, 0x0800, ipv4("0.0.0.0", 17)), false},
		{"another MAC", ether(b.mac, 0x0800, ipv4("10.0.0.2", 17)), false},
		{"a MAC of nobody", ether(other, 0x0800, ipv4("10.0.0.2", 17)), false},
		{"own ARP", ether(a.mac, 0x0806, arp(a.mac, "10.0.0.2")), true},
		{"ARP whether an address is free", ether(a.mac, 0x0806, arp(a.mac, "0.0.0.0")), true},
		{"ARP for another", ether(a.mac, 0x0806, arp(a.mac, "10.0.0.3")), false},
		{"ARP that names another MAC", ether(a.mac, 0x0806, arp(b.mac, "10.0.0.2")), false},
		{"own IPv6", ether(a.mac, 0x86dd, ipv6("fd00::2", 17)), true},
		{"another's IPv6", ether(a.mac, 0x86dd, ipv6("fd00::3", 17)), false},
		{"own address of the link", ether(a.mac, 0x86dd, ipv6(linkLocal(a.mac).String(), 17)), true},
		{"another's address of the link", ether(a.mac, 0x86dd, ipv6(linkLocal(b.mac).String(), 17)), false},
		{"solicitation from no address", ether(a.mac, 0x86dd, ipv6("::", 58, 135, 0)), true},
		{"UDP from no address", ether(a.mac, 0x86dd, ipv6("::", 17)), false},
		{"advertisement of the own address", ether(a.mac, 0x86dd, ipv6("fd00::2", 58, advert("fd00::2")...)), true},
		{"advertisement of another's", ether(a.mac, 0x86dd, ipv6("fd00::2", 58, advert("fd00::3")...)), false},
		{"router advertisement", ether(a.mac, 0x86dd, ipv6(linkLocal(a.mac).String(), 58, 134, 0)), false},
		{"redirect", ether(a.mac, 0x86dd, ipv6(linkLocal(a.mac).String(), 58, 137, 0)), false},
		{"another protocol", ether(a.mac, 0x88b5, make([]byte, 46)), false},
	} {
		if got := n.passes(a, c.frame); got != c.want {
			t.Errorf("%s: passed is %v, want %v", c.name, got, c.want)
		}
	}
	for _, ip := range []string{"10.0.0.1", "10.0.0.3", "fd00::1", "fd00::3"} {
		n.must(netnstest.In(a.ns, func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "9"), testtimeout.Scale(20*time.Second))
			if !errors.Is(err, unix.ECONNREFUSED) { // no one listens there, and says so
				return fmt.Errorf("the pod does not reach %s: %v, %w", ip, c, err)
			}
			return nil
		}))
	}
}

// TestBindingLasts: a pod that gives itself another's address later gains
// nothing, not even by a restart of berth; an address goes with its pod.
func TestBindingLasts(t *testing.T) {
	n := newNode(t)
	n.voice = n.add("voice", "10.0.0.99")
	old := n.add("old", "10.0.0.7") // of a time before ports were bound
	n.in(n.c.Start)
	a := n.add("a", "10.0.0.2")
	n.must(n.guard(a, "10.0.0.2"))
	n.must(netnstest.In(a.ns, func() error { return run("addr add 10.0.0.3/24 dev eth0") }))
	n.must(netnstest.In(old.ns, func() error { return run("addr add 10.0.0.3/24 dev eth0") }))
	b := n.add("b", "10.0.0.3")
	n.must(n.guard(b, "10.0.0.3"))
	check := func(when string) {
		t.Helper()
		for p, ip := range map[*pod]string{a: "10.0.0.2", b: "10.0.0.3", old: "10.0.0.7"} {
			for _, from := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.7"} {
				if got := n.passes(p, ether(p.mac, 0x0800, ipv4(from, 17))); got != (from == ip) {
					t.Errorf("%s: pod %s sends from %s: %v", when, p.name, from, got)
				}
			}
		}
	}
	check("at first")
	n.c.Close()
	n.c = New("test", "br0", nil)
	t.Cleanup(n.c.Close)
	n.in(n.c.Start)
	check("after a restart")

	// The address of a pod whose link is still going is given to the next.
	next := n.add("next", "10.0.0.2")
	n.must(n.guard(next, "10.0.0.2"))
	if n.passes(a, ether(a.mac, 0x0800, ipv4("10.0.0.2", 17))) || !n.passes(next, ether(next.mac, 0x0800, ipv4("10.0.0.2", 17))) {
		t.Error("the address is not the next pod's alone")
	}
	n.in(func() error { return run("link del va") })
	last := n.add("last", "10.0.0.4")
	n.must(n.guard(last, "10.0.0.4"))
	if !n.passes(last, ether(last.mac, 0x0800, ipv4("10.0.0.4", 17))) {
		t.Error("a pod after others went cannot send")
	}
	if err := n.guard(last, "10.0.0.200"); err != nil {
		t.Errorf("a pod that a runtime's own network hung elsewhere: %v", err)
	}
	host := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}
	n.in(func() error { return n.c.Guard(t.Context(), host, []string{"192.0.2.1"}) })
	n.in(func() error { return errors.Join(Cleanup("test"), Cleanup("test")) })
	if !n.passes(b, ether(b.mac, 0x0800, ipv4("10.0.0.2", 17))) {
		t.Error("the table is still there after its clean-up")
	}
}

// TestRestartWithoutAGap sends frames from another's address while one run of
// berth after another writes the table again; every frame stays some hundred
// microseconds before the check, as long as a busy host may hold it.
func TestRestartWithoutAGap(t *testing.T) {
	n := newNode(t)
	n.voice = n.add("voice", "10.0.0.99")
	a := n.add("a", "10.0.0.2")
	n.must(n.guard(a, "10.0.0.2"))
	n.in(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table bridge linger { chain long { type filter hook prerouting priority -400; " +
			strings.Repeat("ip daddr 192.0.2.1 drop; ", 20000) + "}; }")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	out, received := n.raw(a.ns, "eth0"), n.raw(n.ns, "br0")
	stop, sent := make(chan struct{}), make(chan int)
	flood := func() {
		forged := append(ether(a.mac, 0x0800, ipv4("10.0.0.3", 17)), "forged"...)
		for i := 0; ; i++ {
			select {
			case <-stop:
				sent <- i
				return
			default:
				_, _ = unix.Write(out, forged)
			}
		}
	}
	for range 4 {
		go flood()
	}
	for range testtimeout.Rounds(20, 5) {
		n.c.Close()
		n.c = New("test", "br0", nil)
		n.in(n.c.Start)
	}
	t.Cleanup(n.c.Close)
	close(stop)
	i := 0
	for range 4 {
		i += <-sent
	}
	if i < 100 {
		t.Errorf("%d frames are too few to try anything", i)
	}
	_, err := unix.Write(n.raw(n.voice.ns, "eth0"), append(ether(n.voice.mac, 0x0800, ipv4("10.0.0.99", 17)), "over"...))
	n.must(err)
	buf := make([]byte, 4096)
	for passed := 0; ; {
		size, err := unix.Read(received, buf)
		n.must(err)
		if strings.HasSuffix(string(buf[:size]), "forged") {
			passed++
		}
		if strings.HasSuffix(string(buf[:size]), "over") {
			if passed > 0 {
				t.Errorf("%d frames from another's address passed", passed)
			}
			return
		}
	}
}
