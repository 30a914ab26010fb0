package dns

import (
	"net/netip"
	"slices"
	"strings"

	mdns "github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

const (
	// ttl of the cluster's own records, in seconds, and of the knowledge that
	// there is none: as long as a client may go on using a Service's old
	// endpoints.
	ttl = 5
	// schema is the version of the Kubernetes DNS specification that the
	// names follow, at dns-version.<zone>.
	schema = "1.1.0"
	// maxHops bounds a chain of external names inside the cluster.
	maxHops = 8
)

// reply is what the records say to a question.
type reply struct {
	// Mine is false if the name is not the cluster's: others must be asked.
	Mine              bool
	Rcode             int
	Answer, Ns, Extra []mdns.RR
	// Chase, if set, is a name outside the cluster that the last CNAME of
	// Answer points to; the question's type is still to be asked for it.
	Chase string
}

// Answer answers one question of class IN. It changes nothing.
func (r *records) Answer(q mdns.Question) reply {
	name := mdns.CanonicalName(q.Name)
	if mdns.IsSubDomain(r.zone, name) {
		return r.inZone(q, name, 0)
	}
	if ip, ok := reverse(name); ok {
		return r.pointer(q, ip)
	}
	return reply{}
}

// inZone answers a name that ends in the cluster domain; name is q.Name in
// lower case.
func (r *records) inZone(q mdns.Question, name string, hops int) reply {
	if name == r.zone {
		return r.apex(q)
	}
	labels := strings.Split(strings.TrimSuffix(name, "."+r.zone), ".")
	n := len(labels)
	switch labels[n-1] {
	case "svc":
		switch {
		case n == 1:
			return r.nothing(mdns.RcodeSuccess)
		case n == 2 && r.namespaces[labels[0]] > 0:
			return r.nothing(mdns.RcodeSuccess)
		case n > 2:
			return r.service(q, key{labels[n-2], labels[n-3]}, labels[:n-3], hops)
		}
	case "pod":
		switch {
		case n == 1:
			return r.nothing(mdns.RcodeSuccess)
		case n == 2 && r.namespaces[labels[0]] > 0:
			return r.nothing(mdns.RcodeSuccess)
		case n == 3:
			return r.pod(q, labels[1], labels[0])
		}
	case "dns":
		switch {
		case n == 1:
			return r.nothing(mdns.RcodeSuccess)
		case n == 2 && labels[0] == "ns":
			return r.done(addresses(q.Name, q.Qtype, r.serverIPs()))
		}
	case "dns-version":
		if n == 1 && q.Qtype == mdns.TypeTXT {
			return r.done([]mdns.RR{&mdns.TXT{Hdr: header(q.Name, mdns.TypeTXT), Txt: []string{schema}}})
		}
		if n == 1 {
			return r.nothing(mdns.RcodeSuccess)
		}
	}
	return r.nothing(mdns.RcodeNameError)
}

// apex answers for the cluster domain itself.
func (r *records) apex(q mdns.Question) reply {
	switch q.Qtype {
	case mdns.TypeSOA:
		return r.done([]mdns.RR{r.soa(q.Name)})
	case mdns.TypeNS:
		ns := "ns.dns." + r.zone
		reply := r.done([]mdns.RR{&mdns.NS{Hdr: header(q.Name, mdns.TypeNS), Ns: ns}})
		reply.Extra = append(addresses(ns, mdns.TypeA, r.serverIPs()), addresses(ns, mdns.TypeAAAA, r.serverIPs())...)
		return reply
	}
	return r.nothing(mdns.RcodeSuccess)
}

// service answers a name at or below a Service; below are the labels left of
// the Service's.
func (r *records) service(q mdns.Question, k key, below []string, hops int) reply {
	s := r.services[k]
	if s == nil || s.object == nil {
		return r.nothing(mdns.RcodeNameError)
	}
	if s.object.Spec.Type == v1.ServiceTypeExternalName {
		if len(below) > 0 {
			return r.nothing(mdns.RcodeNameError)
		}
		return r.external(q, s.object.Spec.ExternalName, hops)
	}
	if s.headless() && len(s.endpoints("")) == 0 {
		// The specification wants it so (2.4.1): a Service without endpoints
		// that are ready is not there.
		return r.nothing(mdns.RcodeNameError)
	}
	full := k.name + "." + k.namespace + ".svc." + r.zone
	switch {
	case len(below) == 0 && q.Qtype == mdns.TypeSRV:
		return r.ports(q, s, full, func(string, v1.Protocol) bool { return true })
	case len(below) == 0 && s.headless():
		return r.done(addresses(q.Name, q.Qtype, s.endpoints("")))
	case len(below) == 0:
		return r.done(addresses(q.Name, q.Qtype, clusterIPs(s.object)))
	case len(below) == 1 && !strings.HasPrefix(below[0], "_"):
		ips := s.endpoints(below[0])
		if len(ips) == 0 {
			return r.nothing(mdns.RcodeNameError)
		}
		return r.done(addresses(q.Name, q.Qtype, ips))
	case len(below) == 1 && s.hasPort("", below[0]):
		return r.nothing(mdns.RcodeSuccess) // _tcp has names below it
	case len(below) == 2 && s.hasPort(below[0], below[1]):
		if q.Qtype != mdns.TypeSRV {
			return r.nothing(mdns.RcodeSuccess)
		}
		return r.ports(q, s, full, func(name string, proto v1.Protocol) bool { return matches(name, proto, below[0], below[1]) })
	}
	return r.nothing(mdns.RcodeNameError)
}

// external answers with the CNAME of a Service of type ExternalName, and with
// what it points to if that is a name of the cluster too.
func (r *records) external(q mdns.Question, target string, hops int) reply {
	target = mdns.CanonicalName(target)
	reply := r.done([]mdns.RR{&mdns.CNAME{Hdr: header(q.Name, mdns.TypeCNAME), Target: target}})
	if q.Qtype == mdns.TypeCNAME {
		return reply
	}
	if !mdns.IsSubDomain(r.zone, target) {
		reply.Chase = target
		return reply
	}
	if hops == maxHops {
		reply.Rcode = mdns.RcodeServerFailure
		return reply
	}
	rest := r.inZone(mdns.Question{Name: target, Qtype: q.Qtype, Qclass: q.Qclass}, target, hops+1)
	rest.Answer = append(reply.Answer, rest.Answer...)
	return rest
}

// ports answers SRV: one record per port of a Service with a virtual address,
// one per port and endpoint of a headless one.
func (r *records) ports(q mdns.Question, s *service, full string, want func(name string, proto v1.Protocol) bool) reply {
	var out reply
	add := func(target string, port uint16) {
		out.Answer = append(out.Answer, &mdns.SRV{Hdr: header(q.Name, mdns.TypeSRV), Port: port, Target: target})
	}
	if !s.headless() {
		for _, p := range s.object.Spec.Ports {
			if want(p.Name, p.Protocol) {
				add(full, uint16(p.Port))
			}
		}
		if len(out.Answer) > 0 {
			out.Extra = glue(full, clusterIPs(s.object))
		}
	} else {
		type target struct {
			label string
			port  uint16
		}
		type host struct {
			label string
			ip    netip.Addr
		}
		seen, glued := map[target]bool{}, map[host]bool{}
		for _, sl := range s.slices {
			for _, p := range sl.Ports {
				if p.Port == nil || !want(deref(p.Name), protocol(p.Protocol)) {
					continue
				}
				eachEndpoint(sl, func(e *discovery.Endpoint, ip netip.Addr) bool {
					l := label(e, ip)
					if at := (target{l, uint16(*p.Port)}); !seen[at] {
						seen[at] = true
						add(l+"."+full, at.port)
					}
					if at := (host{l, ip}); !glued[at] {
						glued[at] = true
						out.Extra = append(out.Extra, address(l+"."+full, ip))
					}
					return true
				})
			}
		}
	}
	if len(out.Answer) == 0 {
		return r.nothing(mdns.RcodeSuccess)
	}
	weight := uint16(max(100/len(out.Answer), 1))
	for _, rr := range out.Answer {
		rr.(*mdns.SRV).Weight = weight
	}
	out.Mine = true
	return out
}

// pod answers 1-2-3-4.namespace.pod.
func (r *records) pod(q mdns.Question, namespace, name string) reply {
	text := strings.ReplaceAll(name, "-", ".")
	if strings.Count(name, "-") != 3 || strings.Contains(name, "--") {
		text = strings.ReplaceAll(name, "-", ":")
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || r.verifyPods && r.podIPs[podIP{namespace, ip}] == 0 {
		return r.nothing(mdns.RcodeNameError)
	}
	return r.done(addresses(q.Name, q.Qtype, []netip.Addr{ip}))
}

// pointer answers a reverse name: a Service's for a virtual address, an
// endpoint's for an address behind a headless Service. All others are not the
// cluster's to know.
func (r *records) pointer(q mdns.Question, ip netip.Addr) reply {
	var names []string
	for _, k := range r.byIP[ip] {
		names = append(names, k.name+"."+k.namespace+".svc."+r.zone)
	}
	if len(names) == 0 {
		names = r.endpointNames(ip)
	}
	if len(names) == 0 {
		return reply{}
	}
	if q.Qtype != mdns.TypePTR {
		return reply{Mine: true, Ns: []mdns.RR{r.soa(mdns.CanonicalName(q.Name))}}
	}
	slices.Sort(names)
	reply := reply{Mine: true}
	for _, n := range slices.Compact(names) {
		reply.Answer = append(reply.Answer, &mdns.PTR{Hdr: header(q.Name, mdns.TypePTR), Ptr: n})
	}
	return reply
}

func (r *records) endpointNames(ip netip.Addr) (names []string) {
	for _, k := range r.endpointIPs[ip] {
		for _, sl := range r.services[k].slices {
			eachEndpoint(sl, func(e *discovery.Endpoint, at netip.Addr) bool {
				if at == ip {
					names = append(names, label(e, ip)+"."+k.name+"."+k.namespace+".svc."+r.zone)
				}
				return true
			})
		}
	}
	return names
}

// endpoints are the addresses behind a Service, each once; a label picks those
// of one endpoint name.
func (s *service) endpoints(of string) []netip.Addr {
	var out []netip.Addr
	for _, sl := range s.slices {
		eachEndpoint(sl, func(e *discovery.Endpoint, ip netip.Addr) bool {
			if of == "" || label(e, ip) == of || dashed(ip) == of {
				out = append(out, ip)
			}
			return true
		})
	}
	// While an endpoint moves from slice to slice it is in both.
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// hasPort says whether a Service has the port that the labels _name and
// _proto ask for; an empty name asks for any with the protocol.
func (s *service) hasPort(name, proto string) bool {
	return slices.ContainsFunc(s.object.Spec.Ports, func(p v1.ServicePort) bool {
		if name == "" {
			return p.Name != "" && matches(p.Name, p.Protocol, "_"+p.Name, proto)
		}
		return matches(p.Name, p.Protocol, name, proto)
	})
}

func matches(name string, proto v1.Protocol, nameLabel, protoLabel string) bool {
	if proto == "" {
		proto = v1.ProtocolTCP
	}
	return name != "" && nameLabel == "_"+name && protoLabel == "_"+strings.ToLower(string(proto))
}

func protocol(p *v1.Protocol) v1.Protocol {
	if p == nil {
		return v1.ProtocolTCP
	}
	return *p
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// done is a good answer, or NODATA if there is no record.
func (r *records) done(answer []mdns.RR) reply {
	if len(answer) == 0 {
		return r.nothing(mdns.RcodeSuccess)
	}
	return reply{Mine: true, Answer: answer}
}

// nothing is NXDOMAIN or NODATA, with the SOA that lets resolvers remember it.
func (r *records) nothing(rcode int) reply {
	return reply{Mine: true, Rcode: rcode, Ns: []mdns.RR{r.soa(r.zone)}}
}

func (r *records) soa(owner string) *mdns.SOA {
	return &mdns.SOA{
		Hdr: header(owner, mdns.TypeSOA), Ns: "ns.dns." + r.zone, Mbox: "hostmaster." + r.zone, Serial: r.serial,
		Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

func header(name string, kind uint16) mdns.RR_Header {
	return mdns.RR_Header{Name: name, Rrtype: kind, Class: mdns.ClassINET, Ttl: ttl}
}

// addresses are the A or AAAA records of ips; other types have none.
func addresses(name string, kind uint16, ips []netip.Addr) []mdns.RR {
	if kind != mdns.TypeA && kind != mdns.TypeAAAA {
		return nil
	}
	out := make([]mdns.RR, 0, len(ips))
	for _, ip := range ips {
		if ip.Is4() == (kind == mdns.TypeA) {
			out = append(out, address(name, ip))
		}
	}
	return out
}

func glue(name string, ips []netip.Addr) (out []mdns.RR) {
	for _, ip := range ips {
		out = append(out, address(name, ip))
	}
	return out
}

func address(name string, ip netip.Addr) mdns.RR {
	if ip.Is4() {
		return &mdns.A{Hdr: header(name, mdns.TypeA), A: ip.AsSlice()}
	}
	return &mdns.AAAA{Hdr: header(name, mdns.TypeAAAA), AAAA: ip.AsSlice()}
}

// reverse reads an address from a name below in-addr.arpa or ip6.arpa.
func reverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		ip, err := netip.ParseAddr(strings.Join(parts, "."))
		return ip, err == nil && ip.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok || len(rest) != 63 {
		return netip.Addr{}, false
	}
	var text strings.Builder
	for i := 62; i >= 0; i -= 2 {
		if i < 62 && rest[i+1] != '.' {
			return netip.Addr{}, false
		}
		text.WriteByte(rest[i])
		if i%8 == 0 && i > 0 {
			text.WriteByte(':')
		}
	}
	ip, err := netip.ParseAddr(text.String())
	return ip, err == nil
}
