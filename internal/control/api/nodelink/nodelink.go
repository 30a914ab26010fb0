// Package nodelink tells the API server how to reach a node's agent: the
// address and port the Node object publishes, checked, and the transport that
// carries the API server's client certificate and knows the agent by its own.
package nodelink

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// DefaultPort is where an agent listens that does not say otherwise in its Node status.
const DefaultPort = 10250

// maxTransports bounds how many nodes' transports are kept. Beyond it all of
// them are made again, which costs each node one TLS handshake.
const maxTransports = 10_000

// DefaultAddressTypes is the order in which the addresses of a node are tried.
var DefaultAddressTypes = []v1.NodeAddressType{v1.NodeHostName, v1.NodeInternalDNS, v1.NodeInternalIP, v1.NodeExternalDNS,
	v1.NodeExternalIP}

// Finder finds the agent of a node by the node's name.
type Finder interface {
	// Find returns the way to the agent, or an error if the node publishes no
	// address that the API server may dial.
	Find(ctx context.Context, node string) (*Link, error)
}

// Link is a way to one agent. Host is the IP address that was checked: anyone
// who dials Host dials what was checked, whatever the node's name resolves to
// by then.
type Link struct {
	Scheme, Host, Port string
	// Transport verifies the agent against the configured CA and the node's
	// name, and authenticates as the API server. Insecure does the latter only;
	// it serves log requests that ask for insecureSkipTLSVerifyBackend.
	Transport, Insecure http.RoundTripper
}

// URL returns the address of a path on the agent.
func (l *Link) URL(path string, query url.Values) *url.URL {
	return &url.URL{Scheme: l.Scheme, Host: net.JoinHostPort(l.Host, l.Port), Path: path, RawQuery: query.Encode()}
}

// LocalAgent is the agent that runs in the API server's own process. What it
// says comes from the process's own configuration, never from the API: a node
// cannot claim to be it.
type LocalAgent struct {
	Node string
	Port int
}

// Config says how agents are reached.
type Config struct {
	// Nodes reads a Node by name, live.
	Nodes func(ctx context.Context, name string) (*v1.Node, error)
	// TLS holds the CA that signs agents' serving certificates and the API
	// server's client certificate. Nil means the agents are not verified and
	// see no certificate. It is cloned, never changed.
	TLS *tls.Config
	// AddressTypes is the order of preference; nil means DefaultAddressTypes. A
	// cluster without DNS for node names puts InternalIP first.
	AddressTypes []v1.NodeAddressType
	// Port overrides DefaultPort for nodes that publish none.
	Port int
	// Dial replaces the dialer of all links; nil means a plain one.
	Dial utilnet.DialFunc
	// Resolve replaces the resolver of names in Node addresses; nil means the host's.
	Resolve Resolver
	// Loopback allows agents on loopback addresses (tests).
	Loopback bool
	// Local is the one node that may be on a loopback address, with the one
	// port it may have there; zero: none.
	Local LocalAgent
}

// New returns a Finder. Each node has transports of its own: a connection that
// was verified as one node's is never used for another that claims the same
// address.
func New(c Config) Finder {
	if c.AddressTypes == nil {
		c.AddressTypes = DefaultAddressTypes
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	return &finder{Config: c, transports: map[string]*transports{}}
}

type finder struct {
	Config
	mu         sync.Mutex
	transports map[string]*transports // by node name
}

// transports of one node; name is what its certificate must be valid for.
type transports struct {
	name             string
	secure, insecure *http.Transport
}

func (f *finder) Find(ctx context.Context, name string) (*Link, error) {
	node, err := f.Nodes(ctx, name)
	if err != nil {
		return nil, err
	}
	host, err := address(node, f.AddressTypes)
	if err != nil {
		return nil, err
	}
	port := f.Port
	if p := node.Status.DaemonEndpoints.KubeletEndpoint.Port; p > 0 {
		port = int(p)
	}
	ip, err := resolve(ctx, f.Resolve, host, f.mayLoopback(name, port))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("node %s: %v", name, err))
	}
	t := f.of(name, host)
	return &Link{Scheme: "https", Host: ip.String(), Port: strconv.Itoa(port), Transport: t.secure, Insecure: t.insecure}, nil
}

// mayLoopback says whether a node's agent may be on a loopback address.
func (f *finder) mayLoopback(node string, port int) bool {
	return f.Loopback || f.Local.Node != "" && f.Local == LocalAgent{Node: node, Port: port}
}

// of returns the transports of a node whose address in the Node object is host.
func (f *finder) of(node, host string) *transports {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.transports[node]; t != nil {
		if t.name == host {
			return t
		}
		t.close()
	} else if len(f.transports) >= maxTransports {
		for _, old := range f.transports {
			old.close()
		}
		clear(f.transports)
	}
	secure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // no CA configured: documented on Config.TLS
	if f.TLS != nil {
		secure = f.TLS.Clone()
		secure.VerifyConnection = isNode(node)
	}
	insecure := secure.Clone()
	insecure.InsecureSkipVerify, insecure.VerifyConnection = true, nil
	if _, err := netip.ParseAddr(host); err != nil {
		secure.ServerName = host // connections go to the address it resolved to
	}
	t := &transports{name: host, secure: transport(secure, f.Dial), insecure: transport(insecure, f.Dial)}
	f.transports[node] = t
	return t
}

func (t *transports) close() {
	t.secure.CloseIdleConnections()
	t.insecure.CloseIdleConnections()
}

// Who an agent's serving certificate is for:
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/
// (kubernetes.io/kubelet-serving).
const (
	nodeGroup  = "system:nodes"
	nodePrefix = "system:node:"
)

// isNode refuses a peer whose certificate is not of the named node's agent: the
// CA and the address alone would let any agent, and whatever else that CA
// signed, answer for any node.
func isNode(name string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return fmt.Errorf("the agent of node %s shows no certificate", name)
		}
		subject := s.PeerCertificates[0].Subject
		if len(subject.Organization) == 1 && subject.Organization[0] == nodeGroup && subject.CommonName == nodePrefix+name {
			return nil
		}
		return fmt.Errorf("node %s: the certificate at its address is for %q of organizations %q, want %q of %q: "+
			"the agent there must serve a certificate that signer kubernetes.io/kubelet-serving issued to this node (serverTLSBootstrap)",
			name, subject.CommonName, subject.Organization, nodePrefix+name, nodeGroup)
	}
}

// address picks the first address of the first type that the node has.
func address(node *v1.Node, types []v1.NodeAddressType) (string, error) {
	for _, t := range types {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no preferred addresses found on node %s; want one of %v", node.Name, types))
}

// InsecureTransport reaches things that prove nothing about themselves, such as
// the pods behind pods/proxy.
func InsecureTransport() http.RoundTripper {
	return transport(&tls.Config{InsecureSkipVerify: true}, nil) //nolint:gosec // pods have no certificate to verify
}

// transport keeps HTTP/1.1: the upgrades of exec, attach and portforward need it.
func transport(c *tls.Config, dial utilnet.DialFunc) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	c.NextProtos = []string{"http/1.1"}
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     c,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}
