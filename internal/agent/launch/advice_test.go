package launch

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// kubeconfig writes a client configuration as the agent reads it.
func kubeconfig(t *testing.T, c *rest.Config) string {
	t.Helper()
	out := clientcmdapi.NewConfig()
	out.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthority: c.CAFile, CertificateAuthorityData: c.CAData}
	out.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificate: c.CertFile, ClientKey: c.KeyFile, Token: c.BearerToken,
		ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	out.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	out.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*out, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// ask connects as the agent does, asks for its Node, and returns what the user
// gets to read: the error, and the log.
func ask(t *testing.T, kubeconfig string) string {
	t.Helper()
	var log bytes.Buffer
	l := &credentials{id: node.Identity{Name: "n1"}, cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil)),
		Effective: &config.Effective{
			Kubelet: &kubeletv1beta1.KubeletConfiguration{ContentType: "application/json"}}}}
	l.cfg.Effective.Agent.Kubeconfig, l.cfg.Effective.Agent.CertDir = kubeconfig, t.TempDir()
	out := agent.Config{Metrics: prometheus.NewRegistry()}
	if err := l.connect(t.Context(), &out); err != nil {
		return err.Error()
	}
	client := out.API.Client.(*kubernetes.Clientset)
	text := "ok"
	for range 2 { // what is wrong is told once
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
			text = err.Error()
		}
	}
	if n := strings.Count(log.String(), "refuses this node's credentials"); n > 1 {
		t.Errorf("told %d times", n)
	}
	return text + "\n" + log.String()
}

// TestCredentialsThatDoNotWork uses a real API server with certificates that
// have each fault, and looks for the remedy in what is said.
func TestCredentialsThatDoNotWork(t *testing.T) {
	env := apitest.StartEnv(t)
	other := apitest.StartEnv(t)
	const user, group = "system:node:n1", "system:nodes"
	now := time.Now()
	with := func(change func(*rest.Config)) *rest.Config {
		c := env.As(t, user, group)
		change(c)
		return c
	}
	for name, c := range map[string]struct {
		config *rest.Config
		want   []string
	}{
		"expired": {env.Between(t, now.Add(-2*time.Hour), now.Add(-time.Hour), user, group),
			[]string{"client certificate of system:node:n1 expired at", "--bootstrap-kubeconfig"}},
		"valid in an hour, as by a clock that is behind": {env.Between(t, now.Add(time.Hour), now.Add(2*time.Hour), user, group),
			[]string{"Unauthorized", "is valid from", "set the clock"}},
		"of another cluster": {with(func(c *rest.Config) {
			theirs := other.As(t, user, group)
			c.CertFile, c.KeyFile = theirs.CertFile, theirs.KeyFile
		}), []string{"Unauthorized", "belongs to another cluster"}},
		"a server of another cluster": {with(func(c *rest.Config) { c.CAFile = other.Config.CAFile }),
			[]string{"the certificate-authority in the kubeconfig is not the one of this API server"}},
		"a token nobody knows": {with(func(c *rest.Config) { c.CertFile, c.KeyFile, c.BearerToken = "", "", "abc" }),
			[]string{"Unauthorized", "token or password", "make a new one"}},
		"in order": {env.As(t, "admin", "system:masters"), []string{"ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ask(t, kubeconfig(t, c.config))
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("nothing of %q in:\n%s", want, got)
				}
			}
		})
	}
}

// TestServerCertificatesThatDoNotWork is about what is wrong with the server's.
func TestServerCertificatesThatDoNotWork(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		from, to time.Time
		ip       string
		want     string
	}{
		"expired": {now.Add(-2 * time.Hour), now.Add(-time.Hour), "127.0.0.1",
			"compare this machine's clock with the API server's; if they agree, the certificate must be renewed"},
		"not valid yet": {now.Add(time.Hour), now.Add(2 * time.Hour), "127.0.0.1", "set the clock"},
		"of another address": {now.Add(-time.Hour), now.Add(time.Hour), "192.0.2.1",
			"use an address in the kubeconfig that the API server's certificate names"},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server"}, NotBefore: c.from,
				NotAfter:    c.to,
				IPAddresses: []net.IP{net.ParseIP(c.ip)}, IsCA: true, BasicConstraintsValid: true,
				KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
			der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			server.StartTLS()
			defer server.Close()
			got := ask(t, kubeconfig(t, &rest.Config{Host: server.URL, BearerToken: "abc", TLSClientConfig: rest.TLSClientConfig{
				CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}}))
			if !strings.Contains(got, c.want) {
				t.Errorf("nothing of %q in:\n%s", c.want, got)
			}
		})
	}
}

// TestKubeconfigsThatDoNotWork names the file and what is missing.
func TestKubeconfigsThatDoNotWork(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const rest = "\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	for name, c := range map[string]struct {
		path string
		want string
	}{
		"missing":         {filepath.Join(dir, "none"), "none"},
		"no YAML":         {file("broken", "{"), "broken"},
		"nothing in it":   {file("empty", "apiVersion: v1\nkind: Config\n"), "it must name a server"},
		"no such context": {file("context", "apiVersion: v1\nkind: Config\ncurrent-context: y\n"), "y"},
		"no certificate": {file("cert", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: "+
			"https://127.0.0.1:1}}]\nusers: [{name: u, user: {client-certificate: /none.crt, client-key: /none.key}}]"+rest), "/none.crt"},
		"no authority file": {file("ca", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: https://127.0.0.1:1, "+
			"certificate-authority: /none.ca}}]\nusers: [{name: u, user: {token: t}}]"+rest), "/none.ca"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ask(t, c.path); !strings.Contains(got, c.want) || strings.HasPrefix(got, "ok") {
				t.Errorf("nothing of %q in: %s", c.want, got)
			}
		})
	}
}
