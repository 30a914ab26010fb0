package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func selfSignedCA(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder})
}

func request(t *testing.T, cn string, ips ...net.IP) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}, IPAddresses: ips}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestNodeCertificates asks as a node, and as an administrator for a node, and
// checks what is approved and signed, and what is not.
func TestNodeCertificates(t *testing.T) {
	c := newCluster(t, "n1")
	ask := func(name, signer, asUser string, usage certv1.KeyUsage, req []byte) {
		t.Helper()
		cfg := rest.CopyConfig(c.config)
		if asUser != "" {
			cfg.Impersonate = rest.ImpersonationConfig{UserName: asUser, Groups: []string{"system:nodes", "system:authenticated"}}
		}
		_, err := kubernetes.NewForConfigOrDie(cfg).CertificatesV1().CertificateSigningRequests().Create(c.ctx,
			&certv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certv1.CertificateSigningRequestSpec{Request: req, SignerName: signer,
					Usages: []certv1.KeyUsage{certv1.UsageDigitalSignature, usage}}}, metav1.CreateOptions{})
		c.must(err)
	}
	ask("boot", certv1.KubeAPIServerClientKubeletSignerName, "", certv1.UsageClientAuth, request(t, "system:node:n1"))
	ask("serve", certv1.KubeletServingSignerName, "system:node:n1", certv1.UsageServerAuth,
		request(t, "system:node:n1", net.ParseIP("10.9.0.1")))
	ask("liar", certv1.KubeletServingSignerName, "system:node:n1", certv1.UsageServerAuth,
		request(t, "system:node:n1", net.ParseIP("10.9.0.2")))
	api := c.client.CertificatesV1().CertificateSigningRequests()
	for _, name := range []string{"boot", "serve"} {
		c.until("signing "+name, func() string {
			csr, err := api.Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			if len(csr.Status.Certificate) == 0 {
				return "no certificate yet"
			}
			block, _ := pem.Decode(csr.Status.Certificate)
			cert, err := x509.ParseCertificate(block.Bytes)
			c.must(err)
			pool := x509.NewCertPool()
			ca := map[string][]byte{"boot": c.ca, "serve": c.agentCA}[name]
			pool.AppendCertsFromPEM(ca)
			if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if cert.Subject.CommonName != "system:node:n1" {
				t.Errorf("%s names %q", name, cert.Subject.CommonName)
			}
			return ""
		})
	}
	liar, err := api.Get(c.ctx, "liar", metav1.GetOptions{})
	c.must(err)
	if len(liar.Status.Conditions) != 0 {
		t.Errorf("a request for an address the Node does not have was decided: %+v", liar.Status.Conditions)
	}
}

// TestServingCertificatesAreWhatTheNodeHas is finding 3: a node's own words
// (its Node's status) do not get it a serving certificate for the API server, a
// Service, another node, or an address it did not have when it joined, and what
// agents serve with is not signed by the CA that pods know the API server by.
func TestServingCertificatesAreWhatTheNodeHas(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	nodes, api := c.client.CoreV1().Nodes(), c.client.CertificatesV1().CertificateSigningRequests()
	says := func(node string, addresses ...v1.NodeAddress) {
		t.Helper()
		n, err := nodes.Get(c.ctx, node, metav1.GetOptions{})
		c.must(err)
		n.Status.Addresses = addresses
		_, err = nodes.UpdateStatus(c.ctx, n, metav1.UpdateOptions{})
		c.must(err)
	}
	internal := func(ip string) v1.NodeAddress { return v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip} }
	dns := func(name string) v1.NodeAddress { return v1.NodeAddress{Type: v1.NodeInternalDNS, Address: name} }
	says("n2", internal("10.9.0.2"))
	ask := func(name string, approve bool, names []string, ips ...string) {
		t.Helper()
		cfg := rest.CopyConfig(c.config)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}}
		csr := &certv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certv1.CertificateSigningRequestSpec{
			Request: servingRequest(t, "system:node:n1", names, ips...), SignerName: certv1.KubeletServingSignerName,
			Usages: []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth},
			Extra:  map[string]certv1.ExtraValue{"berth.dev/source-address": {"10.0.0.1"}}, // a lie, which the server overwrites
		}}
		csr, err := kubernetes.NewForConfigOrDie(cfg).CertificatesV1().CertificateSigningRequests().Create(c.ctx, csr,
			metav1.CreateOptions{})
		c.must(err)
		if got := csr.Spec.Extra["berth.dev/source-address"]; len(got) != 1 || got[0] != "127.0.0.1" {
			t.Errorf("request %s came from %v, want 127.0.0.1", name, got)
		}
		if approve {
			csr.Status.Conditions = []certv1.CertificateSigningRequestCondition{{Type: certv1.CertificateApproved, Status: v1.ConditionTrue,
				Reason: "ByHand"}}
			_, err = api.UpdateApproval(c.ctx, name, csr, metav1.UpdateOptions{})
			c.must(err)
		}
	}
	signed := func(name string) {
		t.Helper()
		c.until("signing "+name, func() string {
			csr, err := api.Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			if len(csr.Status.Certificate) == 0 {
				return fmt.Sprintf("no certificate yet: %+v", csr.Status.Conditions)
			}
			block, _ := pem.Decode(csr.Status.Certificate)
			cert, err := x509.ParseCertificate(block.Bytes)
			c.must(err)
			published := x509.NewCertPool()
			published.AppendCertsFromPEM(c.ca)
			if _, err := cert.Verify(x509.VerifyOptions{Roots: published}); err == nil {
				t.Errorf("%s is valid to whoever knows the API server's CA", name)
			}
			return ""
		})
	}
	refused := func(name, why string) {
		t.Helper()
		c.until("refusing "+name, func() string {
			csr, err := api.Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			for _, cond := range csr.Status.Conditions {
				if cond.Type == certv1.CertificateFailed && strings.Contains(cond.Message, why) &&
					strings.Contains(cond.Message, "make a new CertificateSigningRequest") {
					return ""
				}
			}
			return fmt.Sprintf("not refused yet, want %q: %+v", why, csr.Status.Conditions)
		})
	}
	// Joining: bound to what it has.
	says("n1", internal("10.9.0.1"), dns("n1.example"))
	ask("join", false, []string{"n1.example"}, "10.9.0.1")
	signed("join")
	// What it claims later is not approved: each of these waits for a person,
	// who cannot make the signer sign the worst.
	says("n1", internal("10.9.0.1"), internal("10.9.0.7"), internal("10.0.0.1"), internal("10.9.0.2"), dns("kubernetes.default.svc"),
		dns("n1.example"))
	ask("pending", false, []string{"n1.example"}, "10.9.0.7")
	ask("service-name", true, []string{"kubernetes.default.svc"}, "10.9.0.1")
	refused("service-name", "cluster's Services")
	ask("service-address", true, nil, "10.0.0.1")
	refused("service-address", "Service CIDR")
	ask("other-node", true, nil, "10.9.0.2")
	refused("other-node", "is node n2's")
	// A person may allow a new address, and then it is bound: the next request
	// needs no one.
	ask("by-hand", true, nil, "10.9.0.1", "10.9.0.7")
	signed("by-hand")
	ask("renewal", false, []string{"n1.example"}, "10.9.0.1", "10.9.0.7")
	signed("renewal")
}

func servingRequest(t *testing.T, cn string, names []string, ips ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}, DNSNames: names}
	for _, ip := range ips {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestLivingNodesNameIsNotGivenAway is finding 25: a bootstrap token does not
// get a certificate for a node that is alive; for one that is gone, or silent,
// it does.
func TestLivingNodesNameIsNotGivenAway(t *testing.T) {
	c := newCluster(t, "alive", "silent")
	now := time.Now()
	for name, renewed := range map[string]time.Time{"alive": now.Add(time.Hour), "silent": now.Add(-time.Hour)} {
		at := metav1.NewMicroTime(renewed)
		_, err := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(c.ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &at,
				LeaseDurationSeconds: ptr.To(int32(40))}}, metav1.CreateOptions{})
		c.must(err)
	}
	api := c.client.CertificatesV1().CertificateSigningRequests()
	for _, name := range []string{"alive", "silent", "new"} {
		_, err := api.Create(c.ctx, &certv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certv1.CertificateSigningRequestSpec{
				Request: request(t, "system:node:"+name), SignerName: certv1.KubeAPIServerClientKubeletSignerName,
				Usages: []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageClientAuth}}}, metav1.CreateOptions{})
		c.must(err)
	}
	for _, name := range []string{"silent", "new"} {
		c.until("signing "+name, func() string {
			csr, err := api.Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			if len(csr.Status.Certificate) == 0 {
				return "no certificate yet"
			}
			return ""
		})
	}
	csr, err := api.Get(c.ctx, "alive", metav1.GetOptions{})
	c.must(err)
	if len(csr.Status.Conditions) != 0 {
		t.Errorf("a request for a living node's name was decided: %+v", csr.Status.Conditions)
	}
	// The remedy: an administrator deletes the Node (or approves by hand).
	c.must(c.client.CoreV1().Nodes().Delete(c.ctx, "alive", metav1.DeleteOptions{}))
	csr.Labels = map[string]string{"look": "again"}
	_, err = api.Update(c.ctx, csr, metav1.UpdateOptions{})
	c.must(err)
	c.until("signing alive", func() string {
		csr, err := api.Get(c.ctx, "alive", metav1.GetOptions{})
		c.must(err)
		if len(csr.Status.Certificate) == 0 {
			return "no certificate yet"
		}
		return ""
	})
}
