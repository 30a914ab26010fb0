package cluster

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/control/api"
)

// TestEncryptionOfAStore: a store that is new gets a key for its Secrets; one
// that holds data, or that other servers share, stays as it is.
func TestEncryptionOfAStore(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(*Config)
		want   string // below pki/, or a path
		made   bool
	}{
		{"a new store", func(*Config) {}, "pki/encryption.yaml", true},
		{"an empty store directory", func(c *Config) { mkdir(t, c.Path("etcd")) }, "pki/encryption.yaml", true},
		{"a store with data and no key", func(c *Config) { mkdir(t, c.Path("etcd", "member-data")) }, "", false},
		{"a store with its key", func(c *Config) {
			mkdir(t, c.Path("etcd", "member-data"))
			mkdir(t, c.Path("pki"))
			if err := os.WriteFile(c.encryptionFile(), []byte("kept"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "pki/encryption.yaml", false},
		{"an external etcd", func(c *Config) { c.EtcdServers = []string{"https://a:2379"} }, "", false},
		{"a configuration of the administrator's", func(c *Config) {
			c.APIServer = api.NewOptions()
			c.APIServer.EncryptionConfig = "/etc/keys.yaml"
		}, "/etc/keys.yaml", false},
	} {
		cfg := &Config{DataDir: t.TempDir()}
		c.before(cfg)
		o, err := cfg.serverOptions()
		if err != nil {
			t.Fatal(err)
		}
		want := c.want
		if want != "" && !filepath.IsAbs(want) {
			want = cfg.Path(want)
		}
		if o.EncryptionConfig != want {
			t.Errorf("%s: keys of %q, want %q", c.name, o.EncryptionConfig, want)
		}
		text, err := os.ReadFile(cfg.encryptionFile())
		if made := err == nil && string(text) != "kept"; made != c.made {
			t.Errorf("%s: keys are made: %v", c.name, made)
		}
		if st, err := os.Stat(cfg.encryptionFile()); c.made && (err != nil || st.Mode().Perm() != 0o600) {
			t.Errorf("%s: %v, %v", c.name, st, err)
		}
		// The options that were given are not the ones that places are filled
		// into: a second start would take them for given.
		if cfg.APIServer.Audit.LogOptions.Path != api.AuditLogDefault || o.Audit.LogOptions.Path != cfg.Path("logs", "audit.log") {
			t.Errorf("%s: audit log %s, given %s", c.name, o.Audit.LogOptions.Path, cfg.APIServer.Audit.LogOptions.Path)
		}
	}
	for _, path := range []string{"-", "", "/var/log/audit.log"} {
		cfg := &Config{DataDir: t.TempDir(), APIServer: api.NewOptions()}
		cfg.APIServer.Audit.LogOptions.Path = path
		if o, err := cfg.serverOptions(); err != nil || o.Audit.LogOptions.Path != path {
			t.Errorf("--audit-log-path=%s becomes %q, %v", path, o.Audit.LogOptions.Path, err)
		}
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// control answers on the control socket of a data directory.
func control(t *testing.T, h http.Handler) (dataDir string) {
	t.Helper()
	dataDir, err := os.MkdirTemp("", "c") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, filepath.Dir(ControlSocket(dataDir)))
	l, err := net.Listen("unix", ControlSocket(dataDir))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h} //nolint:gosec // only this test calls
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }() //nolint:errcheck // it is closed
	t.Cleanup(func() { srv.Close(); <-done; os.RemoveAll(dataDir) })
	return dataDir
}

// TestRotateSecrets: what the cluster answers reaches the user, also how far a
// rotation came that failed.
func TestRotateSecrets(t *testing.T) {
	answer := ""
	dir := control(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/secrets/rotate" {
			http.NotFound(w, r)
			return
		}
		if _, err := w.Write([]byte(answer)); err != nil {
			t.Error(err)
		}
	}))
	for _, c := range []struct{ answer, fault string }{
		{`{"objects":7,"file":"/k","newKey":true}`, ""},
		{`{"objects":3,"error":"the disk is full"}`, "after 3 objects: the disk is full"},
		{`<html>`, "asking the cluster on " + dir},
	} {
		answer = c.answer
		done, err := RotateSecrets(t.Context(), dir)
		if c.fault == "" && (err != nil || done.Objects != 7 || !done.NewKey || done.File != "/k") {
			t.Errorf("%s: %+v, %v", c.answer, done, err)
		}
		if c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: %v, want %q", c.answer, err, c.fault)
		}
	}
	if _, err := RotateSecrets(t.Context(), t.TempDir()); err == nil {
		t.Error("a cluster that does not run rotated its keys")
	}
}

// TestRotationNeedsAServer: a node says where to rotate; servers that share an
// etcd refuse to change a key that the others do not have.
func TestRotationNeedsAServer(t *testing.T) {
	etcd := externalEtcd{EtcdServers: []string{"https://a:2379"}}
	u := &up{Config: &Config{DataDir: t.TempDir(), externalEtcd: etcd}, log: slog.New(slog.DiscardHandler)}
	mux := http.NewServeMux()
	u.serveRotation(mux)
	dir := control(t, mux)
	if _, err := RotateSecrets(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "rotate on a server") {
		t.Errorf("a node: %v", err)
	}
	o := api.NewOptions()
	o.EncryptionConfig = u.encryptionFile()
	u.serverChoices.Store(o)
	if _, err := RotateSecrets(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "one after the other") {
		t.Errorf("servers that share an etcd: %v", err)
	}
	if _, err := os.Stat(u.encryptionFile()); err == nil {
		t.Error("the refused rotation wrote a key")
	}
}

// TestAsk: a status answer comes whole; one that is cut off is an error.
func TestAsk(t *testing.T) {
	want := Status{PID: 7, Instance: "berth-x", NodeIP: "192.0.2.2", Settings: Settings{Role: RoleServer, Ports: PortsFrom(7000)}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	length := len(text)
	dir := control(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write(text[:length]); err != nil {
			t.Error(err)
		}
	}))
	got, err := Ask(t.Context(), dir)
	if err != nil || got.PID != 7 || got.Settings.Role != RoleServer || got.Settings.Ports != want.Settings.Ports {
		t.Errorf("%+v, %v", got, err)
	}
	if url := got.APIURL(); url != "https://192.0.2.2:7000" {
		t.Errorf("other hosts see the API at %s", url)
	}
	length--
	if _, err := Ask(t.Context(), dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("an answer that is cut off: %v", err)
	}
}
