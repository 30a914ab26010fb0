package apitest

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"testing"
)

// AgentCA signs what agents of nodes serve with.
type AgentCA struct{ a *testCA }

// NewAgentCA makes a throwaway CA for agents' serving certificates.
func NewAgentCA(t testing.TB) *AgentCA {
	t.Helper()
	a := &testCA{dir: t.TempDir(), key: newKey(t)}
	a.cert = a.issue(t, "agent-ca", a.key, &x509.Certificate{
		Subject: pkix.Name{CommonName: "apitest-agents"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	return &AgentCA{a}
}

// File is the CA's certificate, for api.PKI.KubeletCA.
func (c *AgentCA) File() string { return c.a.file("agent-ca.crt") }

// Serving is what the agent of a node serves with, valid for the given names
// and addresses.
func (c *AgentCA) Serving(t testing.TB, node string, hosts ...string) tls.Certificate {
	t.Helper()
	return c.issue(t, "system:node:"+node, []string{"system:nodes"}, hosts)
}

// Other is a serving certificate of that CA that is not a node's.
func (c *AgentCA) Other(t testing.TB, name string, hosts ...string) tls.Certificate {
	t.Helper()
	return c.issue(t, name, nil, hosts)
}

func (c *AgentCA) issue(t testing.TB, name string, groups, hosts []string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: name, Organization: groups},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	key := newKey(t)
	cert := c.a.issue(t, "serving", key, template)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}
