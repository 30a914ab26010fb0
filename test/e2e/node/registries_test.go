package node

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestRegistries pulls as registries.yaml says: from a mirror with a rewrite,
// credentials and a CA of its own; and after a restart with another file no
// more from there.
func TestRegistries(t *testing.T) {
	c := kit.NewCluster(t)
	file := filepath.Join(c.Dir, "registries.yaml")
	settings := func(text string, values ...any) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, text, values...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings("mirrors:\n  mirrored.example:\n    endpoints: [x]\n")
	if out, err := c.TryUp(); err == nil || !strings.Contains(out, "registries.yaml: line 3") ||
		!strings.Contains(out, "allowed are endpoint, rewrite") {
		t.Fatalf("a broken file: %v\n%s", err, out)
	}

	r := startRegistry(t, c)
	secure := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r}))
	t.Cleanup(secure.Close)
	host := strings.TrimPrefix(secure.URL, "https://")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	settings(`
mirrors:
  mirrored.example:
    endpoint: [%q]
    rewrite: {"^(.*)$": "private/$1"}
  unknown.example:
    endpoint: [%q]
    rewrite: {"^(.*)$": "open/$1"}
configs:
  %q:
    auth: {username: user, password: password}
    tls: {ca_file: %q}
`, secure.URL, strings.Replace(secure.URL, "127.0.0.1", "localhost", 1), host, ca)
	c.Up()
	imagePod(c, "mirrored", "mirrored.example/toolbox:1", "IfNotPresent", "")
	// localhost is another host: neither the CA nor the credentials are for it.
	imagePod(c, "unknown", "unknown.example/toolbox:2", "IfNotPresent", "")
	c.WaitReady("default", "app=mirrored", 1)
	if text := waiting(c, "unknown", "ErrImagePull", "ImagePullBackOff"); strings.Contains(text, "password") {
		t.Errorf("the message shows a password: %s", text)
	}
	noSecrets(c, t, host)

	settings("mirrors:\n  other.example:\n    endpoint: [\"http://%s\"]\n    rewrite: {\"^(.*)$\": \"open/$1\"}\n", r)
	c.Disconnect()
	c.Down()
	c.Up()
	imagePod(c, "other", "other.example/toolbox:3", "IfNotPresent", "")
	imagePod(c, "gone", "mirrored.example/toolbox:4", "IfNotPresent", "")
	c.WaitReady("default", "app=other", 1)
	waiting(c, "gone", "ErrImagePull", "ImagePullBackOff")
	if _, err := os.Stat(filepath.Join(c.Dir, "registries", "mirrored.example")); !os.IsNotExist(err) {
		t.Errorf("the registry that left the file is still configured: %v", err)
	}
	config, err := os.ReadFile(filepath.Join(c.Dir, "containerd", "config.toml"))
	if err != nil || strings.Contains(string(config), "password") {
		t.Errorf("credentials that left the file are still configured: %v", err)
	}
}

// noSecrets looks for the registry's password where it does not belong, and at
// the mode of the files that have it.
func noSecrets(c *kit.Cluster, t *testing.T, host string) {
	t.Helper()
	config := filepath.Join(c.Dir, "containerd", "config.toml")
	text, err := os.ReadFile(config)
	if err != nil || !strings.Contains(string(text), fmt.Sprintf("configs.%q.auth", host)) {
		t.Errorf("the credentials are not configured: %v", err)
	}
	for _, file := range []string{config, filepath.Join(c.Dir, "registries", "mirrored.example", "hosts.toml")} {
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", file, st, err)
		}
	}
	logs, err := filepath.Glob(filepath.Join(c.Dir, "logs", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	for _, file := range append(logs, filepath.Join(c.Dir, "cluster.json")) {
		text, err := os.ReadFile(file)
		if err == nil && (strings.Contains(string(text), "password: ") || strings.Contains(string(text), "dXNlcjpwYXNzd29yZA")) {
			t.Errorf("%s holds a credential", file)
		}
	}
}
