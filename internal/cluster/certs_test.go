package cluster

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/pki"
)

// certified is a control plane's configuration whose certificates a test makes.
func certified(t *testing.T) *Config {
	t.Helper()
	return &Config{Settings: Settings{NodeName: "n", ServiceCIDR: "10.96.0.0/16,fd00::/112", ClusterDomain: "cluster.local",
		Ports: PortsFrom(7000)}, DataDir: t.TempDir(), NodeIP: "192.0.2.7"}
}

// TestCertificates: who each certificate is, who signed it and which names it
// serves. Only super-admin is in system:masters, which nothing can revoke.
func TestCertificates(t *testing.T) {
	c := certified(t)
	c.ServerNames = []string{"api.example.com", "198.51.100.1"}
	f, wrote, err := c.certificates(time.Now())
	if err != nil || wrote != 8 || len(f.Ends) != 8 {
		t.Fatalf("%d written, %d ends, %v", wrote, len(f.Ends), err)
	}
	for name, want := range map[string]string{
		"apiserver":                "kube-apiserver [] by berth-ca, server",
		"apiserver-kubelet-client": "kube-apiserver-kubelet-client [] by berth-ca, client",
		"front-proxy-client":       "front-proxy-client [] by berth-front-proxy-ca, client",
		"agent":                    "system:node:n [system:nodes] by berth-ca, client",
		"agent-serving":            "system:node:n [system:nodes] by berth-agent-ca, server",
		"proxy":                    "system:kube-proxy [] by berth-ca, client",
		"admin":                    "berth-admin [berth:cluster-admins] by berth-ca, client",
		"super-admin":              "berth-super-admin [system:masters] by berth-ca, client",
	} {
		cert, err := pki.ReadCertificate(c.Path("pki", name+".crt"))
		if err != nil {
			t.Fatal(err)
		}
		use := map[x509.ExtKeyUsage]string{x509.ExtKeyUsageServerAuth: "server", x509.ExtKeyUsageClientAuth: "client"}[cert.ExtKeyUsage[0]]
		got := fmt.Sprintf("%s %v by %s, %s", cert.Subject.CommonName, cert.Subject.Organization, cert.Issuer.CommonName, use)
		if got != want || len(cert.ExtKeyUsage) != 1 {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for file, names := range map[string][]string{
		f.API.Cert: {"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "n",
			"api.example.com", "198.51.100.1", "127.0.0.1", "::1", "192.0.2.7", "10.96.0.1"},
		f.AgentServing.Cert: {"n", "localhost", "127.0.0.1", "::1", "192.0.2.7"},
	} {
		cert, err := pki.ReadCertificate(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if err := cert.VerifyHostname(n); err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
			}
		}
		for _, n := range []string{"kubernetes.other", "fd00::1", "10.96.0.2"} { // the Service kubernetes has one address
			if cert.VerifyHostname(n) == nil {
				t.Errorf("%s serves %s", filepath.Base(file), n)
			}
		}
	}
	for _, key := range []string{"ca.key", "agent-ca.key", "front-proxy-ca.key", "sa.key", "admin.key", "super-admin.key"} {
		if st, err := os.Stat(c.Path("pki", key)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", key, st, err)
		}
	}
}

// TestCertificatesAreKept: a second start writes none, one near the end writes
// all, and a changed address only those that name it. The CAs stay.
func TestCertificatesAreKept(t *testing.T) {
	c := certified(t)
	now := time.Now()
	f, _, err := c.certificates(now)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(f.CA.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(f.Ends, func(a, b certificateEnd) int { return a.Renewal.Compare(b.Renewal) }) ||
		!f.Ends[0].Renewal.Before(f.Ends[0].End) {
		t.Errorf("ends are not in the order of their renewal: %v", f.Ends)
	}
	for _, step := range []struct {
		name   string
		change func()
		at     time.Time
		wrote  int
	}{
		{"the next start", func() {}, now.Add(time.Minute), 0},
		{"the last second before the renewal", func() {}, f.Ends[0].Renewal.Add(-time.Second), 0},
		{"another address", func() { c.NodeIP = "192.0.2.8" }, now.Add(time.Minute), 2},
		{"another name in the API server's", func() { c.ServerNames = []string{"api.example.com"} }, now.Add(time.Minute), 1},
		{"the renewal", func() {}, f.Ends[0].Renewal.Add(10 * time.Minute), 8},
		{"a shorter life", func() { c.CertificateLife = time.Hour }, f.Ends[0].Renewal.Add(20 * time.Minute), 8},
	} {
		step.change()
		if _, wrote, err := c.certificates(step.at); err != nil || wrote != step.wrote {
			t.Errorf("%s: %d written, %v; want %d", step.name, wrote, err, step.wrote)
		}
	}
	if now, err := os.ReadFile(f.CA.Cert); err != nil || !bytes.Equal(now, ca) {
		t.Errorf("the cluster's CA changed: %v", err)
	}
}

// TestLostCAOfAUsedCluster: with a store or an admin.kubeconfig no CA is made in
// place of a lost one, and no other file either.
func TestLostCAOfAUsedCluster(t *testing.T) {
	for _, sign := range []string{"etcd/member-data", "admin.kubeconfig"} {
		c := certified(t)
		if c.used() != "" {
			t.Errorf("an empty directory is used: %s", c.used())
		}
		if err := os.MkdirAll(filepath.Dir(c.Path(sign)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.Path(sign), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.certificates(time.Now()); err == nil || !strings.Contains(err.Error(), sign) || !strings.Contains(err.Error(),
			"ca.crt") {
			t.Errorf("with %s a lost CA is made again: %v", sign, err)
		}
	}
}

// TestAgentTrust: a cluster that once had one CA for everything goes on to
// believe what that signed for agents, for as long as such certificates live.
func TestAgentTrust(t *testing.T) {
	born := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name      string
		split     time.Duration // from the cluster's birth to its agents' CA
		now       time.Duration // from the split on
		believed  int
		unchanged bool
	}{
		{"made together", 0, 0, 1, false},
		{"just split", 100 * 24 * time.Hour, 0, 2, false},
		{"a year after the split", 100 * 24 * time.Hour, oldServing + time.Hour, 1, false},
	} {
		dir := t.TempDir()
		ca, err := pki.EnsureCA(dir, "ca", "", born)
		if err != nil {
			t.Fatal(err)
		}
		agents, err := pki.EnsureCA(dir, agentCA, "", born.Add(c.split))
		if err != nil {
			t.Fatal(err)
		}
		file, err := writeAgentTrust(dir, ca, agents, born.Add(c.split+c.now))
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if n++; n == 1 && !bytes.Equal(block.Bytes, agents.Cert.Raw) {
				t.Errorf("%s: the first CA is not the agents' own", c.name)
			}
		}
		if n != c.believed {
			t.Errorf("%s: %d CAs are believed, want %d", c.name, n, c.believed)
		}
	}
}

// TestKubeconfigs: each works when copied elsewhere, for it holds its files.
func TestKubeconfigs(t *testing.T) {
	c := certified(t)
	f, _, err := c.certificates(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for file, user := range map[string]string{f.AdminKubeconfig: "admin", f.SuperAdminKubeconfig: "super-admin", f.AgentKubeconfig: "agent",
		f.ProxyKubeconfig: "proxy"} {
		cfg, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		at, who := cfg.Clusters[c.Instance()], cfg.AuthInfos[user]
		if cfg.CurrentContext != c.Instance() || at == nil || at.Server != "https://127.0.0.1:7000" ||
			len(at.CertificateAuthorityData) == 0 ||
			who == nil || len(who.ClientCertificateData) == 0 || len(who.ClientKeyData) == 0 || who.ClientKey != "" {
			t.Errorf("%s: %+v", file, cfg)
		}
		st, err := os.Stat(file)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, st, err)
		}
	}
	// A kubeconfig that says what it should is not written again: people watch
	// and copy these files.
	before, err := os.Stat(f.AdminKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.certificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(f.AdminKubeconfig); err != nil || !os.SameFile(before, after) {
		t.Errorf("admin.kubeconfig was replaced: %v", err)
	}
}
