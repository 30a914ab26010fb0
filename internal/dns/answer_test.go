package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func svc(ns, name string, spec v1.ServiceSpec) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec}
}

// slice makes a slice of endpoints "address", "hostname=address" or
// "!address" (not ready), with port http 8080/TCP.
func slice(ns, name, of string, endpoints ...string) *discovery.EndpointSlice {
	sl := &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{discovery.LabelServiceName: of}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
	}
	for _, text := range endpoints {
		e := discovery.Endpoint{}
		text, unready := strings.CutPrefix(text, "!")
		e.Conditions.Ready = ptr.To(!unready)
		if host, ip, ok := strings.Cut(text, "="); ok {
			e.Hostname, text = &host, ip
		}
		e.Addresses = []string{text}
		sl.Endpoints = append(sl.Endpoints, e)
	}
	return sl
}

var http80 = []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}}

func example() *records {
	r := newRecords("cluster.local", false)
	r.SetService(svc(Namespace, ServiceName, v1.ServiceSpec{ClusterIP: "10.96.0.10"}))
	r.SetService(svc("default", "web", v1.ServiceSpec{ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20", "fd00::20"},
		Ports: http80}))
	r.SetSlice(slice("default", "web-1", "web", "10.244.0.9"))
	r.SetSlice(slice("default", "db-1", "db", "db-0=10.244.0.5", "10.244.0.6", "!db-2=10.244.0.7")) // before its Service
	r.SetService(svc("default", "db", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, Ports: http80}))
	r.SetService(svc("default", "empty", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone}))
	r.SetService(svc("default", "out", v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "www.example.org"}))
	r.SetService(svc("default", "alias", v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"}))
	r.SetService(svc("default", "loop", v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "loop.default.svc.cluster.local"}))
	return r
}

// show is a reply as one line, without owners, TTLs and the order of records.
func show(reply reply) string {
	if !reply.Mine {
		return "forward"
	}
	out := []string{}
	for _, rr := range reply.Answer {
		out = append(out, mdns.TypeToString[rr.Header().Rrtype]+" "+strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(out)
	if len(reply.Ns) > 0 {
		out = append(out, "soa "+reply.Ns[0].Header().Name)
	}
	if len(reply.Extra) > 0 {
		out = append(out, fmt.Sprintf("glue %d", len(reply.Extra)))
	}
	if reply.Chase != "" {
		out = append(out, "chase "+reply.Chase)
	}
	return mdns.RcodeToString[reply.Rcode] + ": " + strings.Join(out, "; ")
}

func TestAnswer(t *testing.T) {
	const z = ".cluster.local."
	nodata, nxdomain := "NOERROR: soa cluster.local.", "NXDOMAIN: soa cluster.local."
	r := example()
	for _, c := range []struct {
		name string
		kind uint16
		want string
	}{
		{"web.default.svc" + z, mdns.TypeA, "NOERROR: A 10.96.0.20"},
		{"WEB.Default.svc" + z, mdns.TypeA, "NOERROR: A 10.96.0.20"},
		{"web.default.svc" + z, mdns.TypeAAAA, "NOERROR: AAAA fd00::20"},
		{"web.default.svc" + z, mdns.TypeMX, nodata},
		{"_http._tcp.web.default.svc" + z, mdns.TypeSRV, "NOERROR: SRV 0 100 80 web.default.svc.cluster.local.; glue 2"},
		{"_http._udp.web.default.svc" + z, mdns.TypeSRV, nxdomain},
		{"_http._tcp.web.default.svc" + z, mdns.TypeA, nodata},
		{"_tcp.web.default.svc" + z, mdns.TypeA, nodata},
		{"10-244-0-9.web.default.svc" + z, mdns.TypeA, "NOERROR: A 10.244.0.9"},
		{"db.default.svc" + z, mdns.TypeA, "NOERROR: A 10.244.0.5; A 10.244.0.6"},
		{"db.default.svc" + z, mdns.TypeAAAA, nodata},
		{"db-0.db.default.svc" + z, mdns.TypeA, "NOERROR: A 10.244.0.5"},
		{"db-0.db.default.svc" + z, mdns.TypeAAAA, nodata},
		{"db-2.db.default.svc" + z, mdns.TypeA, nxdomain},
		{"10-244-0-6.db.default.svc" + z, mdns.TypeA, "NOERROR: A 10.244.0.6"},
		{"_http._tcp.db.default.svc" + z, mdns.TypeSRV,
			"NOERROR: SRV 0 50 8080 10-244-0-6.db.default.svc.cluster.local.; SRV 0 50 8080 db-0.db.default.svc.cluster.local.; glue 2"},
		{"empty.default.svc" + z, mdns.TypeA, nxdomain},
		{"_http._tcp.empty.default.svc" + z, mdns.TypeSRV, nxdomain},
		{"out.default.svc" + z, mdns.TypeA, "NOERROR: CNAME www.example.org.; chase www.example.org."},
		{"alias.default.svc" + z, mdns.TypeA, "NOERROR: A 10.96.0.20; CNAME web.default.svc.cluster.local."},
		{"below.out.default.svc" + z, mdns.TypeA, nxdomain},
		{"none.default.svc" + z, mdns.TypeA, nxdomain},
		{"default.svc" + z, mdns.TypeA, nodata},
		{"nowhere.svc" + z, mdns.TypeA, nxdomain},
		{"svc" + z, mdns.TypeA, nodata},
		{"cluster.local.", mdns.TypeA, nodata},
		{"cluster.local.", mdns.TypeNS, "NOERROR: NS ns.dns.cluster.local.; glue 1"},
		{"ns.dns" + z, mdns.TypeA, "NOERROR: A 10.96.0.10"},
		{"dns-version" + z, mdns.TypeTXT, `NOERROR: TXT "1.1.0"`},
		{"1-2-3-4.default.pod" + z, mdns.TypeA, "NOERROR: A 1.2.3.4"},
		{"fd00--1.default.pod" + z, mdns.TypeAAAA, "NOERROR: AAAA fd00::1"},
		{"nonsense.default.pod" + z, mdns.TypeA, nxdomain},
		{"www.example.org.default.svc" + z, mdns.TypeA, nxdomain}, // a search step of ndots:5
		{"20.0.96.10.in-addr.arpa.", mdns.TypePTR, "NOERROR: PTR web.default.svc.cluster.local."},
		{"20.0.96.10.in-addr.arpa.", mdns.TypeA, "NOERROR: soa 20.0.96.10.in-addr.arpa."},
		{"5.0.244.10.in-addr.arpa.", mdns.TypePTR, "NOERROR: PTR db-0.db.default.svc.cluster.local."},
		{"9.0.244.10.in-addr.arpa.", mdns.TypePTR, "forward"},
		{"0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", mdns.TypePTR,
			"NOERROR: PTR web.default.svc.cluster.local."},
		{"www.example.org.", mdns.TypeA, "forward"},
		{"notcluster.local.", mdns.TypeA, "forward"},
	} {
		if got := show(r.Answer(mdns.Question{Name: c.name, Qtype: c.kind, Qclass: mdns.ClassINET})); got != c.want {
			t.Errorf("%s %s:\n got %s\nwant %s", c.name, mdns.TypeToString[c.kind], got, c.want)
		}
	}
	if got := r.Answer(mdns.Question{Name: "loop.default.svc.cluster.local.", Qtype: mdns.TypeA,
		Qclass: 1}); got.Rcode != mdns.RcodeServerFailure {
		t.Errorf("a loop of external names: %s", show(got))
	}
}

// TestRandomHistory compares records that lived through a random history with
// records made from scratch of what is left, and their indexes too.
func TestRandomHistory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	r := newRecords("cluster.local", false)
	services, sls := map[string]*v1.Service{}, map[string]*discovery.EndpointSlice{}
	for step := range 3000 {
		name, id := fmt.Sprint("s", rnd.IntN(4)), fmt.Sprint("e", rnd.IntN(8))
		switch rnd.IntN(4) {
		case 0:
			ip := []string{v1.ClusterIPNone, "10.96.0." + fmt.Sprint(1+rnd.IntN(5))}[rnd.IntN(2)]
			services[name] = svc("ns", name, v1.ServiceSpec{ClusterIP: ip, Ports: http80})
			r.SetService(services[name])
		case 1:
			delete(services, name)
			r.DeleteService("ns", name)
		case 2:
			var eps []string
			for range rnd.IntN(4) {
				eps = append(eps, []string{"", "!", "h="}[rnd.IntN(3)]+"10.0.0."+fmt.Sprint(rnd.IntN(6)))
			}
			sls[id] = slice("ns", id, name, eps...)
			r.SetSlice(sls[id])
		case 3:
			delete(sls, id)
			r.DeleteSlice("ns", id)
		}
		fresh := newRecords("cluster.local", false)
		for _, s := range services {
			fresh.SetService(s)
		}
		for _, s := range sls {
			fresh.SetSlice(s)
		}
		if len(r.byIP) != len(fresh.byIP) || len(r.endpointIPs) != len(fresh.endpointIPs) || len(r.services) != len(fresh.services) {
			t.Fatalf("step %d: the indexes differ", step)
		}
		for i := range 6 {
			for _, q := range []mdns.Question{
				{Name: fmt.Sprintf("s%d.ns.svc.cluster.local.", i), Qtype: mdns.TypeA},
				{Name: fmt.Sprintf("h.s%d.ns.svc.cluster.local.", i), Qtype: mdns.TypeA},
				{Name: fmt.Sprintf("s%d.ns.svc.cluster.local.", i), Qtype: mdns.TypeSRV},
				{Name: fmt.Sprintf("%d.0.0.10.in-addr.arpa.", i), Qtype: mdns.TypePTR},
				{Name: fmt.Sprintf("%d.0.96.10.in-addr.arpa.", i), Qtype: mdns.TypePTR},
			} {
				if got, want := show(r.Answer(q)), show(fresh.Answer(q)); got != want {
					t.Fatalf("step %d %s:\n got %s\nwant %s", step, q.Name, got, want)
				}
			}
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("_http._tcp.db.default.svc.cluster.local.", uint16(mdns.TypeSRV))
	f.Add("1.ip6.arpa.", uint16(mdns.TypePTR))
	r := example()
	f.Fuzz(func(t *testing.T, name string, kind uint16) {
		got := r.Answer(mdns.Question{Name: name, Qtype: kind, Qclass: mdns.ClassINET})
		if got.Mine && len(got.Answer) == 0 && len(got.Ns) == 0 {
			t.Errorf("%q: an empty answer without SOA", name)
		}
	})
}

func BenchmarkAnswer10000Services(b *testing.B) {
	r := newRecords("cluster.local", false)
	for i := range 10_000 {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		r.SetService(svc("default", fmt.Sprint("s", i), v1.ServiceSpec{ClusterIP: ip, Ports: http80}))
	}
	q := mdns.Question{Name: "s7777.default.svc.cluster.local.", Qtype: mdns.TypeA, Qclass: mdns.ClassINET}
	b.ReportAllocs()
	for b.Loop() {
		if len(r.Answer(q).Answer) != 1 {
			b.Fatal("no answer")
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "answers/s")
}
