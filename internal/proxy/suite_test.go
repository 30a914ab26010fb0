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

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

var rewrite = flag.Bool("rewrite", false, "write the table of the packet suite anew")

// tableFile is the table that fake and real kernel must both fulfil.
const tableFile = "../../docs/proxy-packets.md"

// from are the places packets come from: the node itself, a pod on it, the
// endpoint "a" on it, and a host outside.
var from = []string{"node", "pod", "a", "outside"}

var (
	nodePort = typed(corev1.ServiceTypeNodePort)
	balancer = typed(corev1.ServiceTypeLoadBalancer)
)

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
