// Package certificate approves and signs the certificate requests of nodes,
// and signs for the built-in signers.
package certificate

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	certv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
)

const (
	nodePrefix = "system:node:"
	nodeGroup  = "system:nodes"
)

// ask is what has to be asked before a request may be approved.
type ask string

// The answers of Recognize.
const (
	// NotOurs: a human decides.
	NotOurs ask = ""
	// NodeClient: may the requestor create certificates for any node?
	NodeClient ask = "nodeclient"
	// SelfNodeClient: may the node renew its own?
	SelfNodeClient ask = "selfnodeclient"
	// NodeServing: does the Node have the names and addresses asked for?
	NodeServing ask = "serving"
)

// Approval messages, as users see them in `kubectl describe csr`.
var messages = map[ask]string{
	NodeClient:     "Auto approving kubelet client certificate after SubjectAccessReview.",
	SelfNodeClient: "Auto approving self kubelet client certificate after SubjectAccessReview.",
	NodeServing:    "Auto approving kubelet serving certificate: its names and addresses are the Node's own.",
}

// parse reads the PEM-encoded request.
func parse(csr *certv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("spec.request: want one PEM block of type CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	return req, nil
}

// recognize says what must hold for a node's request to be approved.
func recognize(csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest) ask {
	switch csr.Spec.SignerName {
	case certv1.KubeAPIServerClientKubeletSignerName:
		if validKubeletClient(csr.Spec.Usages, req) != nil {
			return NotOurs
		}
		if csr.Spec.Username == req.Subject.CommonName {
			return SelfNodeClient
		}
		return NodeClient
	case certv1.KubeletServingSignerName:
		// A node may only ask for itself.
		if validKubeletServing(csr.Spec.Usages, req) != nil || csr.Spec.Username != req.Subject.CommonName ||
			!slices.Contains(csr.Spec.Groups, nodeGroup) {
			return NotOurs
		}
		return NodeServing
	}
	return NotOurs
}

// servingMatches checks that every name and address asked for is one the Node
// has in its status.
func servingMatches(req *x509.CertificateRequest, node *v1.Node) error {
	names, addrs := map[string]bool{}, map[string]bool{}
	for _, a := range node.Status.Addresses {
		switch a.Type {
		case v1.NodeHostName, v1.NodeInternalDNS, v1.NodeExternalDNS:
			names[strings.ToLower(a.Address)] = true
		}
		if ip := net.ParseIP(a.Address); ip != nil {
			addrs[ip.String()] = true
		}
	}
	for _, n := range req.DNSNames {
		if !names[strings.ToLower(n)] {
			return fmt.Errorf("DNS name %q is not among the addresses in the Node's status", n)
		}
	}
	for _, ip := range req.IPAddresses {
		if !addrs[ip.String()] {
			return fmt.Errorf("IP address %s is not among the addresses in the Node's status", ip)
		}
	}
	return nil
}

func isNode(req *x509.CertificateRequest) error {
	if !slices.Equal(req.Subject.Organization, []string{nodeGroup}) {
		return fmt.Errorf("subject organization is not %s", nodeGroup)
	}
	if name, ok := strings.CutPrefix(req.Subject.CommonName, nodePrefix); !ok || name == "" {
		return fmt.Errorf("subject common name does not begin with %s", nodePrefix)
	}
	return nil
}

func validKubeletClient(usages []certv1.KeyUsage, req *x509.CertificateRequest) error {
	if err := isNode(req); err != nil {
		return err
	}
	if len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs) > 0 {
		return errors.New("subject alternative names are not allowed")
	}
	return onlyUsages(usages, certv1.UsageClientAuth)
}

func validKubeletServing(usages []certv1.KeyUsage, req *x509.CertificateRequest) error {
	if err := isNode(req); err != nil {
		return err
	}
	if len(req.EmailAddresses)+len(req.URIs) > 0 {
		return errors.New("only DNS and IP subject alternative names are allowed")
	}
	if len(req.DNSNames)+len(req.IPAddresses) == 0 {
		return errors.New("at least one DNS or IP subject alternative name is required")
	}
	return onlyUsages(usages, certv1.UsageServerAuth)
}

// onlyUsages requires one usage and allows the two that every key has.
func onlyUsages(usages []certv1.KeyUsage, need certv1.KeyUsage) error {
	if !slices.Contains(usages, need) || !slices.Contains(usages, certv1.UsageDigitalSignature) {
		return fmt.Errorf("usages must include %q and %q", certv1.UsageDigitalSignature, need)
	}
	for _, u := range usages {
		if u != need && u != certv1.UsageDigitalSignature && u != certv1.UsageKeyEncipherment {
			return fmt.Errorf("usage %q is not allowed; allowed are %q, %q, %q", u, certv1.UsageDigitalSignature,
				certv1.UsageKeyEncipherment, need)
		}
	}
	return nil
}
