package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

func TestPodsBehindWireGuard(t *testing.T) {
	w := newFortress(t)
	tap := w.tap()
	all := []string{"a", "b", "c"}
	for _, name := range all {
		w.equip(name)
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
		tap.captured()
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
				return len(s.Peers) == 2 && !slices.ContainsFunc(s.Peers, func(p peer) bool { return p.PublicKey == old })
			})
		}
		w.reached(w.askAgain)
		tap.secret()
	})
	w.step("a new address", func() {
		w.ip(w.node["c"], "addr del 198.51.100.3/24 dev eth0", "addr add 198.51.100.33/24 dev eth0",
			"route replace default via 198.51.100.254")
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
		tap.captured()
		if _, err := w.ask(w.pod["a"], "10.244.2.9"); err == nil {
			w.t.Error("its pod still answers")
		}
		if h := tap.captured(); h.pods > 0 {
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
		g := guardian{name: w.device("a").Name, space: []netns.NsHandle{w.node["a"]}}
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
	m, err := cfg.hostNetwork()
	w.must(err)
	defer m.close()
	m.guard.key, err = loadKey(cfg.WireGuard.KeyFile, cfg.Log)
	w.must(err)
	var nodes []clusterNode
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	w.must(err)
	for _, n := range list.Items {
		nodes = append(nodes, nodeOf(&n))
	}
	links, err := m.links()
	w.must(err)
	p := decide(WireGuard, "a", nodes, links, linkNames{Guard: cfg.WireGuard.Name, Cluster: cfg.ClusterCIDRs,
		published: published{m.guard.key.public(), 51820}})
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
	tap.captured()
	if _, err := w.ask(w.pod["a"], "10.244.3.9"); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("a pod that asks there learns %v", err)
	}
	if _, err := w.ask(w.node["a"], "10.244.3.9"); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("a node that asks there learns %v", err)
	}
	if h := tap.captured(); h.pods > 0 {
		t.Errorf("%d frames to pods of a node without a key went out", h.pods)
	}
	w.must(w.client.CoreV1().Nodes().Delete(t.Context(), "d", metav1.DeleteOptions{}))
}

// overSix: two nodes whose addresses are of the other family now, and whose
// hosts began again. (The library of the devices sends to wrong addresses for
// a while if it sent to the other family before.)
func (w *fortress) overSix(tap *wiretap) {
	for i, name := range []string{"a", "b"} {
		w.runs[name]()
		w.stops[name]()
		w.until("the end of its device", func() bool { return !strings.Contains(w.ip(w.node[name], "link show"), w.device(name).Name) })
		w.equip(name)
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
			return len(s.Peers) == 1 && s.Peers[0].Endpoint.Addr().Is6() &&
				strings.Contains(w.ip(w.node[name], "link show "+w.device(name).Name), "mtu 1420")
		})
	}
	tap.captured()
	for _, way := range []struct{ from, to, want string }{
		{"a", "10.244.1.9", "10.244.0.9"}, {"a", "fd00:0:0:2::9", "fd00:0:0:1::9"}, {"b", "10.244.0.9", "10.244.1.9"},
		{"b", "fd00:0:0:1::9", "fd00:0:0:2::9"},
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
				w.equip(name)
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
		tap.captured()
	}
	for _, mode := range []Mode{VXLAN, WireGuard, Auto, WireGuard, VXLAN} {
		change(mode)
		w.until("the ways of mode "+string(mode), func() bool { _, err := w.ask(w.pod["a"], "10.244.2.9"); return err == nil })
		tap.captured()
		w.connected()
		if mode == WireGuard {
			tap.secret()
		} else if h := tap.captured(); h.words == 0 || h.encrypted > 0 {
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
	if kernelHasIt() {
		t.Skip("this kernel has WireGuard")
	}
	w := newFortress(t)
	a := w.node["a"]
	nodes := []clusterNode{guarded("a", "192.0.2.1", "10.244.0.0/24", "fd00:0:0:1::/64"), guarded("b", "192.0.2.2", "10.244.1.0/24",
		"fd00:0:0:2::/64")}
	cfg := w.config("a", WireGuard)
	m, err := cfg.hostNetwork()
	w.must(err)
	defer m.close()
	m.guard.key, err = loadKey(cfg.WireGuard.KeyFile, cfg.Log)
	w.must(err)
	plan := func(mode Mode) plan {
		links, err := m.links()
		w.must(err)
		return decide(mode, "a", nodes, links, linkNames{Tunnel: "vx-test", VNI: 7, Guard: cfg.WireGuard.Name, Cluster: cfg.ClusterCIDRs,
			published: published{m.guard.key.public(), 51820}})
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
	if out := w.routes("a") + w.ip(a, "-6 route show proto 98"); strings.Contains(out, " dev vx-test") ||
		!strings.Contains(out, "unreachable 10.244.0.0/16") || !strings.Contains(out, "unreachable fd00::/56") {
		t.Errorf("with no device there must be no way:\n%s", out)
	}
	if err := netnstest.In(a, func() error { return CheckWireGuard(w.device("a")) }); err == nil || !strings.Contains(err.Error(),
		"CONFIG_WIREGUARD") {
		t.Errorf("a start is told %v", err)
	}

	w.equip("a")
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
	if out := w.ip(a, "link show") + w.routes("a") + w.ip(a, "-6 route show proto 98"); strings.Contains(out, w.device("a").Name) ||
		strings.Contains(out, "unreachable") || strings.Contains(out, "vx-test") {
		t.Errorf("clean-up left:\n%s", out)
	}
	if err := netnstest.In(a, func() error { return exec.Command("nft", "list", "table", "ip", "test-egress").Run() }); err == nil {
		t.Error("clean-up left the table")
	}
}
