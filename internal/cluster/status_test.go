package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/supervise"
)

// TestStatusText is what `berth status` prints, whole.
func TestStatusText(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	s := Status{
		PID: 7, Since: now.Add(-time.Hour), DataDir: "/var/lib/berth", Instance: "berth", NodeIP: "192.0.2.2", Ready: true,
		ReadyIn: 310 * time.Millisecond,
		Settings: Settings{Role: RoleWhole, NodeName: "a", ClusterCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16",
			ClusterDomain: "cluster.local", Ports: PortsFrom(7000)},
		Runtime: "containerd (bundled)",
		Parts: []supervise.State{{Name: "api server", Since: now.Add(-time.Hour)},
			{Name: "proxy", Since: now.Add(-time.Minute), Restarts: 2, LastError: "broken"}},
		Checks:       []Check{{Name: "store", OK: true}, {Name: "api", Detail: "refused"}},
		Certificates: []certificateEnd{{Name: "api", End: now.Add(24 * time.Hour), Renewal: now.Add(20 * time.Hour)}},
		Notes:        []string{"no cgroup v2"},
	}
	var out strings.Builder
	s.Print(&out, now)
	for _, want := range []string{
		"cluster   berth, ready (in 310 ms), up 1h0m0s, process 7\n",
		"data      /var/lib/berth\n",
		"(kubeconfig /var/lib/berth/admin.kubeconfig)\n",
		"node      a at 192.0.2.2, pods 10.244.0.0/16, services 10.96.0.0/16, domain cluster.local\n",
		"runtime   containerd (bundled)\n",
		"check     ok   store        \n",
		"check     BAD  api          refused\n",
		"part      api server                       running 1h0m0s\n",
		"part      proxy                            running 1m0s, restarted 2 times, last: broken\n",
		"certs     next end 2026-03-02 12:00:00 (api), renewed by itself from 2026-03-02 08:00:00\n",
		"note      no cgroup v2\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	node := Status{Settings: Settings{Role: RoleNode, ServerURL: "https://192.0.2.1:6443"}}
	out.Reset()
	node.Print(&out, now)
	if !strings.Contains(out.String(), "api       https://192.0.2.1:6443\n") || !strings.Contains(out.String(), ", starting,") ||
		strings.Contains(out.String(), "admin.kubeconfig") {
		t.Errorf("a node that starts:\n%s", out.String())
	}
}

// TestPartLogs: each part has a file of its own, in the format and from the level
// that were asked for; libraries are one level lower.
func TestPartLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	for _, bad := range [][2]string{{"xml", ""}, {"", "loud"}} {
		if _, err := newLogs(dir, bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "allowed are") {
			t.Errorf("format %q, level %q: %v", bad[0], bad[1], err)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("refused logs left their directory")
	}
	l, err := newLogs(dir, "json", "warn")
	if err != nil {
		t.Fatal(err)
	}
	log, err := l.part("proxy")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("heard", "rows", 3)
	l.close()
	text, err := os.ReadFile(filepath.Join(dir, "proxy.log"))
	if err != nil || strings.Contains(string(text), "quiet") || !strings.Contains(string(text), `"msg":"heard","rows":3}`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestCAHash: what is no certificate is refused by the name of its file.
func TestCAHash(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	if _, err := CAHash(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a missing file: %v", err)
	}
	for _, bad := range []string{"no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if hash, err := CAHash(file); err == nil {
			t.Errorf("%q has the hash %s", bad, hash)
		}
	}
}

// TestStoredSettings: what a start kept is found by the next one; a newer layout
// and a damaged file are refused by name.
func TestStoredSettings(t *testing.T) {
	c := Config{DataDir: t.TempDir(), Settings: Settings{Role: RoleWhole, NodeName: "a", Ports: PortsFrom(7000)}}
	if s, err := c.stored(); err != nil || s.NodeName != "" {
		t.Fatalf("nothing is stored yet: %+v, %v", s, err)
	}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if s, err := c.stored(); err != nil || s.NodeName != "a" || s.Ports != c.Ports || s.Version != dataVersion {
		t.Errorf("stored: %+v, %v", s, err)
	}
	for text, want := range map[string]string{`{"version": 99}`: "newer berth", `{"version": `: "cluster.json"} {
		if err := os.WriteFile(c.settingsFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.stored(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
