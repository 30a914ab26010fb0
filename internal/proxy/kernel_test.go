package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// fixture is a node with a bridge and two pods on it, each in a network
// namespace of its own.
type fixture struct {
	t    *testing.T
	node netns.NsHandle
	pods []netns.NsHandle
	w    *writer
	// patience is how long no answer is not yet silence.
	patience time.Duration
}

const nodeName = "here"

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func run(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{t: t, node: netnstest.New(t), patience: testtimeout.Scale(time.Second)}
	w.must(netnstest.In(w.node, func() error {
		err := errors.Join(run("ip", "link", "set", "lo", "up"), run("ip", "link", "add", "br0", "type", "bridge"),
			run("ip", "addr", "add", "10.244.0.1/24", "dev", "br0"), run("ip", "link", "set", "br0", "up"),
			run("ip", "link", "add", "eth0", "type", "bridge"), run("ip", "addr", "add", "192.0.2.10/24", "dev", "eth0"),
			run("ip", "link", "set", "eth0", "up"),
			run("ip", "route", "add", "default", "via", "192.0.2.1"))
		// Refusals to one client are limited, and a redirect, which the kernel
		// sends where bridged packets do not pass netfilter, counts as one.
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0))
	}))
	for i := range 3 {
		pod := netnstest.New(t)
		w.must(netnstest.In(w.node, func() error {
			name := fmt.Sprintf("veth%d", i)
			if err := run("ip", "link", "add", name, "type", "veth", "peer", "name", "tmp"+name); err != nil {
				return err
			}
			peer, err := netlink.LinkByName("tmp" + name)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetNsFd(peer, int(pod)), run("ip", "link", "set", name, "master", "br0", "up"),
				run("ip", "link", "set", name, "type", "bridge_slave", "hairpin", "on"))
		}))
		w.must(netnstest.In(pod, func() error {
			name := fmt.Sprintf("tmpveth%d", i)
			return errors.Join(run("ip", "link", "set", "lo", "up"), run("ip", "link", "set", name, "name", "eth0"),
				run("ip", "addr", "add", fmt.Sprintf("10.244.0.%d/24", 10+i), "dev", "eth0"), run("ip", "link", "set", "eth0", "up"),
				run("ip", "route", "add", "default", "via", "10.244.0.1"))
		}))
		w.pods = append(w.pods, pod)
		w.answer(pod, "", fmt.Sprint(i))
	}
	w.open()
	return w
}

// open makes a new writer, as a new process would.
func (w *fixture) open() {
	var k *nft.Netlink
	same := ""
	w.must(netnstest.In(w.node, func() (err error) {
		k, err = nft.Open()
		if !bridgeFiltered(model.V4) {
			same = "br0"
		}
		return err
	}))
	w.t.Cleanup(func() { k.Close() })
	l := rules.Layout{Family: model.V4, MarkBit: 1 << 14, LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		SameBridge: same}
	w.w = &writer{kernel: k, layout: l, table: "berth-test", model: model.New(model.Config{Family: model.V4, NodeName: nodeName})}
	w.w.model.SetNode("", []netip.Addr{netip.MustParseAddr("192.0.2.10")})
	w.w.model.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("192.0.2.10")})
}

// answer serves "<id> <client address>" on TCP and UDP port 8080 of a pod.
func (w *fixture) answer(pod netns.NsHandle, addr, id string) {
	var l net.Listener
	var u net.PacketConn
	w.must(netnstest.In(pod, func() (err error) {
		if l, err = net.Listen("tcp", net.JoinHostPort(addr, "8080")); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", net.JoinHostPort(addr, "8080"))
		return err
	}))
	w.t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintf(c, "%s %s", id, host)
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = u.WriteTo([]byte(id+" "+host), from)
		}
	}()
}

// ask connects from a namespace and returns what answered, "refused" or
// "silence".
func (w *fixture) ask(from netns.NsHandle, network, addr string) string {
	w.t.Helper()
	if network == "sctp" {
		return w.askSCTP(from, netip.MustParseAddrPort(addr), 0)
	}
	var got string
	w.must(netnstest.In(from, func() error {
		c, err := net.DialTimeout(network, addr, w.patience)
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(w.patience))
			if strings.HasPrefix(network, "udp") {
				_, err = c.Write([]byte("?"))
			}
			if err == nil {
				buf := make([]byte, 100)
				var n int
				if n, err = c.Read(buf); err == nil || err == io.EOF {
					got, err = string(buf[:n]), nil
				}
			}
		}
		var ne net.Error
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			got = "refused"
		case errors.As(err, &ne) && ne.Timeout(), errors.Is(err, syscall.EHOSTUNREACH):
			got = "silence" // who waits for long is told that there is no such neighbour
		case err != nil:
			got = err.Error()
		}
		return nil
	}))
	return got
}

func (w *fixture) sync() result {
	w.t.Helper()
	var res result
	w.must(netnstest.In(w.node, func() (err error) {
		res, err = w.w.sync()
		return err
	}))
	return res
}

func svc(name, ip string, port int32, edit func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{
				{Name: "t", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(8080)},
				{Name: "u", Protocol: corev1.ProtocolUDP, Port: port, TargetPort: intstr.FromInt32(8080)}}}}
	if edit != nil {
		edit(s)
	}
	return s
}

func slice(name string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name + "-1",
		Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4}
	for n, p := range map[string]corev1.Protocol{"t": corev1.ProtocolTCP, "u": corev1.ProtocolUDP} {
		port := int32(8080)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &n, Protocol: &p, Port: &port})
	}
	node := nodeName
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node})
	}
	return s
}

func expect(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got == w {
			return
		}
	}
	t.Errorf("%s: got %q, want one of %q", what, got, want)
}

// TestKernelTraffic sends real packets through a real kernel.
func TestKernelTraffic(t *testing.T) {
	w := newFixture(t)
	m := w.w.model
	m.SetService(svc("a", "10.96.0.1", 80, nil))
	m.SetSlice(slice("a", "10.244.0.10"))
	m.SetService(svc("np", "10.96.0.2", 80, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}))
	m.SetSlice(slice("np", "10.244.0.10", "10.244.0.11"))
	m.SetService(svc("none", "10.96.0.3", 80, nil))
	m.SetService(svc("sticky", "10.96.0.4", 80, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	m.SetSlice(slice("sticky", "10.244.0.10", "10.244.0.11"))
	local := corev1.ServiceInternalTrafficPolicyLocal
	m.SetService(svc("local", "10.96.0.5", 80, func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }))
	far := slice("local", "10.244.0.10")
	far.Endpoints[0].NodeName = nil
	m.SetSlice(far)
	m.SetService(svc("lb", "10.96.0.6", 80, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		s.Spec.LoadBalancerSourceRanges = []string{"10.244.0.12/32", "10.244.0.12/31", "198.51.100.0/24"}
	}))
	m.SetSlice(slice("lb", "10.244.0.10"))
	if res := w.sync(); res.adopted || res.added == 0 {
		t.Fatalf("first sync: %+v", res)
	}
	for _, p := range []string{"tcp4", "udp4"} {
		expect(t, p+" pod to cluster IP", w.ask(w.pods[1], p, "10.96.0.1:80"), "0 10.244.0.11", "0 10.244.0.1")
		expect(t, p+" hairpin", w.ask(w.pods[0], p, "10.96.0.1:80"), "0 10.244.0.1")
		expect(t, p+" node to cluster IP", w.ask(w.node, p, "10.96.0.1:80"), "0 10.244.0.1")
		expect(t, p+" no endpoints", w.ask(w.pods[1], p, "10.96.0.3:80"), "refused")
		// A refused datagram of the node itself shows up in the call that sends it.
		if got := w.ask(w.node, p, "10.96.0.3:80"); got != "refused" && !strings.Contains(got, "operation not permitted") {
			t.Errorf("%s no endpoints, from the node: got %q", p, got)
		}
		expect(t, p+" unused port", w.ask(w.pods[1], p, "10.96.0.1:81"), "refused")
		expect(t, p+" local policy without an endpoint here", w.ask(w.pods[1], p, "10.96.0.5:80"), "silence")
		expect(t, p+" node port from the node", w.ask(w.node, p, "192.0.2.10:30080"), "0 10.244.0.1", "1 10.244.0.1")
		expect(t, p+" node port from a pod", w.ask(w.pods[2], p, "192.0.2.10:30080"), "0 10.244.0.1", "1 10.244.0.1")
		expect(t, p+" source let in", w.ask(w.pods[2], p, "203.0.113.9:80"), "0 10.244.0.1")
		expect(t, p+" source kept out", w.ask(w.pods[1], p, "203.0.113.9:80"), "silence")
		seen := map[string]int{}
		for range 40 {
			seen[w.ask(w.pods[2], p, "10.96.0.2:80")[:1]]++
		}
		if seen["0"] == 0 || seen["1"] == 0 || seen["0"]+seen["1"] != 40 {
			t.Errorf("%s spread: %v", p, seen)
		}
		first := w.ask(w.pods[2], p, "10.96.0.4:80")
		for range 20 {
			expect(t, p+" affinity", w.ask(w.pods[2], p, "10.96.0.4:80"), first)
		}
	}
	// The remembered endpoint goes: the client gets the other one.
	stuck := w.ask(w.pods[2], "tcp4", "10.96.0.4:80")[:1]
	left := map[string]string{"0": "1", "1": "0"}[stuck]
	m.SetSlice(slice("sticky", "10.244.0.1"+left))
	m.SetSlice(slice("none", "10.244.0.11"))
	w.sync()
	expect(t, "affinity to a gone endpoint", w.ask(w.pods[2], "tcp4", "10.96.0.4:80")[:1], left)
	expect(t, "first endpoint", w.ask(w.pods[2], "tcp4", "10.96.0.3:80")[:1], "1")

	// Another process adopts the table and changes nothing.
	old := w.w.model
	w.open()
	w.w.model = old
	if res := w.sync(); !res.adopted || res.added+res.deleted != 0 {
		t.Errorf("restart: adopted %v, added %d, deleted %d rows; want adoption without a change", res.adopted, res.added, res.deleted)
	}
	// A row lost in the kernel is repaired by adoption, and only that row.
	w.must(netnstest.In(w.node, func() error { return run("nft", "flush", "set", "ip", "berth-test", "cluster-ips") }))
	old = w.w.model
	w.open()
	w.w.model = old
	if res := w.sync(); !res.adopted || res.added != 6 || res.deleted != 0 {
		t.Errorf("repair: %+v", res)
	}
	w.must(netnstest.In(w.node, func() error { return run("nft", "add", "table", "ip", "other") }))
	w.must(netnstest.In(w.node, func() error { return Cleanup("berth-test") }))
	w.must(netnstest.In(w.node, func() error {
		out, err := exec.CommandContext(context.Background(), "nft", "list", "tables").CombinedOutput()
		if s := strings.TrimSpace(string(out)); s != "table ip other" {
			t.Errorf("tables after the clean-up: %q", s)
		}
		return err
	}))
}

// TestKernelRollingUpdate replaces endpoints all the time under connections:
// none is refused or lost while an endpoint is ready.
func TestKernelRollingUpdate(t *testing.T) {
	w := newFixture(t)
	m := w.w.model
	m.SetService(svc("a", "10.96.0.1", 80, nil))
	m.SetSlice(slice("a", "10.244.0.10", "10.244.0.11", "10.244.0.12"))
	w.sync()
	w.patience = testtimeout.Scale(20 * time.Second) // a lost packet shows as a slow connection, not as a lost one
	connections := testtimeout.Rounds(600, 60)
	var failed atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range connections {
			if got := w.ask(w.node, "tcp4", "10.96.0.1:80"); len(got) == 0 || got[1:] != " 10.244.0.1" {
				failed.Add(1)
				t.Log(got)
			}
		}
	}()
	sets := [][]string{{"10.244.0.10"}, {"10.244.0.11", "10.244.0.12"}, {"10.244.0.12", "10.244.0.10", "10.244.0.11"}, {"10.244.0.11"}}
	changes := 0
	for i := 0; ; i++ {
		select {
		case <-done:
			t.Logf("%d changes under %d connections", changes, connections)
			if failed.Load() > 0 {
				t.Errorf("%d connections failed", failed.Load())
			}
			return
		default:
			m.SetSlice(slice("a", sets[i%len(sets)]...))
			w.sync()
			changes++
		}
	}
}
