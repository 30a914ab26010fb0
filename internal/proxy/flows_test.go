package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/conntrack"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// TestKernelStaleFlows sends datagrams, or beginnings of SCTP associations,
// from one source port for ever: once their endpoint goes they reach the next
// one, and the flow is removed also when there is none, or no Service any more.
func TestKernelStaleFlows(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		for _, network := range []string{"udp", "sctp"} {
			t.Run(fmt.Sprint(f, " ", network), func(t *testing.T) { staysOrGoes(t, f, network) })
		}
	}
}

func staysOrGoes(t *testing.T, f model.Family, network string) {
	s := newSuite(t, f)
	c := kase{name: cases[0].name}
	m := s.w.model
	service := c.service(s.plan)
	to := clusterIPOf(service, s.plan)
	s.patience = testtimeout.Scale(5 * time.Second)
	ask := func() string { return s.askSCTP(s.spaces["pod"], to, 7777) }
	if network == "udp" {
		ask = s.askAgain(s.spaces["pod"], to)
	}
	first := func() string { id, _, _ := strings.Cut(ask(), " "); return id }
	// change syncs and returns how many flows were forgotten.
	change := func(ends ...where) int {
		t.Helper()
		c.ends = ends
		m.SetSlice(c.slice(s.plan))
		return s.forgotten(f)
	}
	m.SetService(service)
	change("a")
	expect(t, "first endpoint", first(), "a")
	if got, want := s.flows(f, network, to), "["+netip.AddrPortFrom(s.podIP["a"], 8080).String()+"]"; got != want {
		t.Errorf("the kernel tracks the flow as answered by %s, want %s", got, want)
	}
	if n := change("a", "b"); n != 0 {
		t.Errorf("an endpoint more removed %d flows", n)
	}
	expect(t, "a flow stays", first(), "a")
	if n := change("a/terminating", "b"); n != 0 {
		t.Errorf("an endpoint that serves while it terminates lost %d flows", n)
	}
	expect(t, "while it terminates", first(), "a")
	if n := change("b"); n != 1 {
		t.Errorf("the endpoint went and %d flows were removed, want 1", n)
	}
	expect(t, "next endpoint", first(), "b")
	if n := change(); n != 1 {
		t.Errorf("the last endpoint went and %d flows were removed, want 1", n)
	}
	change("a")
	expect(t, "from none to one", first(), "a")
	m.DeleteService(model.Name{Namespace: "ns", Name: service.Name})
	if n := s.forgotten(f); n != 1 {
		t.Errorf("the Service went and %d flows were removed, want 1", n)
	}
}

// askAgain returns a client that sends datagrams from one port.
func (s *suite) askAgain(from netns.NsHandle, to netip.AddrPort) func() string {
	var conn net.Conn
	s.must(netnstest.In(from, func() (err error) { conn, err = net.Dial("udp", to.String()); return err }))
	s.t.Cleanup(func() { conn.Close() })
	return func() string {
		buf := make([]byte, 100)
		_ = conn.SetDeadline(time.Now().Add(s.patience))
		_, err := conn.Write([]byte("?"))
		n := 0
		if err == nil {
			n, err = conn.Read(buf)
		}
		if err != nil {
			return err.Error()
		}
		return string(buf[:n])
	}
}

// forgotten syncs and returns how many stale flows were removed.
func (s *suite) forgotten(f model.Family) (n int) {
	s.t.Helper()
	res := s.sync()
	s.must(netnstest.In(s.node, func() (err error) { n, err = forget(f, res.changes.Stale); return err }))
	return n
}

// flows lists who answers the flows the kernel tracks to an address.
func (s *suite) flows(f model.Family, network string, to netip.AddrPort) string {
	s.t.Helper()
	family := map[model.Family]uint8{model.V4: unix.AF_INET, model.V6: unix.AF_INET6}[f]
	proto := map[string]byte{"udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[network]
	var out []netip.AddrPort
	s.must(netnstest.In(s.node, func() error {
		_, err := conntrack.Remove(family, conntrack.Filter{Proto: proto}, func(f conntrack.Flow) bool {
			if f.Destination == to {
				out = append(out, f.Answers)
			}
			return false // only looked at
		})
		return err
	}))
	return fmt.Sprint(out)
}

// TestAffinityEnds asks a fake kernel whose clock can be set: a client stays
// with its endpoint, through every address of the Service, until exactly the
// timeout after its last connection.
func TestAffinityEnds(t *testing.T) {
	p, k := planOf(model.V4), nft.NewFake()
	w := p.writer(k)
	c := kase{name: cases[0].name, ends: []where{"a", "b"}}
	s := c.service(p)
	both(balancer, affine)(s, p)
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(100))}}
	w.model.SetNode("", []netip.Addr{p.nodeIP})
	w.model.SetNodePortAddrs([]netip.Addr{p.nodeIP})
	w.model.SetService(s)
	w.model.SetSlice(c.slice(p))
	if _, err := w.sync(); err != nil {
		t.Fatal(err)
	}
	draw := uint32(0)
	ask := func(now float64, to netip.AddrPort) netip.Addr {
		out, err := k.Connect(model.V4, w.table, nft.Packet{Proto: 6, Src: netip.AddrPortFrom(p.outside, 1), Dst: to, In: "eth0", Now: now,
			Here: func(a netip.Addr) bool { return a == p.nodeIP }, Out: func(netip.Addr) string { return "veth" },
			Random: func(n uint32) uint32 { return draw % n }})
		if err != nil || out.Verdict != "accept" {
			t.Fatalf("%+v %v", out, err)
		}
		return out.To.Addr()
	}
	first := ask(0, clusterIPOf(s, p))
	draw = 1 // a new choice would fall on the other endpoint
	for i, to := range []netip.AddrPort{nodePortOf(s, p), lbOf(s, p), clusterIPOf(s, p)} {
		if got := ask(float64(i+1), to); got != first {
			t.Errorf("after %d s at %s: %s, want %s", i+1, to, got, first)
		}
	}
	if got := ask(102.9, lbOf(s, p)); got != first {
		t.Errorf("just before the timeout: %s, want %s", got, first)
	}
	if got := ask(203, lbOf(s, p)); got == first {
		t.Errorf("after the timeout: still %s", got)
	}
}
