package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

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
