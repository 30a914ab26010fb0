package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	ca, err := EnsureCA(dir, "ca", "", noon)
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
		{"new address", noon.Add(time.Hour), Leaf{CommonName: "kube-apiserver", Names: []string{"localhost"},
			IPs: []net.IP{net.IPv4(10, 0, 0, 9)}, Server: true}, true},
		{"near its end", noon.Add(DefaultLeafLife - 60*24*time.Hour + 2*time.Hour), Leaf{CommonName: "kube-apiserver",
			IPs: []net.IP{net.IPv4(10, 0, 0, 9)}, Server: true}, true},
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
	ca, err := EnsureCA(dir, "ca", "", noon)
	if err != nil {
		t.Fatal(err)
	}
	crt, key, _, err := ca.EnsureLeaf(dir, "node", Leaf{CommonName: "system:node:a", Organization: []string{"system:nodes"}, Client: true},
		noon)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: noon,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(key); st.Mode().Perm() != 0o600 {
		t.Fatalf("key mode %v", st.Mode())
	}
}

func TestCASurvivesRestartAndNamesClockTrouble(t *testing.T) {
	dir := t.TempDir()
	first, err := EnsureCA(dir, "ca", "", noon)
	if err != nil {
		t.Fatal(err)
	}
	second, err := EnsureCA(dir, "ca", "", noon.Add(time.Hour))
	if err != nil || !second.Cert.Equal(first.Cert) {
		t.Fatalf("CA changed over a restart: %v", err)
	}
	if _, err := EnsureCA(dir, "ca", "", noon.Add(-48*time.Hour)); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Fatalf("clock before the certificate: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureCA(dir, "ca", "", noon); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Fatalf("a broken key must be named, not replaced: %v", err)
	}
}

// TestLostCAIsNotReplaced is finding 14: a missing or cut-off file of a CA must
// not make a new one, which would cut off every node and kubeconfig.
func TestLostCAIsNotReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		used string
		leaf bool
		harm func(dir string) error
		want string
	}{
		"key lost":          {"", true, func(d string) error { return os.Remove(filepath.Join(d, "ca.key")) }, "ca.key: missing, but"},
		"certificate lost":  {"", true, func(d string) error { return os.Remove(filepath.Join(d, "ca.crt")) }, "ca.crt: missing, but"},
		"key lost, unused":  {"", false, func(d string) error { return os.Remove(filepath.Join(d, "ca.key")) }, "ca.key: missing, but"},
		"both lost, leaves": {"", true, loseBoth, "leaf.crt was signed by it"},
		"both lost, data":   {"etcd holds a cluster", false, loseBoth, "etcd holds a cluster"},
		"key empty":         {"", true, func(d string) error { return os.WriteFile(filepath.Join(d, "ca.key"), nil, 0o600) }, "(0 bytes)"},
		"certificate empty": {"", true, func(d string) error { return os.WriteFile(filepath.Join(d, "ca.crt"), nil, 0o600) },
			"restore it from a backup"},
		"both lost, new":     {"", false, loseBoth, ""},
		"first start broken": {"", false, func(d string) error { return os.Remove(filepath.Join(d, "ca.crt")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ca, err := EnsureCA(dir, "ca", "", noon)
			if err != nil {
				t.Fatal(err)
			}
			if c.leaf {
				if _, _, _, err := ca.EnsureLeaf(dir, "leaf", Leaf{CommonName: "x", Client: true}, noon); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.harm(dir); err != nil {
				t.Fatal(err)
			}
			again, err := EnsureCA(dir, "ca", c.used, noon)
			switch {
			case c.want == "" && (err != nil || again.Cert == nil):
				t.Errorf("a new directory: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want ...%s", err, c.want)
			}
		})
	}
}

func loseBoth(dir string) error {
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, "ca.crt"))
}

// A leaf whose file was cut off is made again; the accounts' key is not.
func TestLostKeys(t *testing.T) {
	dir := t.TempDir()
	ca, err := EnsureCA(dir, "ca", "", noon)
	if err != nil {
		t.Fatal(err)
	}
	_, key, _, err := ca.EnsureLeaf(dir, "leaf", Leaf{CommonName: "x", Client: true}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(key, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, wrote, err := ca.EnsureLeaf(dir, "leaf", Leaf{CommonName: "x", Client: true}, noon); err != nil || !wrote {
		t.Errorf("an empty leaf key: wrote %v, %v", wrote, err)
	}
	sa, _, err := EnsureKeyPair(dir, "sa")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(sa); err != nil {
		t.Fatal(err)
	}
	var lost *LostError
	if _, _, err := EnsureKeyPair(dir, "sa"); !errors.As(err, &lost) {
		t.Errorf("a lost key of ServiceAccounts: %v", err)
	}
}

// Short lives renew in time: five sixths into them, whatever the backdating.
func TestRenewAt(t *testing.T) {
	ca, err := EnsureCA(t.TempDir(), "ca", "", noon)
	if err != nil {
		t.Fatal(err)
	}
	for _, life := range []time.Duration{10 * time.Second, time.Hour, DefaultLeafLife} {
		ca.LeafLife = life
		cert, _, err := ca.Issue(Leaf{CommonName: "x", Client: true}, noon)
		if err != nil {
			t.Fatal(err)
		}
		if at := RenewAt(cert); at.Before(noon.Add(life/2)) || at.After(noon.Add(life*9/10)) {
			t.Errorf("a life of %s is renewed after %s", life, at.Sub(noon))
		}
	}
}
