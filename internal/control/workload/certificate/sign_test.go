package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var noon = time.Date(2030, 5, 5, 12, 0, 0, 0, time.UTC)

// testCA is a CA that lives until a time.
func testCA(t *testing.T, until time.Time, most time.Duration) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: noon.Add(-time.Hour),
		NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := NewCA(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bytes}), most)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// asking is a request for a subject.
func asking(t *testing.T, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

const (
	clientSigner  = certv1.KubeAPIServerClientSignerName
	kubeletSigner = certv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certv1.KubeletServingSignerName
)

var (
	clientUsages  = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageKeyEncipherment, certv1.UsageClientAuth}
	servingUsages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth}
)

func named(names ...string) func(*x509.CertificateRequest) {
	return func(r *x509.CertificateRequest) { r.DNSNames = names }
}

// TestSignersAndApprovers: for each request, what its signer refuses and what
// must be asked before it is approved. The rules are those of
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers
func TestSignersAndApprovers(t *testing.T) {
	alone := func(org ...string) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) { r.Subject.Organization = org }
	}
	called := func(cn string) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) { r.Subject.CommonName = cn }
	}
	also := func(u ...certv1.KeyUsage) []certv1.KeyUsage { return append(slices.Clone(clientUsages), u...) }
	uri := func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }
	for _, c := range []struct {
		why     string
		signer  string
		by      string
		usages  []certv1.KeyUsage
		change  func(*x509.CertificateRequest)
		refuses string // by the signer; "" for nothing
		ask     ask
	}{
		{"node renews", kubeletSigner, "system:node:n", clientUsages, nil, "", SelfNodeClient},
		{"bootstrap token asks for a node", kubeletSigner, "system:bootstrap:abcdef", clientUsages, nil, "", NodeClient},
		{"without key encipherment", kubeletSigner, "system:node:n", clientUsages[:1:1], nil, `must include "digital signature"`, NotOurs},
		{"server usage as well", kubeletSigner, "system:node:n", also(certv1.UsageServerAuth), nil, `"server auth" is not allowed`,
			NotOurs},
		{"no group", kubeletSigner, "system:node:n", clientUsages, alone(), "organization", NotOurs},
		{"group of administrators", kubeletSigner, "system:node:n", clientUsages, alone("system:nodes", "system:masters"), "organization",
			NotOurs},
		{"no node's name", kubeletSigner, "system:node:", clientUsages, called("system:node:"), "common name", NotOurs},
		{"a user's name", kubeletSigner, "admin", clientUsages, called("admin"), "common name", NotOurs},
		{"client with names", kubeletSigner, "system:node:n", clientUsages, named("n"), "alternative names are not allowed", NotOurs},
		{"serving", servingSigner, "system:node:n", servingUsages, named("n"), "", NodeServing},
		{"serving for another node", servingSigner, "system:node:m", servingUsages, named("n"), "", NotOurs},
		{"serving without a name", servingSigner, "system:node:n", servingUsages, nil, "at least one", NotOurs},
		{"serving with a URI", servingSigner, "system:node:n", servingUsages, func(r *x509.CertificateRequest) { named("n")(r); uri(r) },
			"only DNS and IP", NotOurs},
		{"serving as a client", servingSigner, "system:node:n", clientUsages, named("n"), `and "server auth"`, NotOurs},
		{"any client", clientSigner, "jane", clientUsages, called("jane"), "", NotOurs},
		{"any client, server usage", clientSigner, "jane", also(certv1.UsageServerAuth), nil, `"server auth" is not allowed`, NotOurs},
		{"any client, no client usage", clientSigner, "jane", clientUsages[:1], nil, `must include "client auth"`, NotOurs},
	} {
		csr := &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{SignerName: c.signer, Username: c.by,
			Groups: []string{"system:nodes"}, Usages: c.usages, Request: asking(t, c.change)}}
		req, known, err := checkRequest(csr)
		if !known || (err == nil) != (c.refuses == "") || err != nil && !strings.Contains(err.Error(), c.refuses) {
			t.Errorf("%s: known %v, refused with %v, want %q", c.why, known, err, c.refuses)
		}
		if got := recognize(csr, req); got != c.ask {
			t.Errorf("%s: asks for %q, want %q", c.why, got, c.ask)
		}
		csr.Spec.Groups = nil
		if c.ask == NodeServing && recognize(csr, req) != NotOurs {
			t.Errorf("%s: a requestor outside the group is approved", c.why)
		}
	}
	foreign := &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{SignerName: "example.com/x",
		Request: []byte("x")}}
	if _, known, err := checkRequest(foreign); known || err != nil || recognize(foreign, nil) != NotOurs {
		t.Errorf("another signer's request: known %v, %v", known, err)
	}
}

// TestRequestsThatAreNone: what cannot be read is refused and names the field.
func TestRequestsThatAreNone(t *testing.T) {
	good := asking(t, nil)
	block, _ := pem.Decode(good)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for why, text := range map[string][]byte{"empty": nil, "no PEM": []byte("x"), "another type": pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: block.Bytes}), "no DER": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST",
		Bytes: []byte("x")}),
		"signed by another key": pem.EncodeToMemory(block)} {
		csr := &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{SignerName: kubeletSigner, Request: text}}
		if _, known, err := checkRequest(csr); !known || err == nil || !strings.HasPrefix(err.Error(), "spec.request: ") {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// TestLifetimes: how long a certificate lives: as asked, but no longer than the
// signer allows and the CA lives; and it is valid on hosts whose clocks are
// behind.
func TestLifetimes(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		why         string
		caLeft      time.Duration
		most        time.Duration
		asks        *int32
		from, until time.Duration // from noon; until 0: refused
	}{
		{"as long as allowed", 1000 * day, 10 * day, nil, -backdate, 10*day - backdate},
		{"a year by default", 1000 * day, 0, nil, -backdate, 365*day - backdate},
		{"as asked", 1000 * day, 10 * day, ptr.To[int32](3600), -backdate, time.Hour},
		{"more than allowed", 1000 * day, time.Hour, ptr.To[int32](7200), -backdate, time.Hour},
		{"less than the API allows", 1000 * day, day, ptr.To[int32](1), -backdate, shortest},
		{"longer than the CA lives", time.Hour, day, nil, -backdate, time.Hour},
		{"the CA has expired", -time.Minute, day, nil, 0, 0},
	} {
		ca := testCA(t, noon.Add(c.caLeft), c.most)
		csr := &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{SignerName: kubeletSigner, Usages: clientUsages,
			Request: asking(t, nil), ExpirationSeconds: c.asks}}
		req, _, err := checkRequest(csr)
		if err != nil {
			t.Fatal(err)
		}
		text, err := ca.Sign(csr, req, noon)
		if c.until == 0 {
			if err == nil || !strings.Contains(err.Error(), "expired on") {
				t.Errorf("%s: %v", c.why, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", c.why, err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := cert.NotBefore.Sub(noon); got != c.from {
			t.Errorf("%s: valid from noon%+v, want %v", c.why, got, c.from)
		}
		if got := cert.NotAfter.Sub(noon); got != c.until {
			t.Errorf("%s: valid until noon+%v, want %v", c.why, got, c.until)
		}
	}
}

// TestSignedCertificate: a certificate has the request's subject and names and
// nothing of a CA, whatever the request asks for.
func TestSignedCertificate(t *testing.T) {
	ca := testCA(t, noon.Add(1000*time.Hour), time.Hour)
	csr := &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{Usages: servingUsages,
		Request: asking(t, func(r *x509.CertificateRequest) {
			r.DNSNames, r.IPAddresses = []string{"n"}, []net.IP{net.IPv4(192, 0, 2, 1)}
			r.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}} // CA:TRUE
		})}}
	req, err := parse(csr)
	if err != nil {
		t.Fatal(err)
	}
	sign := func() *x509.Certificate {
		text, err := ca.Sign(csr, req, noon)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	cert := sign()
	if cert.IsCA || !cert.BasicConstraintsValid || cert.Subject.CommonName != "system:node:n" || !slices.Equal(cert.DNSNames,
		[]string{"n"}) ||
		len(cert.IPAddresses) != 1 || cert.KeyUsage != x509.KeyUsageDigitalSignature ||
		!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) {
		t.Errorf("certificate %+v", cert)
	}
	if err := cert.CheckSignatureFrom(ca.cert); err != nil {
		t.Error(err)
	}
	if sign().SerialNumber.Cmp(cert.SerialNumber) == 0 {
		t.Error("two certificates have one serial number")
	}
	if _, _, err := usagesOf([]certv1.KeyUsage{"fly"}); err == nil || !strings.Contains(err.Error(), `spec.usages: "fly"`) {
		t.Errorf("a usage that is not known: %v", err)
	}
}

// TestCAs: what is no CA does not sign.
func TestCAs(t *testing.T) {
	ca := testCA(t, noon.Add(time.Hour), time.Hour)
	csr := &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{Usages: clientUsages, Request: asking(t, nil)}}
	req, err := parse(csr)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Sign(csr, req, noon)
	if err != nil {
		t.Fatal(err)
	}
	for why, pair := range map[string][2][]byte{"nothing": {nil, nil}, "a certificate without its key": {leaf, []byte("x")}} {
		if _, err := NewCA(pair[0], pair[1], 0); err == nil || !strings.HasPrefix(err.Error(), "reading the signing CA") {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// TestServingNames: a Node's serving certificate names what its status has.
func TestServingNames(t *testing.T) {
	node := &v1.Node{Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeHostName, Address: "N.example"},
		{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeExternalIP, Address: "2001:db8::1"},
		{Type: v1.NodeExternalDNS, Address: "n.public"}}}}
	for _, c := range []struct {
		why   string
		names []string
		ips   []string
		want  string // part of the refusal
	}{
		{"its own", []string{"n.example", "n.public"}, []string{"192.0.2.1", "2001:db8::1"}, ""},
		{"names have no case", []string{"N.EXAMPLE"}, nil, ""},
		{"another name", []string{"n.example", "m.example"}, nil, `DNS name "m.example"`},
		{"an address as a name", []string{"192.0.2.1"}, nil, `DNS name "192.0.2.1"`},
		{"another address", nil, []string{"192.0.2.2"}, "IP address 192.0.2.2"},
	} {
		req := &x509.CertificateRequest{DNSNames: c.names}
		for _, ip := range c.ips {
			req.IPAddresses = append(req.IPAddresses, net.ParseIP(ip))
		}
		err := servingMatches(req, node)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.why, err, c.want)
		}
	}
}

// TestExpiry: when a request is of no more use.
func TestExpiry(t *testing.T) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(d)) }
	for _, c := range []struct {
		why       string
		condition certv1.RequestConditionType
		certified bool
		want      time.Duration // after noon, when it was made
	}{
		{"nobody decided", "", false, keepPending},
		{"denied", certv1.CertificateDenied, false, time.Minute + keepDone},
		{"failed", certv1.CertificateFailed, false, time.Minute + keepDone},
		{"issued", certv1.CertificateApproved, true, time.Minute + keepDone},
		{"approved, not issued yet", certv1.CertificateApproved, false, keepPending},
	} {
		csr := &certv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}}
		if c.condition != "" {
			csr.Status.Conditions = []certv1.CertificateSigningRequestCondition{{Type: c.condition, LastUpdateTime: at(time.Minute)}}
		}
		if c.certified {
			csr.Status.Certificate = []byte("x")
		}
		if got := expires(csr).Sub(noon); got != c.want {
			t.Errorf("%s: kept for %v, want %v", c.why, got, c.want)
		}
	}
	late := &certv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}}
	late.Status.Conditions = []certv1.CertificateSigningRequestCondition{{Type: certv1.CertificateDenied, LastUpdateTime: at(keepPending)}}
	if got := expires(late).Sub(noon); got != keepPending {
		t.Errorf("a late decision keeps it for %v", got)
	}
}
