package nodelink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// nodeAt is a node with one InternalIP and, if port is not 0, a port of its own.
func nodeAt(name, address string, port int32) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	return n
}

func one(n *v1.Node) func(context.Context, string) (*v1.Node, error) {
	return func(context.Context, string) (*v1.Node, error) { return n, nil }
}

// TestAddress: the first type that the node has an address of wins, in the
// order of the configuration.
func TestAddress(t *testing.T) {
	all := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "203.0.113.1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: v1.NodeInternalIP, Address: "192.0.2.2"}, {Type: v1.NodeHostName, Address: "n.example"}}
	internal := []v1.NodeAddressType{v1.NodeInternalIP}
	for _, c := range []struct {
		why   string
		given []v1.NodeAddress
		types []v1.NodeAddressType
		want  string
	}{
		{"host name first by default", all, DefaultAddressTypes, "n.example"},
		{"first of several of a type", all, internal, "192.0.2.1"},
		{"order is the configuration's", all, []v1.NodeAddressType{v1.NodeExternalIP, v1.NodeInternalIP}, "203.0.113.1"},
		{"next type if the first is missing", all[:2], DefaultAddressTypes, "192.0.2.1"},
		{"an empty address is none", []v1.NodeAddress{{Type: v1.NodeInternalIP}, {Type: v1.NodeInternalIP, Address: "192.0.2.2"}},
			internal, "192.0.2.2"},
		{"none of the wanted types", all[3:], internal, ""},
		{"no address", nil, DefaultAddressTypes, ""},
	} {
		node := &v1.Node{}
		node.Name, node.Status.Addresses = "n", c.given
		got, err := address(node, c.types)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", c.why, got, err, c.want)
		}
		if err != nil && (!apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "node n; want one of")) {
			t.Errorf("%s: %v must name the node and what is wanted, as a 503", c.why, err)
		}
	}
}

// TestFindMayReach: which agents a Finder leads to. Only the process's own
// agent may be on a loopback address, and only with its own name and port: a
// Node that claims to be there leads nowhere.
func TestFindMayReach(t *testing.T) {
	local := LocalAgent{Node: "self", Port: 10250}
	for _, c := range []struct {
		why    string
		node   *v1.Node
		config Config
		want   string // address and port, "" for refused
	}{
		{"default port", nodeAt("n", "192.0.2.1", 0), Config{}, "192.0.2.1:10250"},
		{"configured port", nodeAt("n", "192.0.2.1", 0), Config{Port: 7250}, "192.0.2.1:7250"},
		{"port of the Node", nodeAt("n", "192.0.2.1", 9250), Config{Port: 7250}, "192.0.2.1:9250"},
		{"IPv6", nodeAt("n", "2001:db8::1", 0), Config{}, "[2001:db8::1]:10250"},
		{"own agent on loopback", nodeAt("self", "127.0.0.1", 10250), Config{Local: local}, "127.0.0.1:10250"},
		{"another node on loopback", nodeAt("n", "127.0.0.1", 10250), Config{Local: local}, ""},
		{"own name, another port", nodeAt("self", "127.0.0.1", 2379), Config{Local: local}, ""},
		{"no local agent", nodeAt("", "127.0.0.1", 0), Config{}, ""},
		{"loopback allowed", nodeAt("n", "127.0.0.1", 0), Config{Loopback: true}, "127.0.0.1:10250"},
		{"metadata although loopback is allowed", nodeAt("n", "169.254.169.254", 0), Config{Loopback: true, Local: local}, ""},
	} {
		c.config.Nodes = one(c.node)
		link, err := New(c.config).Find(t.Context(), c.node.Name)
		if c.want == "" {
			if !apierrors.IsBadRequest(err) {
				t.Errorf("%s: %+v, %v; want a refusal", c.why, link, err)
			}
			continue
		}
		if err != nil || link.URL("/x", url.Values{"a": {"b"}}).String() != "https://"+c.want+"/x?a=b" {
			t.Errorf("%s: %+v, %v; want %s", c.why, link, err, c.want)
		}
	}
	gone := apierrors.NewNotFound(v1.Resource("nodes"), "n")
	f := New(Config{Nodes: func(context.Context, string) (*v1.Node, error) { return nil, gone }})
	if _, err := f.Find(t.Context(), "n"); !errors.Is(err, gone) {
		t.Errorf("a node that is not there: %v", err)
	}
}

// TestNamesThatDoNotResolve: such a name is the client's error, and says what
// was resolved.
func TestNamesThatDoNotResolve(t *testing.T) {
	node := &v1.Node{}
	node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n.example"}}
	for why, r := range map[string]Resolver{
		"no addresses": answers(nil),
		"no such host": func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") },
	} {
		_, err := New(Config{Nodes: one(node), Resolve: r}).Find(t.Context(), "n")
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `"n.example": `+why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// TestTransportsOfNodes: a node keeps its transports while it is at the same
// address, and shares them with no other node.
func TestTransportsOfNodes(t *testing.T) {
	now := nodeAt("", "192.0.2.1", 0)
	f := New(Config{Nodes: func(context.Context, string) (*v1.Node, error) { return now, nil },
		TLS: &tls.Config{ServerName: "never"}, AddressTypes: []v1.NodeAddressType{v1.NodeInternalIP}}).(*finder)
	find := func(name string) http.RoundTripper {
		t.Helper()
		link, err := f.Find(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return link.Transport
	}
	a := find("a")
	if find("a") != a {
		t.Error("the second request makes another transport: each request costs a handshake")
	}
	if find("b") == a {
		t.Error("two nodes that claim one address share connections")
	}
	now = nodeAt("", "192.0.2.2", 0)
	if find("a") == a {
		t.Error("a node that moved keeps connections to its old address")
	}
	for i := range maxTransports {
		f.transports[fmt.Sprint(i)] = f.transports["b"]
	}
	find("c")
	if len(f.transports) != 1 {
		t.Errorf("%d transports are kept beyond the bound", len(f.transports))
	}
}

// TestAgentsCertificate: what a link's secure transport accepts and the
// insecure one does not ask.
func TestAgentsCertificate(t *testing.T) {
	peer := func(name string, groups ...string) tls.ConnectionState {
		return tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: name, Organization: groups}}}}
	}
	for _, c := range []struct {
		why  string
		peer tls.ConnectionState
		want bool
	}{
		{"the node's own", peer("system:node:n", "system:nodes"), true},
		{"another node's", peer("system:node:m", "system:nodes"), false},
		{"no group", peer("system:node:n"), false},
		{"another group", peer("system:node:n", "system:masters"), false},
		{"one group more", peer("system:node:n", "system:nodes", "system:masters"), false},
		{"the bare name", peer("n", "system:nodes"), false},
		{"no certificate", tls.ConnectionState{}, false},
	} {
		if err := isNode("n")(c.peer); (err == nil) != c.want {
			t.Errorf("%s: %v", c.why, err)
		}
	}
	f := New(Config{TLS: &tls.Config{}}).(*finder)
	named, numbered := f.of("n", "n.example"), f.of("m", "192.0.2.1")
	if s := named.secure.TLSClientConfig; s.InsecureSkipVerify || s.VerifyConnection == nil || s.ServerName != "n.example" {
		t.Errorf("secure transport of a name: %+v", s)
	}
	if s := numbered.secure.TLSClientConfig; s.ServerName != "" {
		t.Errorf("secure transport of an address verifies the name %q", s.ServerName)
	}
	if s := named.insecure.TLSClientConfig; !s.InsecureSkipVerify || s.VerifyConnection != nil || f.TLS.InsecureSkipVerify {
		t.Errorf("insecure transport: %+v, and the configuration it came from: %+v", s, f.TLS)
	}
	if s := New(Config{}).(*finder).of("n", "192.0.2.1").secure.TLSClientConfig; !s.InsecureSkipVerify {
		t.Error("without a CA nothing can be verified")
	}
}

// TestMayCreate: a websocket's GET takes the right to create as well
// (kubernetes/kubernetes#133515).
func TestMayCreate(t *testing.T) {
	answer := func(d authorizer.Decision, reason string, err error) authorizer.AuthorizerFunc {
		return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetVerb() != "create" || a.GetSubresource() != "exec" || a.GetUser().GetName() != "jane" {
				return authorizer.DecisionDeny, "asked for " + a.GetVerb() + " " + a.GetSubresource(), nil
			}
			return d, reason, err
		}
	}
	ask := func(verb string) context.Context {
		ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"})
		return request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: verb, Resource: "pods",
			Subresource: "exec", Namespace: "ns", Name: "p"})
	}
	for _, c := range []struct {
		why  string
		verb string
		auth authorizer.AuthorizerFunc
		want string // part of the error; "" for allowed
	}{
		{"POST was authorized already", "create", answer(authorizer.DecisionDeny, "", nil), ""},
		{"may create", "get", answer(authorizer.DecisionAllow, "", nil), ""},
		{"no opinion", "get", answer(authorizer.DecisionNoOpinion, "", nil),
			`User "jane" cannot create resource "pods/exec" in API group "" in the namespace "ns"`},
		{"denied with a reason", "get", answer(authorizer.DecisionDeny, "not today", nil), "beside get: not today"},
		{"authorizer fails", "get", answer(authorizer.DecisionNoOpinion, "", errors.New("webhook is down")), "webhook is down"},
	} {
		err := MayCreate(ask(c.verb), c.auth)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.why, err, c.want)
		}
		if err != nil && apierrors.IsForbidden(err) == strings.Contains(c.want, "webhook") {
			t.Errorf("%s: %v: a refusal is a 403, a failure is not", c.why, err)
		}
	}
	if err := MayCreate(t.Context(), answer(authorizer.DecisionAllow, "", nil)); !apierrors.IsInternalError(err) {
		t.Errorf("a context without a request: %v", err)
	}
}
