package proxy

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

var rewrite = flag.Bool("rewrite", false, "write the table of the packet suite anew")

// tableFile is the table that fake and real kernel must both fulfil.
const tableFile = "../../docs/proxy-packets.md"

// from are the places packets come from: the node itself, a pod on it, the
// endpoint "a" on it, and a host outside.
var from = []string{"node", "pod", "a", "outside"}

// where endpoints are: a and b on the node, far on another one.
type where string

// kase is one Service, asked at one of its addresses.
type kase struct {
	name string
	// edit makes the Service what the case is about.
	edit func(*corev1.Service, plan)
	// ends are the endpoints; the part after a slash is their state.
	ends []where
	// ask is the address and port that is asked.
	ask func(s *corev1.Service, p plan) netip.AddrPort
}

// plan holds the addresses of a family.
type plan struct {
	family                             model.Family
	nodeIP, outside, other, gateway    netip.Addr
	podIP                              map[string]netip.Addr
	local, pods16, service, vips, here netip.Prefix
	bits                               int
}

func planOf(f model.Family) plan {
	a := netip.MustParseAddr
	if f == model.V6 {
		return plan{f, a("2001:db8::10"), a("2001:db8::20"), a("2001:db8::30"), a("fd00:10:244::1"),
			map[string]netip.Addr{"a": a("fd00:10:244::10"), "b": a("fd00:10:244::11"), "pod": a("fd00:10:244::12"),
				"far": a("fd00:10:244:1::10")},
			netip.MustParsePrefix("fd00:10:244::/64"), netip.MustParsePrefix("fd00:10:244:1::/64"),
			netip.MustParsePrefix("fd00:10:96::/112"), netip.MustParsePrefix("2001:db8:f::/64"), netip.MustParsePrefix("2001:db8::/64"),
			128}
	}
	return plan{f, a("192.0.2.10"), a("192.0.2.20"), a("192.0.2.30"), a("10.244.0.1"),
		map[string]netip.Addr{"a": a("10.244.0.10"), "b": a("10.244.0.11"), "pod": a("10.244.0.12"), "far": a("10.244.1.10")},
		netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.96.0.0/16"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("192.0.2.0/24"), 32}
}

func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-2], b[len(b)-1] = b[len(b)-2]+byte(n>>8), b[len(b)-1]+byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func clusterIPOf(s *corev1.Service, _ plan) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), 80)
}
func nodePortOf(s *corev1.Service, p plan) netip.AddrPort {
	return netip.AddrPortFrom(p.nodeIP, uint16(s.Spec.Ports[0].NodePort))
}
func lbOf(s *corev1.Service, _ plan) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(s.Status.LoadBalancer.Ingress[0].IP), 80)
}
func externalOf(s *corev1.Service, _ plan) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ExternalIPs[0]), 80)
}

func typed(t corev1.ServiceType) func(*corev1.Service, plan) {
	return func(s *corev1.Service, _ plan) { s.Spec.Type = t }
}
func both(fs ...func(*corev1.Service, plan)) func(*corev1.Service, plan) {
	return func(s *corev1.Service, p plan) {
		for _, f := range fs {
			f(s, p)
		}
	}
}
func external(s *corev1.Service, p plan) {
	s.Spec.ExternalIPs = []string{nth(p.vips, 200+int(s.Spec.Ports[0].NodePort-30000)).String()}
}
func externalLocal(s *corev1.Service, _ plan) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}
func internalLocal(s *corev1.Service, _ plan) {
	s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
}
func affine(s *corev1.Service, _ plan) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
func ranges(of ...string) func(*corev1.Service, plan) {
	return func(s *corev1.Service, p plan) {
		for _, name := range of {
			a := map[string]netip.Addr{"outside": p.outside, "pod": p.podIP["pod"], "node": p.nodeIP}[name]
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("%s/%d", a, p.bits))
		}
	}
}

var (
	nodePort = typed(corev1.ServiceTypeNodePort)
	balancer = typed(corev1.ServiceTypeLoadBalancer)
)

// cases are all Services of the suite; they live in one cluster together.
var cases = []kase{
	{"ClusterIP", nil, []where{"a", "far"}, clusterIPOf},
	{"ClusterIP, the client its only endpoint", nil, []where{"a"}, clusterIPOf},
	{"ClusterIP without endpoints", nil, nil, clusterIPOf},
	{"ClusterIP, another port", nil, []where{"a"}, func(s *corev1.Service, p plan) netip.AddrPort {
		return netip.AddrPortFrom(clusterIPOf(s, p).Addr(), 81)
	}},
	{"address of the Service range that no Service has", nil, []where{"a"}, func(s *corev1.Service, p plan) netip.AddrPort {
		return netip.AddrPortFrom(nth(p.service, 0xfe), 80)
	}},
	{"ClusterIP, endpoints not ready", nil, []where{"a/unready"}, clusterIPOf},
	{"ClusterIP, not ready but published (ready in the slice)", nil, []where{"a", "b/unserving"}, clusterIPOf},
	{"ClusterIP, all endpoints terminating", nil, []where{"a/terminating", "far/terminating"}, clusterIPOf},
	{"ClusterIP, one ready and one terminating", nil, []where{"a/terminating", "b"}, clusterIPOf},
	{"ClusterIP, terminating and no longer serving", nil, []where{"a/gone"}, clusterIPOf},
	{"ClusterIP with affinity", affine, []where{"b"}, clusterIPOf},
	{"ClusterIP, zone hints", nil, []where{"a/zone-other", "b/zone-here", "far/zone-here"}, clusterIPOf},
	{"ClusterIP, zone hints but not on all", nil, []where{"a/zone-other", "b"}, clusterIPOf},
	{"ClusterIP, node hints", nil, []where{"a/node-here", "far/node-other"}, clusterIPOf},
	{"ClusterIP, internal Local", internalLocal, []where{"a", "far"}, clusterIPOf},
	{"ClusterIP, internal Local, endpoints elsewhere", internalLocal, []where{"far"}, clusterIPOf},
	{"ClusterIP, internal Local, no endpoints", internalLocal, nil, clusterIPOf},
	{"ClusterIP, internal Local, terminating here", internalLocal, []where{"a/terminating", "far"}, clusterIPOf},
	{"NodePort", nodePort, []where{"a", "far"}, nodePortOf},
	{"NodePort without endpoints", nodePort, nil, nodePortOf},
	{"NodePort with affinity", both(nodePort, affine), []where{"far"}, nodePortOf},
	{"NodePort, external Local", both(nodePort, externalLocal), []where{"a", "far"}, nodePortOf},
	{"NodePort, external Local, endpoints elsewhere", both(nodePort, externalLocal), []where{"far"}, nodePortOf},
	{"NodePort, external Local, terminating here", both(nodePort, externalLocal), []where{"a/terminating", "far"}, nodePortOf},
	{"NodePort, its cluster IP", both(nodePort, externalLocal), []where{"far"}, clusterIPOf},
	{"LoadBalancer", balancer, []where{"a", "far"}, lbOf},
	{"LoadBalancer, ipMode Proxy", both(balancer, func(s *corev1.Service, _ plan) {
		s.Status.LoadBalancer.Ingress[0].IPMode = ptr.To(corev1.LoadBalancerIPModeProxy)
	}), []where{"a"}, lbOf},
	{"LoadBalancer without endpoints", balancer, nil, lbOf},
	{"LoadBalancer, external Local", both(balancer, externalLocal), []where{"a", "far"}, lbOf},
	{"LoadBalancer, external Local, endpoints elsewhere", both(balancer, externalLocal), []where{"far"}, lbOf},
	{"LoadBalancer, external Local with affinity", both(balancer, externalLocal, affine), []where{"a"}, lbOf},
	{"LoadBalancer, source range of the outside", both(balancer, ranges("outside")), []where{"a"}, lbOf},
	{"LoadBalancer, source range of the pod", both(balancer, ranges("pod")), []where{"a"}, lbOf},
	{"LoadBalancer, source range, its node port", both(balancer, ranges("pod")), []where{"a"}, nodePortOf},
	{"LoadBalancer, source range without endpoints", both(balancer, ranges("outside")), nil, lbOf},
	{"external IP", both(typed(corev1.ServiceTypeClusterIP), external), []where{"a", "far"}, externalOf},
	{"external IP, external Local", both(nodePort, external, externalLocal), []where{"a", "far"}, externalOf},
	{"external IP, external Local, endpoints elsewhere", both(nodePort, external, externalLocal), []where{"far"}, externalOf},
}

func (c kase) index() int {
	return slices.IndexFunc(cases, func(o kase) bool { return o.name == c.name })
}

func (c kase) service(p plan) *corev1.Service {
	i := c.index()
	s := svc(fmt.Sprint("case", i), nth(p.service, i+1).String(), 80, nil)
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(p.family.String())}
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "s", Protocol: corev1.ProtocolSCTP, Port: 80})
	for j := range s.Spec.Ports {
		s.Spec.Ports[j].NodePort = int32(30000 + i)
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: nth(p.vips, i+1).String()}}
	if c.edit != nil {
		c.edit(s, p)
	}
	return s
}

func (c kase) slice(p plan) *discoveryv1.EndpointSlice {
	s := slice(fmt.Sprint("case", c.index()))
	s.AddressType = discoveryv1.AddressType(p.family.String())
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr.To("s"), Protocol: ptr.To(corev1.ProtocolSCTP), Port: ptr.To(int32(8080))})
	for _, w := range c.ends {
		name, state, _ := strings.Cut(string(w), "/")
		e := discoveryv1.Endpoint{Addresses: []string{p.podIP[name].String()}}
		if e.NodeName = ptr.To(nodeName); name == "far" {
			e.NodeName = ptr.To("other")
		}
		cond := func(ready, serving, terminating bool) {
			e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		}
		switch state {
		case "unready":
			cond(false, false, false)
		case "unserving":
			cond(true, false, false)
		case "terminating":
			cond(false, true, true)
		case "gone":
			cond(false, false, true)
		case "zone-here", "zone-other":
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: strings.TrimPrefix(state, "zone-")}}}
		case "node-here", "node-other":
			e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: strings.TrimPrefix(state, "node-")}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// fill tells a writer's model all cases.
func (p plan) fill(w *writer) {
	w.model.SetNode("here", []netip.Addr{p.nodeIP})
	w.model.SetNodePortAddrs([]netip.Addr{p.nodeIP})
	w.setCIDRs([]netip.Prefix{p.service})
	for _, c := range cases {
		w.model.SetService(c.service(p))
		if len(c.ends) > 0 {
			w.model.SetSlice(c.slice(p))
		}
	}
}

func (p plan) writer(k nft.Kernel) *writer {
	l := rules.Layout{Family: p.family, MarkBit: 1 << 14, LocalCIDRs: []netip.Prefix{p.local}}
	return &writer{kernel: k, layout: l, table: "berth-suite", model: model.New(model.Config{Family: p.family, NodeName: nodeName})}
}

// say puts what answered, how often and from whom into the table's words.
func say(answers map[string]bool) string {
	var ids []string
	source := map[string]bool{}
	for a := range answers {
		id, src, ok := strings.Cut(a, " ")
		if !ok {
			return a
		}
		ids = append(ids, id)
		source[src] = true
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(source) == 1 {
		for s := range source {
			return strings.Join(ids, ", ") + " (" + s + ")"
		}
	}
	return strings.Join(ids, ", ") + " (mixed)"
}

// results are the words for every case and place.
type results map[string]map[string]string

func (r results) table() string {
	var b strings.Builder
	b.WriteString("# What the proxy does with a new connection\n\n")
	b.WriteString("Written by `go test ./internal/proxy -run TestPackets -rewrite`; the fake and the real kernel\n")
	b.WriteString("(IPv4 and IPv6; TCP, UDP and SCTP) are held to it. Endpoints `a` and `b` are pods on the node, `far` is one on " +
		"another node; local\ntraffic is told by the node's pod CIDR. ")
	b.WriteString("In brackets: whether the endpoint sees the client (kept) or the node (node) as the source.\n\n")
	b.WriteString("| Service and address asked | from the node | from a pod here | from `a` | from outside |\n|---|---|---|---|---|\n")
	for _, c := range cases {
		fmt.Fprintf(&b, "| %s |", c.name)
		for _, f := range from {
			fmt.Fprintf(&b, " %s |", r[c.name][f])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (r results) compare(t *testing.T, what string) {
	t.Helper()
	got := r.table()
	if *rewrite {
		if err := os.WriteFile(tableFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Errorf("%s:\ngot  %s\nwant %s", what, a[min(i, len(a)-1)], b[min(i, len(b)-1)])
		}
	}
}

// TestPacketsFake sends packets through the fake kernel.
func TestPacketsFake(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		for _, proto := range []byte{6, 17, 132} {
			p, k := planOf(f), nft.NewFake()
			w := p.writer(k)
			p.fill(w)
			if _, err := w.sync(); err != nil {
				t.Fatal(err)
			}
			r := results{}
			for _, c := range cases {
				r[c.name] = map[string]string{}
				for _, place := range from {
					answers := map[string]bool{}
					for i := range 64 {
						answers[p.fakeAsk(t, k, c, place, proto, i)] = true
					}
					r[c.name][place] = say(answers)
				}
			}
			r.compare(t, fmt.Sprintf("%s, protocol %d", f, proto))
		}
	}
}

// fakeAsk is one connection; try makes the choices of endpoints vary.
func (p plan) fakeAsk(t *testing.T, k *nft.Fake, c kase, place string, proto byte, try int) string {
	src := map[string]netip.Addr{"node": p.nodeIP, "pod": p.podIP["pod"], "a": p.podIP["a"], "outside": p.outside}[place]
	in := map[string]string{"pod": "veth2", "a": "veth0", "outside": "eth0"}[place]
	draw := uint32(try)
	out, err := k.Connect(p.family, "berth-suite", nft.Packet{Proto: proto, Src: netip.AddrPortFrom(src, 40000),
		Dst: c.ask(c.service(p), p), In: in, Mark: 1, Now: float64(try) * 1e6,
		Here: func(a netip.Addr) bool { return a == p.nodeIP || a == p.gateway || a.IsLoopback() },
		Out: func(a netip.Addr) string {
			if p.local.Contains(a) {
				return "veth"
			}
			return "eth0"
		},
		Random: func(n uint32) uint32 { draw = draw*1664525 + 1013904223; return draw >> 8 % n }})
	if err != nil {
		t.Fatal(err)
	}
	if out.Mark != 1 && out.Verdict == "accept" {
		t.Errorf("%s from %s: the packet leaves with mark %x", c.name, place, out.Mark)
	}
	switch out.Verdict {
	case "reject":
		return "refused"
	case "drop":
		return "silence"
	}
	for name, a := range p.podIP {
		if a == out.To.Addr() && out.To.Port() == 8080 {
			if out.Masqueraded || place == "node" {
				return name + " node"
			}
			return name + " kept"
		}
	}
	if p.nodeIP == out.To.Addr() {
		return "refused" // no one listens there
	}
	return "silence" // no one has the address
}

// suite is a node with three pods, a host outside and a pod on another node.
type suite struct {
	plan
	*fixture
	spaces map[string]netns.NsHandle
}

func newSuite(t *testing.T, f model.Family) *suite {
	s := &suite{plan: planOf(f), fixture: &fixture{t: t, node: netnstest.New(t), patience: testtimeout.Scale(time.Second)},
		spaces: map[string]netns.NsHandle{}}
	s.spaces["node"] = s.node
	ip := func(args ...string) error {
		if f == model.V6 {
			args = append([]string{"-6"}, args...)
		}
		return run(append([]string{"ip"}, args...)...)
	}
	host := fmt.Sprintf("/%d", s.bits)
	addr := func(a string, dev string) error {
		args := []string{"addr", "add", a, "dev", dev}
		if f == model.V6 {
			args = append(args, "nodad")
		}
		return ip(args...)
	}
	up := func() error {
		forwarding, limit := "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/icmp_ratelimit"
		if f == model.V6 {
			forwarding, limit = "/proc/sys/net/ipv6/conf/all/forwarding", "/proc/sys/net/ipv6/icmp/ratelimit"
		}
		// A node tells one client of few refusals a second; here many ask at once.
		return errors.Join(run("ip", "link", "set", "lo", "up"), os.WriteFile(forwarding, []byte("1"), 0), os.WriteFile(limit, []byte("0"),
			0))
	}
	wide := fmt.Sprintf("/%d", s.here.Bits())
	s.must(netnstest.In(s.node, func() error {
		return errors.Join(up(), run("ip", "link", "add", "eth0", "type", "bridge"), run("ip", "link", "set", "eth0", "up"),
			addr(s.nodeIP.String()+wide, "eth0"),
			ip("route", "add", s.pods16.String(), "via", s.other.String()), ip("route", "add", "default", "via",
				nth(s.here, 0xfe).String()))
	}))
	link := func(name, nodeEnd string, setup func() error) {
		ns := netnstest.New(t)
		s.spaces[name] = ns
		s.must(netnstest.In(s.node, func() error {
			if err := run("ip", "link", "add", nodeEnd, "type", "veth", "peer", "name", "peer"+nodeEnd); err != nil {
				return err
			}
			peer, err := netlink.LinkByName("peer" + nodeEnd)
			if err != nil {
				return err
			}
			return netlink.LinkSetNsFd(peer, int(ns))
		}))
		s.must(netnstest.In(ns, func() error {
			return errors.Join(up(), run("ip", "link", "set", "peer"+nodeEnd, "name", "eth0"), run("ip", "link", "set", "eth0", "up"),
				setup())
		}))
	}
	for i, name := range []string{"a", "b", "pod"} {
		end := fmt.Sprint("veth", i)
		link(name, end, func() error {
			return errors.Join(addr(s.podIP[name].String()+host, "eth0"), ip("route", "add", s.gateway.String(), "dev", "eth0"),
				ip("route", "add", "default", "via", s.gateway.String(), "dev", "eth0"))
		})
		s.must(netnstest.In(s.node, func() error {
			return errors.Join(run("ip", "link", "set", end, "up"), addr(s.gateway.String()+host, end),
				ip("route", "add", s.podIP[name].String()+host, "dev", end))
		}))
	}
	outer := func(name, end string, setup func() error) {
		link(name, end, setup)
		s.must(netnstest.In(s.node, func() error { return run("ip", "link", "set", end, "master", "eth0", "up") }))
	}
	outer("outside", "out0", func() error {
		return errors.Join(addr(s.outside.String()+wide, "eth0"), ip("route", "add", "default", "via", s.nodeIP.String()))
	})
	outer("far", "out1", func() error {
		return errors.Join(addr(s.other.String()+wide, "eth0"), addr(s.podIP["far"].String()+host, "lo"),
			ip("route", "add", s.local.String(), "via", s.nodeIP.String()))
	})
	for _, name := range []string{"a", "b", "far"} {
		s.answer(s.spaces[name], s.podIP[name].String(), name)
		s.answerSCTP(s.spaces[name], s.podIP[name].String(), name)
	}
	var k *nft.Netlink
	s.must(netnstest.In(s.node, func() (err error) { k, err = nft.Open(); return err }))
	t.Cleanup(func() { k.Close() })
	s.w = s.plan.writer(k)
	return s
}

// words turns an answer into the table's words.
func (s *suite) words(place, got string) string {
	id, src, ok := strings.Cut(got, " ")
	if !ok || strings.Contains(got, notPermitted) {
		return got
	}
	if a, err := netip.ParseAddr(src); err == nil && place != "node" && a != s.nodeIP && a != s.gateway {
		return id + " kept"
	}
	return id + " node"
}

// notPermitted is what the node's own senders of datagrams are told at once,
// whether these are refused or dropped.
const notPermitted = "operation not permitted"

// TestKernelPackets sends packets through the real kernel.
func TestKernelPackets(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		s := newSuite(t, f)
		s.fill(s.w)
		s.sync()
		for _, network := range []string{"tcp", "udp", "sctp"} {
			t.Run(fmt.Sprint(f, " ", network), func(t *testing.T) {
				s.t = t
				s.askAll(network).compare(t, fmt.Sprintf("%s, %s", f, network))
			})
		}
	}
}

// askAll asks everything at once: most of the time goes into waiting for silence.
// On a slow machine fewer ask at a time, or none would be answered in time.
func (s *suite) askAll(network string) results {
	r, want := results{}, golden(s.t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, c := range cases {
		r[c.name] = map[string]string{}
	}
	turn := make(chan struct{}, testtimeout.Rounds(len(cases)*len(from), 16))
	for _, c := range cases {
		for _, place := range from {
			wg.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				got := s.askCase(network, c, place, s.patience)
				expected := want[c.name][place]
				if strings.Contains(got, notPermitted) && (expected == "refused" || expected == "silence") {
					got = expected
				}
				if got != expected {
					got = s.askCase(network, c, place, time.Minute+s.patience) // a busy or emulated machine is slow
				}
				mu.Lock()
				defer mu.Unlock()
				r[c.name][place] = got
			})
		}
	}
	wg.Wait()
	return r
}

func (s *suite) askCase(network string, c kase, place string, patience time.Duration) string {
	w := *s.fixture
	w.patience = patience
	answers := map[string]bool{}
	for range testtimeout.Rounds(24, 10) {
		got := s.words(place, w.ask(s.spaces[place], network, c.ask(c.service(s.plan), s.plan).String()))
		answers[got] = true
		if !strings.Contains(got, " ") || strings.Contains(got, notPermitted) {
			return got
		}
	}
	return say(answers)
}

// golden reads the table back.
func golden(t *testing.T) results {
	data, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	r := results{}
	for _, line := range strings.Split(string(data), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < len(from)+2 {
			continue
		}
		row := map[string]string{}
		for i, f := range from {
			row[f] = strings.TrimSpace(cells[i+2])
		}
		r[strings.TrimSpace(cells[1])] = row
	}
	return r
}
