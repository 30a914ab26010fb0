package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestLeafIsKeptUntilItNoLongerFits(t *testing.T) {
	dir := t.TempDir()
	ca, err := EnsureAuthority(dir, "ca", noon)
	if err != nil {
		t.Fatal(err)
	}
	want := Leaf{CommonName: "kube-apiserver", Names: []string{"localhost"}, IPs: []net.IP{net.IPv4(10, 96, 0, 1)}, Server: true}
	steps := []struct {
		name  string
		now   time.Time
		want  Leaf
		wrote bool
	}{
		{"first", noon, want, true},
		{"again", noon.Add(time.Hour), want, false},
		{"new address", noon.Add(time.Hour), Leaf{CommonName: "kube-apiserver", Names: []string{"localhost"}, IPs: []net.IP{net.IPv4(10, 0, 0, 9)}, Server: true}, true},
		{"near its end", noon.Add(leafLife - renewBefore + 2*time.Hour), Leaf{CommonName: "kube-apiserver", IPs: []net.IP{net.IPv4(10, 0, 0, 9)}, Server: true}, true},
		{"other identity", noon, Leaf{CommonName: "someone", Client: true}, true},
	}
	for _, s := range steps {
		_, _, wrote, err := ca.EnsureLeaf(dir, "apiserver", s.want, s.now)
		if err != nil || wrote != s.wrote {
			t.Fatalf("%s: wrote %v (want %v), error %v", s.name, wrote, s.wrote, err)
		}
	}
}

func TestLeafVerifiesAndKeyIsPrivate(t *testing.T) {
	dir := t.TempDir()
	ca, err := EnsureAuthority(dir, "ca", noon)
	if err != nil {
		t.Fatal(err)
	}
	crt, key, _, err := ca.EnsureLeaf(dir, "node", Leaf{CommonName: "system:node:a", Organization: []string{"system:nodes"}, Client: true}, noon)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: noon, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(key); st.Mode().Perm() != 0o600 {
		t.Fatalf("key mode %v", st.Mode())
	}
}

func TestAuthoritySurvivesRestartAndNamesClockTrouble(t *testing.T) {
	dir := t.TempDir()
	first, err := EnsureAuthority(dir, "ca", noon)
	if err != nil {
		t.Fatal(err)
	}
	second, err := EnsureAuthority(dir, "ca", noon.Add(time.Hour))
	if err != nil || !second.Cert.Equal(first.Cert) {
		t.Fatalf("authority changed over a restart: %v", err)
	}
	if _, err := EnsureAuthority(dir, "ca", noon.Add(-48*time.Hour)); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Fatalf("clock before the certificate: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureAuthority(dir, "ca", noon); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Fatalf("a broken key must be named, not replaced: %v", err)
	}
}
