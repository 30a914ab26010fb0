package proxy

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/netnstest"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

// TestKernelStaleFlows sends datagrams from one source port for ever: once
// their endpoint goes they reach the next one, and the flow is removed also
// when there is none, or no Service any more.
func TestKernelStaleFlows(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		s := newSuite(t, f)
		c := kase{name: cases[0].name}
		m := s.w.model
		service := c.service(s.plan)
		to := clusterIPOf(service, s.plan).String()
		var conn net.Conn
		s.must(netnstest.In(s.spaces["pod"], func() (err error) { conn, err = net.Dial("udp", to); return err }))
		defer conn.Close()
		ask := func() string {
			buf := make([]byte, 100)
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, err := conn.Write([]byte("?"))
			n := 0
			if err == nil {
				n, err = conn.Read(buf)
			}
			if err != nil {
				return err.Error()
			}
			id, _, _ := strings.Cut(string(buf[:n]), " ")
			return id
		}
		// change syncs and returns how many flows were forgotten.
		change := func(ends ...where) int {
			t.Helper()
			c.ends = ends
			m.SetSlice(c.slice(s.plan))
			res := s.sync()
			n := 0
			s.must(netnstest.In(s.node, func() (err error) { n, err = forget(f, res.changes.Stale); return err }))
			return n
		}
		m.SetService(service)
		change("a")
		expect(t, "first endpoint", ask(), "a")
		if n := change("a", "b"); n != 0 {
			t.Errorf("an endpoint more removed %d flows", n)
		}
		expect(t, "a flow stays", ask(), "a")
		if n := change("a/terminating", "b"); n != 0 {
			t.Errorf("an endpoint that serves while it terminates lost %d flows", n)
		}
		expect(t, "while it terminates", ask(), "a")
		if n := change("b"); n != 1 {
			t.Errorf("%s: the endpoint went and %d flows were removed, want 1", f, n)
		}
		expect(t, "next endpoint", ask(), "b")
		if n := change(); n != 1 {
			t.Errorf("the last endpoint went and %d flows were removed, want 1", n)
		}
		change("a")
		expect(t, "from none to one", ask(), "a")
		m.DeleteService(model.Name{Namespace: "ns", Name: service.Name})
		res := s.sync()
		s.must(netnstest.In(s.node, func() error {
			n, err := forget(f, res.changes.Stale)
			if n != 1 {
				t.Errorf("the Service went and %d flows were removed, want 1", n)
			}
			return err
		}))
	}
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
			Here: func(a netip.Addr) bool { return a == p.nodeIP }, Out: func(netip.Addr) string { return "veth" }, Random: func(n uint32) uint32 { return draw % n }})
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
