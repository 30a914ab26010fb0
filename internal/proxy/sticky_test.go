package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// rowsFirst is a kernel in which between the rows and the rules of every
// transaction a packet is under way: it goes by the old rules, but meets the
// new rows.
type rowsFirst struct {
	*nft.Fake
	meanwhile func()
}

func (k rowsFirst) Apply(txs ...*nft.Tx) error {
	tx := txs[0] // the proxy gives one
	rows, others := nft.NewTx(tx.Family, tx.Table), nft.NewTx(tx.Family, tx.Table)
	for _, o := range tx.Ops {
		if o.Verb == nft.AddRows || o.Verb == nft.DeleteRows {
			rows.Add(o)
		} else {
			others.Add(o)
		}
	}
	if chains, err := k.Chains(tx.Family, tx.Table); err != nil || !rules.Hooked(chains) {
		return k.Fake.Apply(tx)
	}
	if err := k.Fake.Apply(rows); err != nil {
		return err
	}
	k.meanwhile()
	return k.Fake.Apply(others)
}

// asker sends packets of clients on other hosts to 10.96.0.1 and tells which
// endpoint gets them.
type asker struct {
	t    *testing.T
	fake *nft.Fake
	now  float64
	draw uint32
}

func (a *asker) ask(client int, to string) netip.Addr {
	a.t.Helper()
	out, err := a.fake.Connect(model.V4, "berth-sticky", nft.Packet{Proto: 6, Priority: 6,
		Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(client >> 8), byte(client)}), 40000),
		Dst: netip.MustParseAddrPort(to), In: "eth0", Now: a.now,
		Here: func(at netip.Addr) bool { return at == netip.MustParseAddr("192.0.2.10") }, Out: func(netip.Addr) string { return "veth" },
		Random: func(n uint32) uint32 { a.draw = a.draw*1664525 + 1013904223; return a.draw >> 8 % n }})
	if err != nil {
		a.t.Fatal(err)
	}
	if out.Priority >= model.StickyFlag {
		a.t.Errorf("a packet leaves with priority %x", out.Priority)
	}
	if out.Verdict != "accept" || out.To.Addr().As4()[0] != 11 || out.To.Port() != 8080 {
		a.t.Errorf("client %d: %s to %s", client, out.Verdict, out.To)
	}
	return out.To.Addr()
}

func stickyWriter(k nft.Kernel) *writer {
	w := &writer{kernel: k, layout: rules.Layout{Family: model.V4, MarkBit: 1 << 14}, table: "berth-sticky",
		model: model.New(model.Config{Family: model.V4, NodeName: nodeName})}
	w.model.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.0.2.10")})
	return w
}

func stickyService(timeout int32) *corev1.Service {
	return svc("s", "10.96.0.1", 80, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalIPs = []string{"203.0.113.1"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		if timeout > 0 {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	})
}

var stickyWays = []string{"10.96.0.1:80", "192.0.2.10:30080", "203.0.113.1:80", "203.0.113.9:80"}

// TestAffinityComesFirst: whatever a packet meets while affinity is switched on
// or off, its timeout changes, or endpoints come and go, it gets to an endpoint:
// rules come before the rows that lead to them.
func TestAffinityComesFirst(t *testing.T) {
	fake := nft.NewFake()
	a := &asker{t: t, fake: fake}
	asked, step := 0, ""
	k := rowsFirst{fake, func() {
		for client := range 16 {
			for _, way := range stickyWays {
				a.ask(client, way)
				asked++
			}
		}
		if t.Failed() {
			t.Fatal("amid the step ", step)
		}
	}}
	w := stickyWriter(k)
	for i, timeout := range []int32{0, 100, 0, 100, 200, 100, 0} {
		w.model.SetService(stickyService(timeout))
		for _, n := range []int{2, 1, 5, 3, 9, 2} {
			step = fmt.Sprintf("%d to timeout %d and %d endpoints", i, timeout, n)
			w.model.SetSlice(slice("s", ips(0, n)...))
			if _, err := w.sync(); err != nil {
				t.Fatal(step, err)
			}
			k.meanwhile()
		}
	}
	if asked < 3000 {
		t.Errorf("%d packets were under way: nothing was tried", asked)
	}
}

// TestAffinityKeeps: a client returns to its endpoint by whatever address, while
// others come and go, until that one goes or the client stays away for the
// timeout; also after a restart.
func TestAffinityKeeps(t *testing.T) {
	const clients, timeout = 60, 100
	fake := nft.NewFake()
	a := &asker{t: t, fake: fake}
	w := stickyWriter(fake)
	w.model.SetService(stickyService(timeout))
	pool := ips(0, 8)
	sync := func(now []string) {
		w.model.SetSlice(slice("s", now...))
		if _, err := w.sync(); err != nil {
			t.Fatal(err)
		}
	}
	sync(pool)
	had := map[int]netip.Addr{}
	for c := range clients {
		had[c] = a.ask(c, stickyWays[c%len(stickyWays)])
	}
	// Taken from the front, so that the others move in the kernel's order.
	now := slices.Clone(pool)
	for i := 0; len(now) > 1; i++ {
		gone := netip.MustParseAddr(now[0])
		now = now[1:]
		if i%3 == 2 {
			now = append(now, ips(1, i+1)[i]) // a new one
		}
		if sync(now); i == 4 { // another process
			m := model.New(model.Config{Family: model.V4, NodeName: nodeName})
			w = stickyWriter(fake)
			w.model = m
			m.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.0.2.10")})
			m.SetService(stickyService(timeout))
			m.SetSlice(slice("s", now...))
			if res, err := w.sync(); err != nil || !res.adopted || res.added+res.deleted > 0 {
				t.Fatalf("adopted %t with %d rows added and %d deleted (%v)", res.adopted, res.added, res.deleted, err)
			}
		}
		a.now += timeout - 0.01 // each time the client is kept for as long again
		for c := range clients {
			got := a.ask(c, stickyWays[(c+i)%len(stickyWays)])
			if had[c] != gone && got != had[c] {
				t.Fatalf("%d endpoints left: client %d had %s, gets %s", len(now), c, had[c], got)
			}
			if !slices.Contains(now, got.String()) {
				t.Fatalf("client %d gets %s, which is none of %v", c, got, now)
			}
			had[c] = got
		}
	}
	sync(pool)
	seen, moved := map[netip.Addr]bool{}, 0
	a.now += timeout
	for c := range clients {
		got := a.ask(c, stickyWays[0])
		if seen[got] = true; got != had[c] {
			moved++
		}
	}
	if len(seen) < len(pool)/2 || moved == 0 {
		t.Errorf("after the timeout %d clients moved, to %d endpoints", moved, len(seen))
	}
}

// TestAffinityOfPools: a client that comes by an address with a Local policy gets
// an endpoint of this node, whichever it is remembered for.
func TestAffinityOfPools(t *testing.T) {
	fake := nft.NewFake()
	a := &asker{t: t, fake: fake}
	w := stickyWriter(fake)
	s := stickyService(100)
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	w.model.SetService(s)
	far := slice("s", ips(0, 8)...)
	for i := range far.Endpoints {
		if i > 1 {
			far.Endpoints[i].NodeName = ptr.To("far")
		}
	}
	w.model.SetSlice(far)
	if _, err := w.sync(); err != nil {
		t.Fatal(err)
	}
	here := []string{far.Endpoints[0].Addresses[0], far.Endpoints[1].Addresses[0]}
	elsewhere := 0
	for c := range 40 {
		if !slices.Contains(here, a.ask(c, stickyWays[0]).String()) {
			elsewhere++
		}
		got := a.ask(c, stickyWays[3])
		if !slices.Contains(here, got.String()) {
			t.Errorf("client %d gets %s, which is elsewhere", c, got)
		}
		for _, way := range stickyWays {
			if again := a.ask(c, way); again != got {
				t.Errorf("client %d has %s, gets %s by %s", c, got, again, way)
			}
		}
	}
	if elsewhere == 0 {
		t.Error("no client had an endpoint elsewhere: nothing was tried")
	}
}
