package certificate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	certv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/kube"
)

// ServingRules say what an agent's serving certificate may name. A Node's
// status is no proof: the node writes it.
type ServingRules struct {
	// ClusterDomain and ServiceCIDRs are the cluster's, ServerNames those of
	// API servers: no one's agent has them.
	ClusterDomain string
	ServiceCIDRs  []netip.Prefix
	ServerNames   []string
	// Manual leaves every approval to people.
	Manual bool
}

// Host is what a node has: Names in lower case.
type Host struct {
	Node  string
	Names []string
	IPs   []netip.Addr
}

// asked is what a request names.
func asked(node string, req *x509.CertificateRequest) Host {
	h := Host{Node: node}
	for _, n := range req.DNSNames {
		h.Names = append(h.Names, strings.ToLower(n))
	}
	for _, ip := range req.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			h.IPs = append(h.IPs, addr.Unmap())
		}
	}
	return h
}

// claimed is what a Node says of itself.
func claimed(node *v1.Node) Host {
	h := Host{Node: node.Name, Names: []string{strings.ToLower(node.Name)}}
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			h.IPs = append(h.IPs, ip.Unmap())
		} else {
			h.Names = append(h.Names, strings.ToLower(a.Address))
		}
	}
	return h
}

// held is what a node has that others may not: what it says of itself, as far
// as it was found to be true before.
func held(claimed Host, bound *Host) Host {
	if bound == nil {
		return claimed
	}
	out := Host{Node: claimed.Node, Names: []string{strings.ToLower(claimed.Node)}}
	for _, n := range claimed.Names {
		if slices.Contains(bound.Names, n) {
			out.Names = append(out.Names, n)
		}
	}
	for _, ip := range claimed.IPs {
		if slices.Contains(bound.IPs, ip) {
			out.IPs = append(out.IPs, ip)
		}
	}
	return out
}

// Refuse says what in a request no agent of this name may ever have, anyone who
// approved it. bound may be nil.
func (r ServingRules) Refuse(asked Host, bound *Host, others []Host) error {
	for _, n := range asked.Names {
		if err := r.refuseName(asked.Node, n); err != nil {
			return err
		}
	}
	for _, ip := range asked.IPs {
		if err := r.refuseIP(ip); err != nil {
			return err
		}
	}
	for _, o := range others {
		for _, n := range asked.Names {
			if n != strings.ToLower(asked.Node) && slices.Contains(o.Names, n) && !bound.hasName(n) {
				return fmt.Errorf("DNS name %q is node %s's", n, o.Node)
			}
		}
		for _, ip := range asked.IPs {
			if slices.Contains(o.IPs, ip) && !bound.hasIP(ip) {
				return fmt.Errorf("IP address %s is node %s's", ip, o.Node)
			}
		}
	}
	return nil
}

func (r ServingRules) refuseName(node, name string) error {
	name = strings.TrimSuffix(name, ".")
	domain := strings.ToLower(r.ClusterDomain)
	switch {
	case strings.Contains(name, "*"):
		return fmt.Errorf("DNS name %q has a wildcard", name)
	case name != strings.ToLower(node) && slices.ContainsFunc(r.ServerNames, func(s string) bool { return strings.EqualFold(s, name) }):
		return fmt.Errorf("DNS name %q is the API server's", name)
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return fmt.Errorf("DNS name %q is every machine's own", name)
	case name == "kubernetes", name == "kubernetes.default", name == "svc", strings.HasSuffix(name, ".svc"),
		domain != "" && (name == domain || strings.HasSuffix(name, "."+domain)):
		return fmt.Errorf("DNS name %q is a name of the cluster's Services", name)
	}
	return nil
}

func (r ServingRules) refuseIP(ip netip.Addr) error {
	if !ip.IsGlobalUnicast() {
		return fmt.Errorf("IP address %s is a loopback, link-local or multicast address", ip)
	}
	for _, c := range r.ServiceCIDRs {
		if c.Contains(ip) {
			return fmt.Errorf("IP address %s is in the Service CIDR %s", ip, c)
		}
	}
	return nil
}

// proven says whether a request names only what the node was bound to when it
// joined, or the address that the request came from. A node without a binding
// is joining: it is bound to what it asks for if it has one of the addresses.
func proven(asked Host, source netip.Addr, bound *Host) error {
	const remedy = "approve it by hand if that is right (kubectl certificate approve), which also binds the node to it"
	if bound == nil {
		// A request from loopback comes from the API server's own machine.
		if source.IsLoopback() || slices.Contains(asked.IPs, source) {
			return nil
		}
		if !source.IsValid() {
			return errors.New("it is not known which address the request came from: " + remedy)
		}
		return fmt.Errorf("the request came from %s, which is none of the addresses %v it asks for (a load balancer or NAT in "+
			"between?): %s",
			source, asked.IPs, remedy)
	}
	for _, n := range asked.Names {
		if n != strings.ToLower(asked.Node) && !bound.hasName(n) {
			return fmt.Errorf("DNS name %q is not what node %s had when it joined: %s", n, asked.Node, remedy)
		}
	}
	for _, ip := range asked.IPs {
		if ip != source && !bound.hasIP(ip) {
			return fmt.Errorf("IP address %s is not what node %s had when it joined, nor where the request came from (%s): %s", ip,
				asked.Node, source, remedy)
		}
	}
	return nil
}

func (h *Host) hasName(name string) bool { return h != nil && slices.Contains(h.Names, name) }
func (h *Host) hasIP(ip netip.Addr) bool { return h != nil && slices.Contains(h.IPs, ip) }

// source is the address that a request came from, as the API server recorded
// it; invalid if it did not.
func source(csr *certv1.CertificateSigningRequest) netip.Addr {
	values := csr.Spec.Extra[kube.SourceKey]
	if len(values) != 1 {
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(values[0])
	if err != nil {
		return netip.Addr{}
	}
	return ip.Unmap().WithZone("")
}

// text and hostOf are a Host as words with blanks between.
func (h Host) text() string {
	words := slices.Clone(h.Names)
	for _, ip := range h.IPs {
		words = append(words, ip.String())
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " ")
}

func hostOf(node, text string) *Host {
	h := &Host{Node: node}
	for w := range strings.FieldsSeq(text) {
		if ip, err := netip.ParseAddr(w); err == nil {
			h.IPs = append(h.IPs, ip)
		} else if net.ParseIP(w) == nil {
			h.Names = append(h.Names, w)
		}
	}
	return h
}
