package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/internal/netnstest"
	"github.com/berth-dev/berth/internal/wgtest"
)

// fortress is an internet whose nodes encrypt, with pods of both families.
// Their devices are in userspace: the kernel need not have WireGuard.
type fortress struct {
	*internet
	dir string
	// said is what the nodes logged.
	said *transcript
	runs map[string]func() // stops a node's run
	// stops ends a node's device.
	stops map[string]func()
}

// transcript keeps what is logged, and shows it if the test fails.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
	out  interface{ Write([]byte) (int, error) }
}

func (l *transcript) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	return l.out.Write(b)
}

func (l *transcript) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func newFortress(t *testing.T) *fortress {
	w := &fortress{internet: newInternet(t), dir: t.TempDir(), said: &transcript{out: t.Output()}, runs: map[string]func(){}, stops: map[string]func(){}}
	for i, name := range []string{"a", "b", "c"} {
		w.must(netnstest.In(w.node[name], func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) }))
		w.ip(w.node[name], fmt.Sprintf("addr add fd00:0:0:%x::1/64 dev br0 nodad", i+1))
		w.ip(w.pod[name], fmt.Sprintf("addr add fd00:0:0:%x::9/64 dev eth0 nodad", i+1), fmt.Sprintf("route add default via fd00:0:0:%x::1", i+1))
		n := w.apiNode(name)
		_, err := w.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		w.must(err)
	}
	t.Cleanup(func() {
		for _, stop := range w.runs {
			stop()
		}
	})
	return w
}

// step is a part of a test; what fails in it ends that part, and the test.
func (w *fortress) step(name string, f func()) {
	whole := w.t
	defer func() { w.t = whole }()
	if !whole.Run(name, func(t *testing.T) {
		w.t = t
		f()
	}) {
		whole.FailNow()
	}
}

func (w *fortress) apiNode(name string) *corev1.Node {
	i := strings.Index("abc", name)
	n := apiNode(name, []string{"192.0.2.1", "192.0.2.2", "198.51.100.3"}[i], fmt.Sprintf("10.244.%d.0/24", i))
	n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprintf("fd00:0:0:%x::/64", i+1))
	return n
}

func (w *fortress) device(name string) Device {
	return Device{Name: fmt.Sprintf("wt%d%s", os.Getpid(), name), Port: 51820, KeyFile: filepath.Join(w.dir, name, "wireguard.key")}
}

func (w *fortress) config(name string, mode Mode) Config {
	cfg := w.internet.config(name, mode)
	cfg.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/56")}
	cfg.WireGuard, cfg.Client = w.device(name), w.client
	cfg.Informers = informers.NewSharedInformerFactory(w.client, 0) // runs end, and their informers with them
	cfg.Log = slog.New(slog.NewTextHandler(w.said, nil)).With("on", name)
	return cfg
}

// userspace gives a node the device that its kernel may not have.
func (w *fortress) userspace(name string) {
	w.stops[name] = wgtest.New(w.t, w.node[name], w.device(name).Name)
}

func (w *fortress) start(name string, mode Mode) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, w.config(name, mode)) }()
	w.runs[name] = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
}

// state reads a node's device.
func (w *fortress) state(name string) GuardState {
	w.t.Helper()
	g := guardian{name: w.device(name).Name}
	var err error
	if g.client, err = g.open(); err == nil {
		defer g.close()
		var s GuardState
		if s, err = g.state(); err == nil {
			return s
		}
	}
	w.t.Logf("device of %s: %v", name, err)
	return GuardState{}
}

// untilSix waits until the kernel has looked for duplicates of the addresses
// that it gives links itself: before that neighbours do not find each other.
func (w *fortress) untilSix() {
	w.t.Helper()
	for _, ns := range []map[string]netns.NsHandle{w.node, w.pod} {
		for name, h := range ns {
			w.until("IPv6 on "+name, func() bool { return !strings.Contains(w.ip(h, "-6 addr show"), "tentative") })
		}
	}
}

func (w *fortress) untilPeers(name string, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d peers of %s", n, name), func() bool { return len(w.state(name).Peers) == n })
	w.until("the routes of "+name, func() bool { return strings.Count(w.routes(name), "dev "+w.device(name).Name) == n })
}

// askAgain asks as long as nobody answers, within bounds: a device that did not
// get an answer to its first words to a peer, because that did not know it yet,
// says them again after five seconds.
func (w *fortress) askAgain(from netns.NsHandle, to string) (seen string, err error) {
	for range 30 {
		if seen, err = w.ask(from, to); err == nil {
			break
		}
	}
	return seen, err
}

// reached goes from every pod and node to every pod of others, over both
// families.
func (w *fortress) reached(ask func(netns.NsHandle, string) (string, error)) {
	w.t.Helper()
	all := []string{"a", "b", "c"}
	for i, from := range all {
		for j, to := range all {
			if i == j {
				continue
			}
			for _, f := range []struct{ to, pod, node string }{
				{fmt.Sprintf("10.244.%d.9", j), fmt.Sprintf("10.244.%d.9", i), fmt.Sprintf("10.244.%d.0", i)},
				{fmt.Sprintf("fd00:0:0:%x::9", j+1), fmt.Sprintf("fd00:0:0:%x::9", i+1), fmt.Sprintf("fd00:0:0:%x::", i+1)},
			} {
				if seen, err := ask(w.pod[from], f.to); err != nil || seen != f.pod {
					w.t.Errorf("pod of %s -> pod of %s: seen as %q (%v), want %s", from, to, seen, err, f.pod)
				}
				if seen, err := ask(w.node[from], f.to); err != nil || seen != f.node {
					w.t.Errorf("node %s -> pod of %s: seen as %q (%v), want %s", from, to, seen, err, f.node)
				}
			}
		}
	}
}

// wiretap sees what goes over the underlay: the router has all its cables.
type wiretap struct {
	w  *fortress
	fd int
}

func (w *fortress) tap() *wiretap {
	w.t.Helper()
	tap := &wiretap{w: w}
	w.must(netnstest.In(w.router, func() (err error) {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		tap.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all&0xffff)
		if err != nil {
			return err
		}
		return unix.SetsockoptInt(tap.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	}))
	w.t.Cleanup(func() { unix.Close(tap.fd) })
	return tap
}

// heard is what was in the frames since the last time.
type heard struct {
	encrypted int // UDP to port 51820
	words     int // frames with what pods said
	pods      int // frames from or to pods' addresses, outermost
}

func (tap *wiretap) heard() (h heard) {
	tap.w.t.Helper()
	buf := make([]byte, 1<<17)
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/56")}
	for {
		n, _, err := unix.Recvfrom(tap.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return h
		}
		tap.w.must(err)
		f := buf[:n]
		if bytes.Contains(f, []byte(words)) {
			h.words++
		}
		if n < 54 {
			continue
		}
		var src, dst netip.Addr
		switch binary.BigEndian.Uint16(f[12:]) {
		case unix.ETH_P_IP:
			src, _ = netip.AddrFromSlice(f[26:30])
			dst, _ = netip.AddrFromSlice(f[30:34])
			if f[23] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[36:]) == 51820 {
				h.encrypted++
			}
		case unix.ETH_P_IPV6:
			src, _ = netip.AddrFromSlice(f[22:38])
			dst, _ = netip.AddrFromSlice(f[38:54])
			if f[20] == unix.IPPROTO_UDP && n >= 58 && binary.BigEndian.Uint16(f[56:]) == 51820 {
				h.encrypted++
			}
		}
		if slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(src) || p.Contains(dst) }) {
			h.pods++
		}
	}
}

// secret says that what was said since went over the underlay encrypted.
func (tap *wiretap) secret() {
	tap.w.t.Helper()
	if h := tap.heard(); h.encrypted == 0 || h.words > 0 || h.pods > 0 {
		tap.w.t.Errorf("on the underlay: %+v: want encrypted ones, and nothing else of pods", h)
	}
}

func TestPodsBehindWireGuard(t *testing.T) {
	w := newFortress(t)
	tap := w.tap()
	all := []string{"a", "b", "c"}
	for _, name := range all {
		w.userspace(name)
		w.start(name, WireGuard)
	}
	for _, name := range all {
		w.untilPeers(name, 2)
	}
	w.untilSix()
	w.reached(w.askAgain)
	tap.secret()
	for _, name := range all {
		if out := w.ip(w.node[name], "link show "+w.device(name).Name); !strings.Contains(out, "mtu 1440") {
			t.Errorf("the device of %s must leave 60 bytes of 1500:\n%s", name, out)
		}
		if p := w.state(name).Peers[0]; len(p.Allowed) != 2 || p.Keepalive != 0 {
			t.Errorf("a peer of %s: %+v", name, p)
		}
	}

	w.step("out of the cluster a pod is its node", func() {
		if seen, err := w.ask(w.pod["a"], "198.51.100.254"); err != nil || seen != "192.0.2.1" {
			w.t.Errorf("seen as %q (%v), want 192.0.2.1", seen, err)
		}
		tap.heard()
	})
	w.step("who sends with another address of the node", func() {
		// As a Service's client on the node does, whose address was chosen
		// before the pod was.
		err := netnstest.In(w.node["a"], func() error {
			d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("192.0.2.1")}}
			c, err := d.Dial("tcp", "10.244.1.9:80")
			if err == nil {
				c.Close()
			}
			return err
		})
		if err != nil {
			w.t.Error(err)
		}
		tap.secret()
	})
	w.step("a restart", func() { w.restart() })
	w.step("a link that somebody took down", func() {
		w.ip(w.node["a"], "link set "+w.device("a").Name+" down")
		w.until("the repair", func() bool { return strings.Count(w.routes("a"), "dev "+w.device("a").Name) == 2 })
		w.reached(w.askAgain)
		tap.secret()
	})
	w.step("a node without a key", func() { w.keyless(tap) })
	w.step("a new key", func() {
		old := w.state("b").PublicKey
		w.runs["b"]()
		w.must(os.Remove(w.device("b").KeyFile))
		w.start("b", WireGuard)
		for _, name := range []string{"a", "c"} {
			w.until("the new key of b on "+name, func() bool {
				s := w.state(name)
				return len(s.Peers) == 2 && !slices.ContainsFunc(s.Peers, func(p Peer) bool { return p.PublicKey == old })
			})
		}
		w.reached(w.askAgain)
		tap.secret()
	})
	w.step("a new address", func() {
		w.ip(w.node["c"], "addr del 198.51.100.3/24 dev eth0", "addr add 198.51.100.33/24 dev eth0", "route replace default via 198.51.100.254")
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "c", metav1.GetOptions{})
		w.must(err)
		n.Status.Addresses[0].Address = "198.51.100.33"
		_, err = w.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		w.must(err)
		w.until("the way to c", func() bool {
			seen, err := w.ask(w.pod["a"], "10.244.2.9")
			return err == nil && seen == "10.244.0.9"
		})
		w.reached(w.askAgain)
		tap.secret()
	})
	w.step("a node goes", func() {
		w.must(w.client.CoreV1().Nodes().Delete(t.Context(), "c", metav1.DeleteOptions{}))
		w.untilPeers("a", 1)
		w.untilPeers("b", 1)
		tap.heard()
		if _, err := w.ask(w.pod["a"], "10.244.2.9"); err == nil {
			w.t.Error("its pod still answers")
		}
		if h := tap.heard(); h.pods > 0 {
			w.t.Errorf("%d frames to its pods went out in clear", h.pods)
		}
	})
	w.step("nodes with IPv6 only", func() { w.overSix(tap) })
	for _, name := range all {
		w.runs[name]()
		key, err := os.ReadFile(w.device(name).KeyFile)
		w.must(err)
		if w.said.contains(strings.TrimSpace(string(key))) {
			w.t.Errorf("the log tells the key of %s", name)
		}
	}
}

// restart: a connection goes on while a node's run ends and another begins,
// and that finds nothing to do.
func (w *fortress) restart() {
	t := w.t
	before := w.state("a")
	sessions := func() (out []string) {
		g := guardian{name: w.device("a").Name}
		var err error
		g.client, err = g.open()
		w.must(err)
		defer g.close()
		d, err := g.client.Device(g.name)
		w.must(err)
		for _, p := range d.Peers {
			out = append(out, fmt.Sprint(p.PublicKey, p.LastHandshakeTime))
		}
		slices.Sort(out)
		return out
	}
	was := sessions()
	w.runs["a"]()
	// What is there is what is wanted: asked as a run asks.
	cfg := w.config("a", WireGuard)
	m, err := cfg.machine()
	w.must(err)
	defer m.close()
	m.guard.key, err = loadKey(cfg.WireGuard.KeyFile, cfg.Log)
	w.must(err)
	var nodes []Node
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	w.must(err)
	for _, n := range list.Items {
		nodes = append(nodes, nodeOf(&n))
	}
	links, err := m.links()
	w.must(err)
	p := Decide(WireGuard, "a", nodes, links, Names{Guard: cfg.WireGuard.Name, Cluster: cfg.ClusterCIDRs, Published: Published{m.guard.key.public(), 51820}})
	if n, err := m.apply(p); n != 0 || err != nil {
		t.Errorf("%d changes (%v) where nothing differs", n, err)
	}
	w.start("a", WireGuard)
	w.reached(w.ask) // at once
	if after := w.state("a"); after.text() != before.text() {
		t.Errorf("before the restart:\n%s\nafter:\n%s", before.text(), after.text())
	}
	if is := sessions(); !slices.Equal(was, is) {
		t.Errorf("sessions began anew: %s, before %s", is, was)
	}
}

// keyless: what is for a node that has no key is told of and goes nowhere.
func (w *fortress) keyless(tap *wiretap) {
	t := w.t
	_, err := w.client.CoreV1().Nodes().Create(t.Context(), apiNode("d", "192.0.2.4", "10.244.3.0/24"), metav1.CreateOptions{})
	w.must(err)
	w.until("the word of it", func() bool {
		return w.said.contains("node d has no WireGuard key yet")
	})
	tap.heard()
	if _, err := w.ask(w.pod["a"], "10.244.3.9"); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("a pod that asks there learns %v", err)
	}
	if _, err := w.ask(w.node["a"], "10.244.3.9"); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("a node that asks there learns %v", err)
	}
	if h := tap.heard(); h.pods > 0 {
		t.Errorf("%d frames to pods of a node without a key went out", h.pods)
	}
	w.must(w.client.CoreV1().Nodes().Delete(t.Context(), "d", metav1.DeleteOptions{}))
}

// overSix: two nodes whose addresses are of the other family now, and whose
// machines began anew. (The library of the devices sends to wrong addresses for
// a while if it sent to the other family before.)
func (w *fortress) overSix(tap *wiretap) {
	for i, name := range []string{"a", "b"} {
		w.runs[name]()
		w.stops[name]()
		w.until("the end of its device", func() bool { return !strings.Contains(w.ip(w.node[name], "link show"), w.device(name).Name) })
		w.userspace(name)
		w.ip(w.node[name], fmt.Sprintf("addr add 2001:db8::%d/64 dev eth0 nodad", i+1), fmt.Sprintf("addr del 192.0.2.%d/24 dev eth0", i+1))
		n, err := w.client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
		w.must(err)
		n.Status.Addresses[0].Address = fmt.Sprintf("2001:db8::%d", i+1)
		_, err = w.client.CoreV1().Nodes().Update(w.t.Context(), n, metav1.UpdateOptions{})
		w.must(err)
		w.start(name, WireGuard)
	}
	for _, name := range []string{"a", "b"} {
		w.until("the other address of the peer of "+name, func() bool {
			s := w.state(name)
			return len(s.Peers) == 1 && s.Peers[0].Endpoint.Addr().Is6() && strings.Contains(w.ip(w.node[name], "link show "+w.device(name).Name), "mtu 1420")
		})
	}
	tap.heard()
	for _, way := range []struct{ from, to, want string }{
		{"a", "10.244.1.9", "10.244.0.9"}, {"a", "fd00:0:0:2::9", "fd00:0:0:1::9"}, {"b", "10.244.0.9", "10.244.1.9"}, {"b", "fd00:0:0:1::9", "fd00:0:0:2::9"},
	} {
		if seen, err := w.askAgain(w.pod[way.from], way.to); err != nil || seen != way.want {
			w.t.Errorf("pod of %s -> %s: seen as %q (%v), want %s", way.from, way.to, seen, err, way.want)
		}
	}
	tap.secret()
}

// TestToWireGuardAndBack: on live nodes, from one mode to the other, with
// nothing of the other left, and in clear only what may be.
func TestToWireGuardAndBack(t *testing.T) {
	w := newFortress(t)
	tap := w.tap()
	all := []string{"a", "b", "c"}
	before := w.ip(w.node["a"], "route show") + w.ip(w.node["a"], "-6 route show")
	change := func(mode Mode) {
		for _, name := range all {
			if stop := w.runs[name]; stop != nil {
				stop()
			}
			if mode == WireGuard {
				w.userspace(name)
			}
			w.start(name, mode)
		}
		for _, name := range all {
			if mode == WireGuard {
				w.untilPeers(name, 2)
				w.until("the end of VXLAN on "+name, func() bool { return !strings.Contains(w.ip(w.node[name], "link show"), "vx-test") })
				continue
			}
			w.until("the end of WireGuard on "+name, func() bool {
				return !strings.Contains(w.ip(w.node[name], "link show"), w.device(name).Name) && strings.Count(w.routes(name), "\n") == 2
			})
			w.until("the end of its annotation", func() bool {
				n, err := w.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
				w.must(err)
				return n.Annotations[Annotation] == ""
			})
		}
		tap.heard()
	}
	for _, mode := range []Mode{VXLAN, WireGuard, Auto, WireGuard, VXLAN} {
		change(mode)
		w.until("the ways of mode "+string(mode), func() bool { _, err := w.ask(w.pod["a"], "10.244.2.9"); return err == nil })
		tap.heard()
		w.connected()
		if mode == WireGuard {
			tap.secret()
		} else if h := tap.heard(); h.words == 0 || h.encrypted > 0 {
			t.Errorf("mode %s: %+v: the wiretap is deaf, or something is still encrypted", mode, h)
		}
	}
	for _, name := range all {
		w.runs[name]()
		cfg := w.config(name, VXLAN)
		w.must(cfg.cleanup())
	}
	if after := w.ip(w.node["a"], "route show") + w.ip(w.node["a"], "-6 route show"); after != before {
		t.Errorf("left:\n%swant:\n%s", after, before)
	}
}

// TestClosedWithoutDevice: if there can be no device, the ways of another mode
// are closed all the same, and the error tells what to do. Clean-up takes the
// device away.
func TestClosedWithoutDevice(t *testing.T) {
	if _, err := netlink.GenlFamilyGet(unix.WG_GENL_NAME); err == nil {
		t.Skip("this kernel has WireGuard")
	}
	w := newFortress(t)
	a := w.node["a"]
	nodes := []Node{guarded("a", "192.0.2.1", "10.244.0.0/24", "fd00:0:0:1::/64"), guarded("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:2::/64")}
	cfg := w.config("a", WireGuard)
	m, err := cfg.machine()
	w.must(err)
	defer m.close()
	m.guard.key, err = loadKey(cfg.WireGuard.KeyFile, cfg.Log)
	w.must(err)
	plan := func(mode Mode) Plan {
		links, err := m.links()
		w.must(err)
		return Decide(mode, "a", nodes, links, Names{Tunnel: "vx-test", VNI: 7, Guard: cfg.WireGuard.Name, Cluster: cfg.ClusterCIDRs, Published: Published{m.guard.key.public(), 51820}})
	}
	_, err = m.apply(plan(VXLAN))
	w.must(err)
	before := w.routes("a")
	if !strings.Contains(before, "10.244.1.0/24") {
		t.Fatalf("no route to begin with:\n%s", before)
	}
	_, err = m.apply(plan(WireGuard))
	for _, word := range []string{"CONFIG_WIREGUARD", "modprobe wireguard", "--network=vxlan"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("the error says nothing of %s: %v", word, err)
		}
	}
	if out := w.routes("a") + w.ip(a, "-6 route show proto 98"); strings.Contains(out, " dev vx-test") || !strings.Contains(out, "unreachable 10.244.0.0/16") || !strings.Contains(out, "unreachable fd00::/56") {
		t.Errorf("with no device there must be no way:\n%s", out)
	}
	if err := netnstest.In(a, func() error { return CheckWireGuard(w.device("a")) }); err == nil || !strings.Contains(err.Error(), "CONFIG_WIREGUARD") {
		t.Errorf("a start is told %v", err)
	}

	w.userspace("a")
	if err := netnstest.In(a, func() error { return CheckWireGuard(w.device("a")) }); err != nil {
		t.Errorf("with a device in userspace a start is told %v", err)
	}
	if n, err := m.apply(plan(WireGuard)); n == 0 || err != nil {
		t.Errorf("%d changes, %v", n, err)
	}
	if n, err := m.apply(plan(WireGuard)); n != 0 || err != nil {
		t.Errorf("the second time %d changes, %v", n, err)
	}
	w.must(cfg.cleanup())
	w.must(cfg.cleanup())
	if out := w.ip(a, "link show") + w.routes("a") + w.ip(a, "-6 route show proto 98"); strings.Contains(out, w.device("a").Name) || strings.Contains(out, "unreachable") || strings.Contains(out, "vx-test") {
		t.Errorf("clean-up left:\n%s", out)
	}
	if err := netnstest.In(a, func() error { return exec.Command("nft", "list", "table", "ip", "test-egress").Run() }); err == nil {
		t.Error("clean-up left the table")
	}
}
