package dns

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// zone is every record that the specification (1.1.0) asks for, written out
// from the objects: the slow way to the same answers.
func zone(services []*v1.Service, sls []*discovery.EndpointSlice) map[string][]string {
	out := map[string][]string{}
	add := func(name, kind, data string) {
		k := kind + " " + name
		if !slices.Contains(out[k], data) {
			out[k] = append(out[k], data)
		}
	}
	for _, s := range services {
		base := s.Name + "." + s.Namespace + ".svc.cluster.local."
		if s.Spec.Type == v1.ServiceTypeExternalName {
			add(base, "CNAME", s.Spec.ExternalName+".")
			continue
		}
		if s.Spec.ClusterIP != v1.ClusterIPNone {
			for _, ip := range s.Spec.ClusterIPs {
				add(base, kindOf(ip), ip)
				add(reverseName(ip), "PTR", base)
			}
			for _, p := range s.Spec.Ports {
				if p.Name != "" {
					add("_"+p.Name+"._"+strings.ToLower(string(p.Protocol))+"."+base, "SRV", fmt.Sprint(p.Port, " ", base))
				}
			}
			continue
		}
		for _, sl := range sls {
			if sl.Labels[discovery.LabelServiceName] != s.Name || sl.Namespace != s.Namespace {
				continue
			}
			for _, e := range sl.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				ip := e.Addresses[0]
				host := strings.NewReplacer(".", "-", ":", "-").Replace(ip)
				if e.Hostname != nil {
					host = *e.Hostname
				}
				add(base, kindOf(ip), ip)
				add(host+"."+base, kindOf(ip), ip)
				add(reverseName(ip), "PTR", host+"."+base)
				for _, p := range sl.Ports {
					if ptr.Deref(p.Name, "") != "" {
						add("_"+*p.Name+"._"+strings.ToLower(string(*p.Protocol))+"."+base, "SRV", fmt.Sprint(*p.Port, " ", host+"."+base))
					}
				}
			}
		}
	}
	return out
}

func kindOf(ip string) string {
	if strings.Contains(ip, ":") {
		return "AAAA"
	}
	return "A"
}

func reverseName(ip string) string {
	name, err := mdns.ReverseAddr(ip)
	if err != nil {
		panic(err)
	}
	return name
}

func data(rr mdns.RR) string {
	switch rr := rr.(type) {
	case *mdns.A:
		return rr.A.String()
	case *mdns.AAAA:
		return rr.AAAA.String()
	case *mdns.SRV:
		return fmt.Sprint(rr.Port, " ", rr.Target)
	case *mdns.PTR:
		return rr.Ptr
	case *mdns.CNAME:
		return rr.Target
	}
	return rr.String()
}

// TestAnswersAreTheZone asks for every name of random zones, and every name of
// another zone, for all types.
func TestAnswersAreTheZone(t *testing.T) {
	kinds := map[string]uint16{"A": mdns.TypeA, "AAAA": mdns.TypeAAAA, "SRV": mdns.TypeSRV, "PTR": mdns.TypePTR, "CNAME": mdns.TypeCNAME}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		services, sls := randomObjects(r)
		others, otherSlices := randomObjects(r)
		want, elsewhere := zone(services, sls), zone(others, otherSlices)
		records := newRecords("cluster.local", false)
		for _, s := range services {
			records.SetService(s)
		}
		for _, s := range sls {
			records.SetSlice(s)
		}
		asked := map[string]bool{}
		for k := range want {
			asked[k[strings.Index(k, " ")+1:]] = true
		}
		for k := range elsewhere {
			asked[k[strings.Index(k, " ")+1:]] = true
		}
		for name := range asked {
			for kind, number := range kinds {
				// Letters of names do not tell apart.
				reply := records.Answer(mdns.Question{Name: strings.ToUpper(name), Qtype: number, Qclass: mdns.ClassINET})
				var got []string
				for _, rr := range reply.Answer {
					if rr.Header().Rrtype != number && rr.Header().Rrtype != mdns.TypeCNAME || rr.Header().Ttl != ttl {
						t.Fatalf("seed %d: %s %s: odd record %s", seed, kind, name, rr)
					}
					got = append(got, data(rr))
				}
				expect := slices.Clone(want[kind+" "+name])
				if alias := want["CNAME "+name]; len(alias) > 0 {
					expect = slices.Clone(alias)
				}
				if kind == "SRV" && !strings.HasPrefix(name, "_") {
					continue // more than is asked for: all ports of a Service
				}
				if len(expect) == 0 && lenient(services, name, func(s *v1.Service) bool { return s.Spec.ClusterIP != v1.ClusterIPNone }) {
					continue
				}
				if len(expect) == 0 && name[0] >= '0' && name[0] <= '9' {
					continue // an endpoint with a hostname answers to its address, too
				}
				slices.Sort(got)
				slices.Sort(expect)
				if !slices.Equal(got, expect) {
					t.Fatalf("seed %d: %s %s: got %q, want %q", seed, kind, name, got, expect)
				}
				if len(got) > 0 || strings.HasSuffix(name, ".arpa.") {
					continue
				}
				exists := false
				for k := range want {
					at := k[strings.Index(k, " ")+1:]
					exists = exists || at == name || strings.HasSuffix(at, "."+name)
				}
				if nx := reply.Rcode == mdns.RcodeNameError; nx == exists &&
					!lenient(services, name, func(*v1.Service) bool { return true }) {
					t.Fatalf("seed %d: %s %s: rcode %s, exists %t", seed, kind, name, mdns.RcodeToString[reply.Rcode], exists)
				}
			}
		}
	}
}

// lenient are names that answer beyond the specification: the endpoints of a
// Service with a virtual address by their addresses, and the ports that a
// headless Service names but no slice has.
func lenient(services []*v1.Service, name string, of func(*v1.Service) bool) bool {
	labels := strings.Split(name, ".")
	if len(labels) < 7 {
		return false
	}
	return slices.ContainsFunc(services, func(s *v1.Service) bool {
		return of(s) && s.Name == labels[len(labels)-6] && s.Namespace == labels[len(labels)-5] && s.Spec.Type != v1.ServiceTypeExternalName
	})
}

func randomObjects(r *rand.Rand) (services []*v1.Service, sls []*discovery.EndpointSlice) {
	for i := range 5 {
		name := fmt.Sprint("s", i)
		spec := v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP},
			{Name: "dns", Port: 53, Protocol: v1.ProtocolUDP}}}
		switch r.IntN(4) {
		case 0:
			spec.ClusterIP = fmt.Sprintf("10.96.0.%d", 20+i)
			spec.ClusterIPs = []string{spec.ClusterIP}
			if r.IntN(2) == 0 {
				spec.ClusterIPs = append(spec.ClusterIPs, fmt.Sprintf("fd00::%d", 20+i))
			}
		case 1:
			spec = v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "www.example.org"}
		}
		if r.IntN(4) == 0 {
			continue
		}
		services = append(services, svc("ns", name, spec))
		for j := range r.IntN(3) {
			var endpoints []string
			for range r.IntN(4) {
				endpoints = append(endpoints, []string{"", "!", "h=", "other="}[r.IntN(4)]+fmt.Sprintf("10.244.%d.%d", i, r.IntN(4)))
			}
			sl := slice("ns", fmt.Sprint(name, "-", j), name, endpoints...)
			sl.Ports = []discovery.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080)), Protocol: ptr.To(v1.ProtocolTCP)},
				{Name: ptr.To("dns"), Port: ptr.To(int32(5353)), Protocol: ptr.To(v1.ProtocolUDP)}}
			sls = append(sls, sl)
		}
	}
	return services, sls
}
