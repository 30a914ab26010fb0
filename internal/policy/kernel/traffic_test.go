package kernel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/policy/model"
	"github.com/berth-dev/berth/internal/policy/oracle"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// TestRandomHistoriesInTheKernel applies random changes to the real kernel and
// the one in memory, and asks them about random packets.
func TestRandomHistoriesInTheKernel(t *testing.T) { onBoth(t, randomHistories) }

func randomHistories(t *testing.T, n *node) {
	for i := range 2 {
		for j := range 8 {
			ips := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i), byte(2 + j)})}
			if i == 0 {
				ips = append(ips, netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+j)))
			}
			n.addPod(ips...)
		}
	}
	for seed := range uint64(testtimeout.Rounds(8, 2)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n.t = t
			h := oracle.NewHistory(1000 + seed)
			n.model, n.fixture = h.Model, h.Cluster
			n.model.Commit()
			n.must(n.w.Replace(n.model.Snapshot()))
			for range 25 {
				for range 1 + h.IntN(6) {
					h.Step()
				}
				n.must(n.w.Apply(n.model.Commit()))
				var packets []oracle.Packet
				for len(packets) < 60 {
					p := oracle.RandomPacket(h.Rand)
					if p.Src != p.Dst && p.Proto != 1 {
						packets = append(packets, p)
					}
				}
				n.agree(packets)
			}
			ok, err := n.w.Stands(n.model.Snapshot())
			n.must(err)
			if !ok {
				t.Error("the tables are not what the model says they are")
			}
			n.printable()
		})
	}
}

// talker echoes lines over TCP on a port of a namespace.
func (n *node) talker(ns netns.NsHandle, port int) {
	n.t.Helper()
	var l net.Listener
	n.must(netnstest.In(ns, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	n.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func (n *node) dial(ns netns.NsHandle, addr string) (c net.Conn) {
	n.t.Helper()
	n.must(netnstest.In(ns, func() (err error) {
		c, err = net.DialTimeout("tcp", addr, testtimeout.Scale(5*time.Second))
		return err
	}))
	n.t.Cleanup(func() { c.Close() })
	return c
}

func (n *node) echoes(c net.Conn) {
	n.t.Helper()
	n.must(c.SetDeadline(time.Now().Add(testtimeout.Scale(5 * time.Second))))
	_, err := c.Write([]byte("hello"))
	n.must(err)
	_, err = io.ReadFull(c, make([]byte, 5))
	n.must(err)
}

// TestWhatAPolicyDoesNotStop: running connections and their replies, the node
// and its probes, a pod that reaches itself through a Service.
func TestWhatAPolicyDoesNotStop(t *testing.T) {
	n := newNode(t)
	cluster(n)
	a, b, c := netip.MustParseAddr("10.0.0.10"), netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")
	n.model.Commit()
	n.must(n.w.Replace(n.model.Snapshot()))
	n.talker(n.pods[b], 80)
	n.talker(n.ns, 9000)
	n.must(netnstest.In(n.ns, func() error {
		return run("table ip services { chain prerouting { type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 8000 "+
			"dnat to 10.0.0.11:80; }; }", "nft", "-f", "-")
	}))
	before := n.dial(n.pods[a], "10.0.0.11:80")
	n.echoes(before)

	n.setPolicy(policy("x", "none", networkingv1.NetworkPolicySpec{PolicyTypes: both}))
	n.must(n.w.Apply(n.model.Commit()))
	n.echoes(before)
	n.agree([]oracle.Packet{{Src: a, Dst: b, Proto: 6, Port: 80}, {Src: b, Dst: a, Proto: 6, Port: 80},
		{Src: c, Dst: b, Proto: 17, Port: 80}})
	n.echoes(n.dial(n.ns, "10.0.0.11:80"))
	n.echoes(n.dial(n.pods[a], "10.0.0.1:9000"))

	// Policies see the pod behind a Service, and its port.
	n.setPolicy(policy("x", "a to b", networkingv1.NetworkPolicySpec{PolicyTypes: both, Ingress: from(peers{{PodSelector: pods("a")}},
		tcp80), Egress: to(peers{{PodSelector: pods("b")}}, tcp80)}))
	n.must(n.w.Apply(n.model.Commit()))
	n.echoes(n.dial(n.pods[a], "10.96.0.1:8000"))
	vip := netip.MustParseAddr("10.96.0.1")
	for from, want := range map[netip.Addr]bool{a: true, c: false, b: true} {
		n.source++
		n.must(netnstest.In(n.pods[from], func() error { return send(oracle.Packet{Src: from, Dst: vip, Proto: 6, Port: 8000}, n.source) }))
		got := n.arrived(key(oracle.Packet{Src: from, Dst: b, Proto: 6, Port: 80}, n.source))
		// The checksum of what is sent to oneself through a Service covers
		// the Service's address; only the way matters here.
		if got != want {
			t.Errorf("%s -> Service of %s: passed is %v, want %v", from, b, got, want)
		}
	}
}

// arrived waits until a packet came to the node and says whether it went on.
func (n *node) arrived(k string) bool {
	n.t.Helper()
	for range testtimeout.Attempts(2000) {
		if n.seen("sent")[k] {
			return n.settled("passed")[k]
		}
		time.Sleep(time.Millisecond)
	}
	n.t.Fatal("the packet did not come to the node")
	return false
}

// linger makes every packet stay some hundred microseconds between the node's
// first chain and those of the policies: as long as a busy host may hold it.
func (n *node) linger() {
	n.t.Helper()
	n.must(netnstest.In(n.ns, func() error {
		return run("table ip linger { chain long { type filter hook forward priority -50; "+
			strings.Repeat("ip daddr 192.0.2.1 drop; ", 20000)+"}; }", "nft", "-f", "-")
	}))
}

// TestReplacedWithoutAGap sends packets that policies forbid, and others that
// they allow, while the tables are replaced and changed again and again.
func TestReplacedWithoutAGap(t *testing.T) {
	n := newNode(t)
	cluster(n)
	n.linger()
	a, b, c := netip.MustParseAddr("10.0.0.10"), netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")
	n.setPolicy(policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("b"), Ingress: from(peers{{PodSelector: pods("a")}},
		tcp80)}))
	n.model.Commit()
	n.must(n.w.Replace(n.model.Snapshot()))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			// A new process knows nothing of the old one's numbers.
			m := model.New()
			for name, l := range n.fixture.Namespaces {
				m.SetNamespace(name, l)
			}
			for _, p := range n.fixture.Pods {
				m.SetPod(p)
			}
			for _, np := range n.fixture.Policies {
				m.SetPolicy(np)
			}
			m.SetPolicy(policy("x", "q", networkingv1.NetworkPolicySpec{PodSelector: *pods("b"),
				Ingress: from(peers{{PodSelector: pods("a")}}, port("UDP", intstr.FromInt32(int32(i%60000))))}))
			m.Commit()
			err := n.w.Replace(m.Snapshot())
			m.DeletePolicy(model.Key{Namespace: "x", Name: "q"})
			if err = errors.Join(err, n.w.Apply(m.Commit())); err != nil {
				done <- err
				return
			}
		}
	}()
	for range testtimeout.Rounds(40, 10) {
		var packets []oracle.Packet
		for range 50 {
			packets = append(packets, oracle.Packet{Src: a, Dst: b, Proto: 6, Port: 80}, oracle.Packet{Src: c, Dst: b, Proto: 6, Port: 80})
		}
		n.agree(packets)
	}
	close(stop)
	n.must(<-done)
}

// TestRemoveLeavesOthers also covers that removing nothing is no error.
func TestRemoveLeavesOthers(t *testing.T) {
	n := newNode(t)
	cluster(n)
	n.setPolicy(policy("x", "p", networkingv1.NetworkPolicySpec{}))
	n.model.Commit()
	n.must(n.w.Replace(n.model.Snapshot()))
	stands := func() bool {
		ok, err := n.w.Stands(n.model.Snapshot())
		n.must(err)
		return ok
	}
	if !stands() {
		t.Error("what was written does not stand")
	}
	n.must(netnstest.In(n.ns, func() error { return run("flush chain ip test-policy ingress\n", "nft", "-f", "-") }))
	n.must(netnstest.In(n.ns, func() error {
		return run("delete element ip test-policy guarded-ingress { 10.0.0.10 }\n", "nft", "-f", "-")
	}))
	if stands() {
		t.Error("a row that somebody deleted is not missed")
	}
	n.must(n.w.Remove())
	n.must(n.w.Remove())
	if stands() {
		t.Error("the tables stand after they were removed")
	}
	n.must(netnstest.In(n.ns, func() error { return run("", "nft", "list", "table", "ip", "observe") }))
	if err := netnstest.In(n.ns, func() error { return run("", "nft", "list", "table", "ip", "test-policy") }); err == nil {
		t.Error("the table is still there")
	}
}

// TestNoCoverStays replaces tables, then finds what a process left that was
// killed meanwhile.
func TestNoCoverStays(t *testing.T) {
	n := newNode(t)
	cluster(n)
	n.model.Commit()
	covers := func() bool {
		there, err := n.w.stand(n.w.cover)
		n.must(err)
		return there
	}
	for range 2 {
		n.must(n.w.Replace(n.model.Snapshot()))
		if covers() {
			t.Error("the copy stays after the tables were replaced")
		}
	}
	for name, end := range map[string]func() error{
		"Replace": func() error { return n.w.Replace(n.model.Snapshot()) },
		"Remove":  n.w.Remove,
	} {
		n.must(n.w.recreate(n.w.cover, n.model.Snapshot()))
		if !covers() {
			t.Fatal("there is no copy to be found")
		}
		if n.must(end()); covers() {
			t.Errorf("%s leaves a copy of before", name)
		}
	}
}
