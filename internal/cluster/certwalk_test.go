package cluster

import (
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/pki"
)

// declared is all that a certificate of a cluster may say.
type declared struct {
	by, name string
	groups   []string
	usages   []x509.ExtKeyUsage
	names    []string
	ips      []string
}

var (
	asServer = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	asClient = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
)

// declaredCertificates are those of a new cluster by file; another file is a
// mistake, and so is one more name, group or usage.
var declaredCertificates = map[string]declared{
	"pki/ca.crt":             {by: "berth-ca", name: "berth-ca"},
	"pki/agent-ca.crt":       {by: "berth-agent-ca", name: "berth-agent-ca"},
	"pki/front-proxy-ca.crt": {by: "berth-front-proxy-ca", name: "berth-front-proxy-ca"},
	"pki/agent-trust.crt":    {by: "berth-agent-ca", name: "berth-agent-ca"},

	"pki/apiserver.crt":       theAPIServer,
	"pki/apiserver.chain.crt": theAPIServer,
	"pki/agent-serving.crt": {by: "berth-agent-ca", name: "system:node:n1", groups: []string{"system:nodes"}, usages: asServer,
		names: []string{"localhost", "n1"}, ips: []string{"127.0.0.1", "192.0.2.7", "::1"}},

	"pki/apiserver-kubelet-client.crt": {by: "berth-ca", name: "kube-apiserver-kubelet-client", usages: asClient},
	"pki/front-proxy-client.crt":       {by: "berth-front-proxy-ca", name: "front-proxy-client", usages: asClient},
	"pki/agent.crt":                    theAgent,
	"pki/agent.kubeconfig":             theAgent,
	"pki/proxy.crt":                    theProxy,
	"pki/proxy.kubeconfig":             theProxy,
	"pki/admin.crt":                    theAdmin,
	"admin.kubeconfig":                 theAdmin,
	"pki/super-admin.crt":              theSuperAdmin,
	"super-admin.kubeconfig":           theSuperAdmin,
}

var (
	theAPIServer = declared{by: "berth-ca", name: "kube-apiserver", usages: asServer,
		names: []string{"api.example.com", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", "localhost", "n1"},
		ips: []string{"10.96.0.1", "127.0.0.1", "192.0.2.7", "192.0.2.8", "::1"}}
	theAgent      = declared{by: "berth-ca", name: "system:node:n1", groups: []string{"system:nodes"}, usages: asClient}
	theProxy      = declared{by: "berth-ca", name: "system:kube-proxy", usages: asClient}
	theAdmin      = declared{by: "berth-ca", name: "berth-admin", groups: []string{"berth:cluster-admins"}, usages: asClient}
	theSuperAdmin = declared{by: "berth-ca", name: "berth-super-admin", groups: []string{"system:masters"}, usages: asClient}
)

// TestCertificatesSayWhatTheyDeclare walks every certificate and kubeconfig of a
// new cluster. Only the break-glass administrator is system:masters (that the
// everyday one is revocable shows TestAdministratorsCanBeRevoked).
func TestCertificatesSayWhatTheyDeclare(t *testing.T) {
	cfg := &Config{DataDir: t.TempDir(), NodeIP: "192.0.2.7", ServerNames: []string{"api.example.com", "192.0.2.8"}}
	cfg.NodeName, cfg.ServiceCIDR, cfg.ClusterDomain, cfg.Ports.API = "n1", "10.96.0.0/16", "cluster.local", 6443
	now := time.Now()
	if _, _, err := cfg.certificates(now); err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for file := range declaredCertificates {
		left[file] = true
	}
	err := fs.WalkDir(os.DirFS(cfg.DataDir), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		secret := strings.HasSuffix(file, ".key") || strings.HasSuffix(file, ".kubeconfig")
		if secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
		want, known := declaredCertificates[file]
		certs := certificatesOf(t, filepath.Join(cfg.DataDir, file))
		if len(certs) > 0 && !known {
			t.Errorf("%s holds a certificate that nothing declares: %s", file, certs[0].Subject)
		}
		if known {
			delete(left, file)
			walkCertificate(t, file, certs[0], want, now)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for file := range left {
		t.Errorf("%s is declared and not there", file)
	}
}

// certificatesOf are those of a PEM file, or of the user of a kubeconfig.
func certificatesOf(t *testing.T, file string) (out []*x509.Certificate) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(file, ".kubeconfig") {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		data = config.CertData
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, cert)
	}
	return out
}

func walkCertificate(t *testing.T, file string, cert *x509.Certificate, want declared, now time.Time) {
	t.Helper()
	got := declared{by: cert.Issuer.CommonName, name: cert.Subject.CommonName, groups: cert.Subject.Organization, usages: cert.ExtKeyUsage,
		names: slices.Sorted(slices.Values(cert.DNSNames))}
	for _, ip := range cert.IPAddresses {
		got.ips = append(got.ips, ip.String())
	}
	slices.Sort(got.ips)
	same := got.by == want.by && got.name == want.name && slices.Equal(got.groups, want.groups) && slices.Equal(got.usages, want.usages) &&
		slices.Equal(got.names, want.names) && slices.Equal(got.ips, want.ips)
	if !same || len(cert.UnknownExtKeyUsage)+len(cert.EmailAddresses)+len(cert.URIs) > 0 {
		t.Errorf("%s says\n%+v, declared is\n%+v", file, got, want)
	}
	if slices.Contains(got.groups, "system:masters") != strings.Contains(file, "super-admin") {
		t.Errorf("%s has the groups %q", file, got.groups)
	}
	isCA := want.usages == nil
	usage := x509.KeyUsageDigitalSignature
	if isCA {
		usage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	}
	if cert.IsCA != isCA || cert.KeyUsage != usage {
		t.Errorf("%s: CA %v, key usage %b", file, cert.IsCA, cert.KeyUsage)
	}
	if life := cert.NotAfter.Sub(now); !isCA && life > pki.DefaultLeafLife {
		t.Errorf("%s lives for %v", file, life)
	}
}

// TestNamesGivenUpLeaveTheCertificate: a start without a server name that an
// earlier one had makes a certificate without it.
func TestNamesGivenUpLeaveTheCertificate(t *testing.T) {
	cfg := &Config{DataDir: t.TempDir(), NodeIP: "192.0.2.7", ServerNames: []string{"old.example.com", "192.0.2.8"}}
	cfg.NodeName, cfg.ServiceCIDR, cfg.ClusterDomain, cfg.Ports.API = "n1", "10.96.0.0/16", "cluster.local", 6443
	for _, keep := range []bool{true, false, false} {
		if !keep {
			cfg.ServerNames = nil
		}
		if _, _, err := cfg.certificates(time.Now()); err != nil {
			t.Fatal(err)
		}
		cert, err := pki.ReadCertificate(cfg.Path("pki", "apiserver.crt"))
		if err != nil {
			t.Fatal(err)
		}
		named := slices.Contains(cert.DNSNames, "old.example.com") && slices.ContainsFunc(cert.IPAddresses, net.IPv4(192, 0, 2, 8).Equal)
		if named != keep {
			t.Errorf("names %q, addresses %v", cert.DNSNames, cert.IPAddresses)
		}
	}
	if _, wrote, err := cfg.certificates(time.Now()); err != nil || wrote != 0 {
		t.Errorf("an unchanged start wrote %d certificates, %v", wrote, err)
	}
}
