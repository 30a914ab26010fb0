package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}, IPAddresses: ips}, key)
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
		_, err := kubernetes.NewForConfigOrDie(cfg).CertificatesV1().CertificateSigningRequests().Create(c.ctx, &certv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certv1.CertificateSigningRequestSpec{Request: req, SignerName: signer,
				Usages: []certv1.KeyUsage{certv1.UsageDigitalSignature, usage}}}, metav1.CreateOptions{})
		c.must(err)
	}
	ask("boot", certv1.KubeAPIServerClientKubeletSignerName, "", certv1.UsageClientAuth, request(t, "system:node:n1"))
	ask("serve", certv1.KubeletServingSignerName, "system:node:n1", certv1.UsageServerAuth, request(t, "system:node:n1", net.ParseIP("10.9.0.1")))
	ask("liar", certv1.KubeletServingSignerName, "system:node:n1", certv1.UsageServerAuth, request(t, "system:node:n1", net.ParseIP("10.9.0.2")))
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
			pool.AppendCertsFromPEM(c.ca)
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
