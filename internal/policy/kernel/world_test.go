package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
	"github.com/berth-dev/berth/internal/policy/model"
	"github.com/berth-dev/berth/internal/policy/oracle"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// node is a network namespace with a bridge, and pods on it in namespaces of
// their own. Packets are noted before and after the policies' tables, so that
// a packet that was dropped is known without waiting for it.
type node struct {
	t       testing.TB
	ns      netns.NsHandle
	pods    map[netip.Addr]netns.NsHandle
	links   int
	source  uint16
	w       *Writer
	model   *model.Model
	fixture oracle.Cluster
	// fake, if set, is the kernel that packets go through.
	fake *nft.Fake
	// k reads what the observer noted.
	k *nft.Netlink
}

// onBoth runs a test on the real kernel and on the one in memory.
func onBoth(t *testing.T, test func(*testing.T, *node)) {
	t.Run("in memory", func(t *testing.T) { test(t, newFakeNode(t)) })
	t.Run("kernel", func(t *testing.T) { test(t, newNode(t)) })
}

// newFakeNode is a node whose kernel is in memory; its pods have no wires.
func newFakeNode(t testing.TB) *node {
	n := &node{t: t, pods: map[netip.Addr]netns.NsHandle{}, model: model.New(), fixture: oracle.NewCluster(), fake: nft.NewFake()}
	var err error
	n.w, err = New("test-policy", func() (nft.Kernel, error) { return n.fake, nil })
	n.must(err)
	return n
}

// evaluate sends packets through the kernel in memory.
func (n *node) evaluate(what []oracle.Packet) []bool {
	n.t.Helper()
	passed := make([]bool, len(what))
	for i, p := range what {
		f := row.V4
		if p.Src.Is6() {
			f = row.V6
		}
		out, err := n.fake.Connect(f, n.w.name, nft.Packet{Proto: p.Proto, Src: netip.AddrPortFrom(p.Src, 40000),
			Dst: netip.AddrPortFrom(p.Dst, p.Port),
			In:  "br0", Here: func(netip.Addr) bool { return false }, Out: func(netip.Addr) string { return "br0" }})
		n.must(err)
		passed[i] = out.Verdict == "accept"
	}
	return passed
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func run(stdin string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

const observer = `
table ip observe {
	set sent { type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service; size 100000; flags dynamic; }
	set passed { type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service; size 100000; flags dynamic; }
	chain before { type filter hook forward priority -100; add @sent { ip saddr . ip daddr . meta l4proto . th sport . th dport }; }
	chain after { type filter hook forward priority 100; add @passed { ip saddr . ip daddr . meta l4proto . th sport . th dport }; }
}
table ip6 observe {
	set sent { type ipv6_addr . ipv6_addr . inet_proto . inet_service . inet_service; size 100000; flags dynamic; }
	set passed { type ipv6_addr . ipv6_addr . inet_proto . inet_service . inet_service; size 100000; flags dynamic; }
	chain before { type filter hook forward priority -100; add @sent { ip6 saddr . ip6 daddr . meta l4proto . th sport . th dport }; }
	chain after { type filter hook forward priority 100; add @passed { ip6 saddr . ip6 daddr . meta l4proto . th sport . th dport }; }
}`

func newNode(t testing.TB) *node {
	n := &node{t: t, pods: map[netip.Addr]netns.NsHandle{}, source: 10000, model: model.New(), fixture: oracle.NewCluster()}
	n.ns = netnstest.New(n.t)
	n.must(netnstest.In(n.ns, func() error {
		write := func(file, what string) error { return os.WriteFile("/proc/sys/net/"+file, []byte(what), 0) }
		return errors.Join(run("", "ip", "link", "set", "lo", "up"), run("", "ip", "link", "add", "br0", "type", "bridge"),
			run("", "ip", "addr", "add", "10.0.0.1/16", "dev", "br0"), run("", "ip", "addr", "add", "fd00::ffff/64", "dev", "br0", "nodad"),
			run("", "ip", "link", "set", "br0", "up"),
			write("ipv4/ip_forward", "1"), write("ipv6/conf/all/forwarding", "1"),
			write("bridge/bridge-nf-call-iptables", "1"), write("bridge/bridge-nf-call-ip6tables", "1"),
			run(observer, "nft", "-f", "-"))
	}))
	var err error
	n.w, err = New("test-policy", func() (nft.Kernel, error) { return nft.OpenAt(int(n.ns)) })
	n.must(err)
	n.k, err = nft.OpenAt(int(n.ns))
	n.must(err)
	t.Cleanup(func() { n.w.Close(); n.k.Close() })
	return n
}

// addPod wires the addresses of a pod to the bridge.
func (n *node) addPod(ips ...netip.Addr) netns.NsHandle {
	n.t.Helper()
	if n.fake != nil {
		return 0
	}
	pod := netnstest.New(n.t)
	n.links++
	name := fmt.Sprintf("veth%d", n.links)
	n.must(netnstest.In(n.ns, func() error {
		if err := run("", "ip", "link", "add", name, "type", "veth", "peer", "name", "tmp"+name); err != nil {
			return err
		}
		peer, err := netlink.LinkByName("tmp" + name)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetNsFd(peer, int(pod)), run("", "ip", "link", "set", name, "master", "br0", "up"),
			run("", "ip", "link", "set", name, "type", "bridge_slave", "hairpin", "on"))
	}))
	n.must(netnstest.In(pod, func() error {
		err := errors.Join(run("", "ip", "link", "set", "lo", "up"), run("", "ip", "link", "set", "tmp"+name, "name", "eth0"))
		for _, ip := range ips {
			if ip.Is4() {
				err = errors.Join(err, run("", "ip", "addr", "add", ip.String()+"/16", "dev", "eth0"))
			} else {
				err = errors.Join(err, run("", "ip", "addr", "add", ip.String()+"/64", "dev", "eth0", "nodad"))
			}
		}
		return errors.Join(err, run("", "ip", "link", "set", "eth0", "up"), run("", "ip", "route", "add", "default", "via", "10.0.0.1"))
	}))
	for _, ip := range ips {
		n.pods[ip] = pod
	}
	return pod
}

func (n *node) setPod(p model.Pod) {
	n.fixture.Pods[p.Key] = p
	n.model.SetPod(p)
}

func (n *node) setPolicy(np *networkingv1.NetworkPolicy) {
	n.fixture.Policies[model.Key{Namespace: np.Namespace, Name: np.Name}] = np
	n.model.SetPolicy(np)
}

func (n *node) deletePolicy(namespace, name string) {
	k := model.Key{Namespace: namespace, Name: name}
	delete(n.fixture.Policies, k)
	n.model.DeletePolicy(k)
}

// probe sends the first packet of a connection for each of what and says
// which were forwarded.
func (n *node) probe(what []oracle.Packet) []bool {
	n.t.Helper()
	if n.fake != nil {
		return n.evaluate(what)
	}
	sources := make([]uint16, len(what))
	bySource := map[netns.NsHandle][]int{}
	for i, p := range what {
		n.source++
		sources[i] = n.source
		bySource[n.pods[p.Src]] = append(bySource[n.pods[p.Src]], i)
	}
	for ns, packets := range bySource {
		n.must(netnstest.In(ns, func() error {
			for _, i := range packets {
				if err := send(what[i], sources[i]); err != nil {
					return fmt.Errorf("sending %+v: %w", what[i], err)
				}
			}
			return nil
		}))
	}
	passed := make([]bool, len(what))
	// Bounded by counting: the kernel forwards within microseconds, after it
	// has found the neighbour.
	for try := 0; ; try++ {
		sent := n.seen("sent")
		missing := 0
		for i, p := range what {
			if !sent[key(p, sources[i])] {
				missing++
			}
		}
		if missing == 0 {
			through := n.settled("passed")
			for i, p := range what {
				passed[i] = through[key(p, sources[i])]
			}
			break
		}
		if try == testtimeout.Attempts(2000) {
			n.t.Fatalf("%d of %d packets did not come to the node", missing, len(what))
		}
		time.Sleep(time.Millisecond)
	}
	return passed
}

// portKey is a protocol and a port as the observer's sets hold them.
func portKey(proto uint8, port uint16) []byte {
	return append([]byte{proto, 0, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(port)<<16)...)
}

func key(p oracle.Packet, source uint16) string {
	return string(p.Src.AsSlice()) + string(p.Dst.AsSlice()) + string(portKey(p.Proto, source)) + string(portKey(0, p.Port)[4:])
}

// settled reads a set until two readings agree: the kernel's list of a hash
// table can miss rows while the table is resized.
func (n *node) settled(set string) map[string]bool {
	n.t.Helper()
	all := map[string]bool{}
	for last := -1; len(all) != last; {
		last = len(all)
		maps.Copy(all, n.seen(set))
	}
	return all
}

func (n *node) seen(set string) map[string]bool {
	n.t.Helper()
	out := map[string]bool{}
	for _, f := range []row.Family{row.V4, row.V6} {
		n.must(n.k.Rows(f, "observe", set, func(key, _ []byte) bool {
			out[string(key)] = true
			return true
		}))
	}
	return out
}

// forget empties what was noted.
func (n *node) forget() {
	if n.fake != nil {
		return
	}
	n.must(netnstest.In(n.ns, func() error {
		return run("flush set ip observe sent\nflush set ip observe passed\nflush set ip6 observe sent\nflush set ip6 observe passed\n",
			"nft", "-f", "-")
	}))
}

// send sends a TCP SYN, a UDP datagram or an SCTP INIT.
func send(p oracle.Packet, source uint16) error {
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, p.Port)
	switch p.Proto {
	case 6:
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 2, 255, 255, 0, 0, 0, 0)
	case 17:
		b = append(b, 0, 8, 0, 0)
	case 132:
		// Verification tag, checksum; INIT: flags, length, tag, window,
		// streams, first TSN.
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 255, 255, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	sum := map[uint8]int{6: 16, 17: 6}[p.Proto]
	if sum > 0 {
		binary.BigEndian.PutUint16(b[sum:], checksum(p, b))
	}
	domain, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(p.Dst.AsSlice()[:4])})
	if p.Dst.Is6() {
		domain, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: p.Dst.As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(p.Proto))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, b, 0, to)
}

func checksum(p oracle.Packet, b []byte) uint16 {
	all := append(append(p.Src.AsSlice(), p.Dst.AsSlice()...), 0, p.Proto, byte(len(b)>>8), byte(len(b)))
	all = append(all, b...)
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	var sum uint32
	for i := 0; i < len(all); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(all[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// agree probes every packet and compares with the oracle.
func (n *node) agree(what []oracle.Packet) (allowed int) {
	n.t.Helper()
	got := n.probe(what)
	wrong := 0
	for i, p := range what {
		want := n.fixture.Allows(p)
		if want {
			allowed++
		}
		if got[i] != want {
			if wrong++; wrong <= 5 {
				n.t.Errorf("%s -> %s %d/%d: passed is %v, policies say %v", p.Src, p.Dst, p.Proto, p.Port, got[i], want)
			}
		}
	}
	if wrong > 0 {
		n.t.Fatalf("%d of %d packets went wrong\n%s", wrong, len(what), n.model.Snapshot().Text())
	}
	n.forget()
	return allowed
}
