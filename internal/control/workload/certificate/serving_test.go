package certificate

import (
	"net/netip"
	"strings"
	"testing"

	certv1 "k8s.io/api/certificates/v1"

	"github.com/berth-dev/berth/internal/kube"
)

func host(node, text string) Host { return *hostOf(node, text) }

// TestServingRules walks through what agents' serving certificates may name (finding 3).
func TestServingRules(t *testing.T) {
	rules := ServingRules{ClusterDomain: "cluster.local", ServerNames: []string{"api.example"},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}}
	others := []Host{host("b", "b b.example 192.0.2.2 2001:db8::2")}
	own := host("a", "a a.example 192.0.2.1")
	for _, c := range []struct {
		why    string
		asked  string
		source string
		bound  *Host
		refuse string // "": no refusal
		wait   string // "": proven
	}{
		{"joins with what it has", "a a.example 192.0.2.1", "192.0.2.1", nil, "", ""},
		{"joins on the server's machine", "a 192.0.2.1", "127.0.0.1", nil, "", ""},
		{"both families, one proven", "192.0.2.1 2001:db8::1", "192.0.2.1", nil, "", ""},
		{"joins through a load balancer", "192.0.2.1", "192.0.2.9", nil, "", "load balancer or NAT"},
		{"source not known", "192.0.2.1", "", nil, "", "not known"},
		{"renews", "a a.example 192.0.2.1", "192.0.2.9", &own, "", ""},
		{"has a new address", "a 192.0.2.5", "192.0.2.5", &own, "", ""},
		{"claims a new address", "a 192.0.2.1 192.0.2.5", "192.0.2.1", &own, "", "nor where the request came from"},
		{"claims a new name", "new.example 192.0.2.1", "192.0.2.1", &own, "", "not what node a had"},
		{"API Service", "kubernetes.default.svc 192.0.2.1", "192.0.2.1", nil, "cluster's Services", ""},
		{"short API Service", "kubernetes 192.0.2.1", "192.0.2.1", nil, "cluster's Services", ""},
		{"any Service", "x.y.svc.cluster.local. 192.0.2.1", "192.0.2.1", nil, "cluster's Services", ""},
		{"API server's name", "api.example 192.0.2.1", "192.0.2.1", nil, "API server's", ""},
		{"wildcard", "*.example 192.0.2.1", "192.0.2.1", nil, "wildcard", ""},
		{"localhost", "localhost 192.0.2.1", "192.0.2.1", nil, "every machine", ""},
		{"Service address", "10.96.0.1", "10.96.0.1", nil, "Service CIDR", ""},
		{"v6 Service address", "fd00:96::1", "fd00:96::1", nil, "Service CIDR", ""},
		{"loopback", "127.0.0.1", "127.0.0.1", nil, "loopback", ""},
		{"metadata", "169.254.169.254", "169.254.169.254", nil, "link-local", ""},
		{"another node's address", "192.0.2.2", "192.0.2.2", nil, "node b's", ""},
		{"another node's name", "b 192.0.2.1", "192.0.2.1", nil, "node b's", ""},
	} {
		asked := host("a", c.asked)
		source, _ := netip.ParseAddr(c.source)
		check(t, c.why+": refused", rules.Refuse(asked, c.bound, others), c.refuse)
		check(t, c.why+": proven", proven(asked, source, c.bound), c.wait)
	}
	// A node that claims another's address does not keep it from what it was bound to.
	thief := []Host{held(host("b", "b 192.0.2.1 192.0.2.2"), nil)}
	check(t, "own address, claimed by another", rules.Refuse(host("a", "192.0.2.1"), &own, thief), "")
	bound := host("b", "192.0.2.2")
	check(t, "claimed beyond a binding", rules.Refuse(host("a", "192.0.2.1"), nil, []Host{held(thief[0], &bound)}), "")
	check(t, "bound and claimed", rules.Refuse(host("a", "192.0.2.2"), nil, []Host{held(thief[0], &bound)}), "node b's")
}

func check(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestSource(t *testing.T) {
	for text, want := range map[string]string{"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "fe80::1%eth0": "fe80::1",
		"x": "invalid IP"} {
		csr := &certv1.CertificateSigningRequest{}
		csr.Spec.Extra = map[string]certv1.ExtraValue{kube.SourceKey: {text}}
		if got := source(csr); got.String() != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	if source(&certv1.CertificateSigningRequest{}).IsValid() {
		t.Error("a request without a source has one")
	}
}
