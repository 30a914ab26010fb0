package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// internet is three nodes: a and b share a link, c is behind a router. Each
// has one pod.
type internet struct {
	t      *testing.T
	router netns.NsHandle
	node   map[string]netns.NsHandle
	pod    map[string]netns.NsHandle
	client *fake.Clientset
	shared informers.SharedInformerFactory
	ctx    context.Context
}

var clusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

func (w *internet) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *internet) newNS() netns.NsHandle {
	w.t.Helper()
	h := netnstest.New(w.t)
	w.ip(h, "link set lo up")
	return h
}

// ip runs the ip program in a namespace, one command a line.
func (w *internet) ip(ns netns.NsHandle, commands ...string) string {
	w.t.Helper()
	var all strings.Builder
	w.must(netnstest.In(ns, func() error {
		for _, c := range commands {
			out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %s: %w: %s", c, err, out)
			}
			all.Write(out)
		}
		return nil
	}))
	return all.String()
}

// wire connects two namespaces.
func (w *internet) wire(a netns.NsHandle, nameA string, b netns.NsHandle, nameB string) {
	w.t.Helper()
	w.must(netnstest.In(a, func() error {
		out, err := exec.Command("ip", "link", "add", nameA, "type", "veth", "peer", "name", nameB, "netns",
			fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	w.ip(a, "link set "+nameA+" up")
	w.ip(b, "link set "+nameB+" up")
}

func newInternet(t *testing.T) *internet {
	w := &internet{t: t, node: map[string]netns.NsHandle{}, pod: map[string]netns.NsHandle{}, ctx: t.Context()}
	w.router = w.newNS()
	w.ip(w.router, "link add lan type bridge", "addr add 192.0.2.254/24 dev lan", "link set lan up")
	forward := func(ns netns.NsHandle) {
		w.must(netnstest.In(ns, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	}
	forward(w.router)
	for i, name := range []string{"a", "b", "c"} {
		n := w.newNS()
		w.node[name] = n
		forward(n)
		w.wire(w.router, "to-"+name, n, "eth0")
		if name == "c" {
			w.ip(w.router, "addr add 198.51.100.254/24 dev to-c")
			w.ip(n, "addr add 198.51.100.3/24 dev eth0", "route add default via 198.51.100.254")
		} else {
			w.ip(w.router, "link set to-"+name+" master lan")
			w.ip(n, fmt.Sprintf("addr add 192.0.2.%d/24 dev eth0", i+1), "route add default via 192.0.2.254")
		}
		p := w.newNS()
		w.pod[name] = p
		w.ip(n, "link add br0 type bridge", fmt.Sprintf("addr add 10.244.%d.1/24 dev br0", i), "link set br0 up mtu 1450")
		w.wire(n, "pod", p, "eth0")
		w.ip(n, "link set pod master br0 mtu 1450")
		w.ip(p, fmt.Sprintf("addr add 10.244.%d.9/24 dev eth0", i), "link set eth0 mtu 1450",
			fmt.Sprintf("route add default via 10.244.%d.1", i))
		w.answer(p)
	}
	w.answer(w.router)
	w.client = fake.NewClientset(apiNode("a", "192.0.2.1", "10.244.0.0/24"), apiNode("b", "192.0.2.2", "10.244.1.0/24"),
		apiNode("c", "198.51.100.3", "10.244.2.0/24"))
	w.shared = informers.NewSharedInformerFactory(w.client, 0)
	return w
}

func apiNode(name, at, pods string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at}}}}
}

// words are what answers are full of.
const words = "whoever reads this on the way, reads everything "

// answer serves the client's address, and then much, on TCP port 80.
func (w *internet) answer(ns netns.NsHandle) {
	var l net.Listener
	w.must(netnstest.In(ns, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	}))
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintf(c, "%-20s", host)
			_, _ = c.Write(bytes.Repeat([]byte(words), 1<<20/len(words)))
			c.Close()
		}
	}()
}

// ask connects and returns the address the other side saw; a megabyte that
// follows must fit through every link.
func (w *internet) ask(from netns.NsHandle, to string) (seen string, err error) {
	err = netnstest.In(from, func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(to, "80"), testtimeout.Scale(time.Second))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testtimeout.Scale(20 * time.Second)))
		all, err := io.ReadAll(c)
		if err == nil && len(all) != 20+1<<20/len(words)*len(words) {
			err = errors.New("cut short")
		}
		if len(all) >= 20 {
			seen = strings.TrimSpace(string(all[:20]))
		}
		return err
	})
	return seen, err
}

func (w *internet) config(name string, mode Mode) Config {
	ns := w.node[name]
	return Config{NodeName: name, Informers: w.shared, Mode: mode, ClusterCIDRs: clusterCIDRs, Tunnel: "vx-test", Instance: "test",
		Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), namespace: &ns}
}

// until tries as long as a bounded number of tries lasts.
func (w *internet) until(what string, ok func() bool) {
	w.t.Helper()
	for range testtimeout.Attempts(1500) {
		if ok() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	w.t.Fatal(what + " did not happen")
}

func (w *internet) routes(name string) string {
	return w.ip(w.node[name], "route show proto 98")
}

// connected says that every pod reaches every other under its own address.
func (w *internet) connected() {
	w.t.Helper()
	for i, from := range []string{"a", "b", "c"} {
		for j, to := range []string{"a", "b", "c"} {
			if from == to {
				continue
			}
			seen, err := w.ask(w.pod[from], fmt.Sprintf("10.244.%d.9", j))
			if want := fmt.Sprintf("10.244.%d.9", i); err != nil || seen != want {
				w.t.Errorf("pod of %s -> pod of %s: seen as %q (%v), want %s", from, to, seen, err, want)
			}
			if _, err := w.ask(w.node[from], fmt.Sprintf("10.244.%d.9", j)); err != nil {
				w.t.Errorf("node %s -> pod of %s: %v", from, to, err)
			}
		}
	}
}

func TestPodsOfThreeNodes(t *testing.T) {
	for _, mode := range []Mode{Auto, VXLAN} {
		t.Run(string(mode), func(t *testing.T) {
			w := newInternet(t)
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 3)
			for _, name := range []string{"a", "b", "c"} {
				go func() { ended <- Run(ctx, w.config(name, mode)) }()
			}
			for _, name := range []string{"a", "b", "c"} {
				w.until("the routes of "+name, func() bool { return strings.Count(w.routes(name), "\n") == 2 })
			}
			w.connected()
			// Out of the cluster a pod is its node.
			if seen, err := w.ask(w.pod["a"], "198.51.100.254"); err != nil || seen != "192.0.2.1" {
				t.Errorf("pod -> outside: seen as %q (%v), want the node's 192.0.2.1", seen, err)
			}
			if tunnels := strings.Contains(w.routes("a"), "10.244.1.0/24 via 10.244.1.0 dev vx-test"); tunnels != (mode == VXLAN) {
				t.Errorf("routes of a in mode %s:\n%s", mode, w.routes("a"))
			}

			// What someone deletes comes back.
			w.ip(w.node["a"], "route del 10.244.1.0/24")
			w.until("the repair of a route", func() bool { return strings.Contains(w.routes("a"), "10.244.1.0/24") })
			w.ip(w.node["c"], "link del vx-test")
			w.until("the repair of the tunnel", func() bool { return strings.Count(w.routes("c"), "\n") == 2 })
			w.connected()

			// A node gets another address.
			w.ip(w.node["c"], "addr del 198.51.100.3/24 dev eth0", "addr add 198.51.100.33/24 dev eth0",
				"route replace default via 198.51.100.254")
			_, err := w.client.CoreV1().Nodes().Update(ctx, apiNode("c", "198.51.100.33", "10.244.2.0/24"), metav1.UpdateOptions{})
			w.must(err)
			w.until("the new address of c", func() bool {
				seen, err := w.ask(w.pod["a"], "10.244.2.9")
				return err == nil && seen == "10.244.0.9"
			})
			w.connected()

			// A node goes.
			w.must(w.client.CoreV1().Nodes().Delete(ctx, "c", metav1.DeleteOptions{}))
			for _, name := range []string{"a", "b"} {
				w.until("the end of the route to c", func() bool { return !strings.Contains(w.routes(name), "10.244.2.0") })
			}
			if mode == Auto {
				w.until("the end of the tunnel", func() bool { return !strings.Contains(w.ip(w.node["a"], "link show"), "vx-test") })
			}
			stop()
			for range 3 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			w.shared.Shutdown()
		})
	}
}

// TestAgainAndAway: a second look changes nothing, and clean-up leaves what is
// not ours.
func TestAgainAndAway(t *testing.T) {
	w := newInternet(t)
	a := w.node["a"]
	w.ip(a, "route add 203.0.113.0/24 via 192.0.2.2 proto 98", "route add 10.244.77.0/24 via 192.0.2.2 proto static")
	before := w.ip(a, "route show")
	cfg := w.config("a", VXLAN)
	m, err := cfg.hostNetwork()
	w.must(err)
	defer m.close()
	nodes := []clusterNode{nodeOf(apiNode("a", "192.0.2.1", "10.244.0.0/24")), nodeOf(apiNode("b", "192.0.2.2", "10.244.1.0/24")),
		nodeOf(apiNode("c", "198.51.100.3", "10.244.2.0/24"))}
	step := func() int {
		links, err := m.links()
		w.must(err)
		p := decide(cfg.Mode, "a", nodes, links, linkNames{Tunnel: "vx-test", VNI: 77})
		w.must(cfg.masquerade(p.Own, p.guardName()))
		n, err := m.apply(p)
		w.must(err)
		return n
	}
	if step() == 0 {
		t.Error("nothing was done at first")
	}
	if n := step(); n != 0 {
		t.Errorf("%d changes when nothing changed", n)
	}
	if out := w.ip(a, "-d link show vx-test"); !strings.Contains(out, "mtu 1450") || !strings.Contains(out, "dstport 4789") ||
		!strings.Contains(out, "nolearning") || !strings.Contains(out, "vxlan id 77") {
		t.Errorf("the tunnel is another:\n%s", out)
	}
	w.must(netnstest.In(a, func() error { return exec.Command("nft", "list", "ruleset").Run() }))
	// From one way to the other and back.
	cfg.Mode = Auto
	if step() == 0 || step() != 0 {
		t.Error("changing the mode does nothing, or again and again")
	}
	w.must(cfg.cleanup())
	w.must(cfg.cleanup())
	if after := w.ip(a, "route show"); after != before {
		t.Errorf("clean-up left:\n%swant:\n%s", after, before)
	}
	if err := netnstest.In(a, func() error { return exec.Command("nft", "list", "table", "ip", "test-egress").Run() }); err == nil {
		t.Error("clean-up left the table")
	}
}

func TestConfigsRefused(t *testing.T) {
	shared := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	for _, cfg := range []Config{{}, {NodeName: "a", Informers: shared, Tunnel: "0123456789abcdef", Instance: "x",
		ClusterCIDRs: clusterCIDRs},
		{NodeName: "a", Informers: shared, Tunnel: "t", Instance: "x", ClusterCIDRs: clusterCIDRs, Mode: None}} {
		if err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}
