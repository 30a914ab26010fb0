// Package nodelink tells the API server how to reach a node's agent: the address and port the Node object publishes,
// and the transport that carries the API server's client certificate.
package nodelink

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// DefaultPort is where an agent listens that does not say otherwise in its Node status.
const DefaultPort = 10250

// DefaultAddressTypes is the order in which the addresses of a node are tried.
var DefaultAddressTypes = []v1.NodeAddressType{v1.NodeHostName, v1.NodeInternalDNS, v1.NodeInternalIP, v1.NodeExternalDNS, v1.NodeExternalIP}

// Finder finds the agent of a node by the node's name.
type Finder interface {
	Find(ctx context.Context, node string) (*Link, error)
}

// Link is a way to one agent.
type Link struct {
	Scheme, Host, Port string
	// Transport verifies the agent against the configured CA and authenticates as the API server. Insecure does the
	// latter only; it serves log requests that ask for insecureSkipTLSVerifyBackend.
	Transport, Insecure http.RoundTripper
}

// URL returns the address of a path on the agent.
func (l *Link) URL(path string, query url.Values) *url.URL {
	return &url.URL{Scheme: l.Scheme, Host: net.JoinHostPort(l.Host, l.Port), Path: path, RawQuery: query.Encode()}
}

// Config says how agents are reached.
type Config struct {
	// Nodes reads a Node by name, live.
	Nodes func(ctx context.Context, name string) (*v1.Node, error)
	// TLS holds the CA that signs agents' serving certificates and the API server's client certificate. Nil means
	// the agents are not verified and see no certificate. It is cloned, never changed.
	TLS *tls.Config
	// AddressTypes is the order of preference; nil means DefaultAddressTypes. A cluster without DNS for node names
	// puts InternalIP first.
	AddressTypes []v1.NodeAddressType
	// Port overrides DefaultPort for nodes that publish none.
	Port int
	// Dial replaces the dialer of all links; nil means a plain one.
	Dial utilnet.DialFunc
}

// New returns a Finder whose links share two transports, and so their connections.
func New(c Config) Finder {
	if c.AddressTypes == nil {
		c.AddressTypes = DefaultAddressTypes
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	secure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // no CA configured: documented on Config.TLS
	if c.TLS != nil {
		secure = c.TLS.Clone()
	}
	insecure := secure.Clone()
	insecure.InsecureSkipVerify = true
	return &finder{Config: c, secure: transport(secure, c.Dial), insecure: transport(insecure, c.Dial)}
}

type finder struct {
	Config
	secure, insecure http.RoundTripper
}

func (f *finder) Find(ctx context.Context, name string) (*Link, error) {
	node, err := f.Nodes(ctx, name)
	if err != nil {
		return nil, err
	}
	host, err := Address(node, f.AddressTypes)
	if err != nil {
		return nil, err
	}
	port := f.Port
	if p := node.Status.DaemonEndpoints.KubeletEndpoint.Port; p > 0 {
		port = int(p)
	}
	return &Link{Scheme: "https", Host: host, Port: strconv.Itoa(port), Transport: f.secure, Insecure: f.insecure}, nil
}

// Address picks the first address of the first type that the node has.
func Address(node *v1.Node, types []v1.NodeAddressType) (string, error) {
	for _, t := range types {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no preferred addresses found on node %s; want one of %v", node.Name, types))
}

// InsecureTransport reaches things that prove nothing about themselves, such as the pods behind pods/proxy.
func InsecureTransport() http.RoundTripper {
	return transport(&tls.Config{InsecureSkipVerify: true}, nil) //nolint:gosec // pods have no certificate to verify
}

// transport keeps HTTP/1.1: the upgrades of exec, attach and portforward need it.
func transport(c *tls.Config, dial utilnet.DialFunc) http.RoundTripper {
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
