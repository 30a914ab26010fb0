package cluster

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/pki"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestFailingStarts makes each stage of `berth up` fail, in the foreground and
// detached: the message must name cause and remedy, and the host and the
// data directory must be as before (a failed start may leave its logs).
func TestFailingStarts(t *testing.T) {
	kit.OnlyInAll(t, "75 s, the longest of cluster")
	tests := []struct {
		name  string
		setup func(t *testing.T, c *kit.Cluster)
		want  []string
	}{
		{"port taken", func(t *testing.T, c *kit.Cluster) {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(c.FirstPort+1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, []string{"port %PORT1% is taken", "--agent-port", "--ports-from"}},
		{"newer data directory", func(t *testing.T, c *kit.Cluster) {
			kit.WriteFile(t, filepath.Join(c.Dir, "cluster.json"), `{"version": 99}`, 0o644)
			t.Cleanup(func() { os.Remove(filepath.Join(c.Dir, "cluster.json")) })
		}, []string{"newer berth", "layout 99", "another --data-dir"}},
		{"damaged settings", func(t *testing.T, c *kit.Cluster) {
			kit.WriteFile(t, filepath.Join(c.Dir, "cluster.json"), `{"version": `, 0o644)
			t.Cleanup(func() { os.Remove(filepath.Join(c.Dir, "cluster.json")) })
		}, []string{"cluster.json", "reading the cluster's settings"}},
		{"path too long", func(t *testing.T, c *kit.Cluster) {
			c.Flags = append(c.Flags, "--data-dir", filepath.Join(c.Dir, strings.Repeat("long", 25)))
		}, []string{"--data-dir", "too long", "shorter"}},
		{"bundle file missing", func(t *testing.T, c *kit.Cluster) {
			c.Flags = append(c.Flags, "--bundle-dir", bundle(t, c, "host-local", ""))
		}, []string{"has no host-local", "make build", "--container-runtime-endpoint"}},
		{"no space", func(t *testing.T, c *kit.Cluster) {
			if err := unix.Mount("tmpfs", c.Dir, "tmpfs", 0, "size=8m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(c.Dir, 0); err != nil {
					t.Errorf("unmounting: %v", err)
				}
			})
		}, []string{"MiB free", "256", "make room"}},
		{"clock", func(t *testing.T, c *kit.Cluster) {
			if _, err := pki.EnsureCA(filepath.Join(c.Dir, "pki"), "ca", "", time.Now().Add(48*time.Hour)); err != nil {
				t.Fatal(err)
			}
			kit.WriteFile(t, filepath.Join(c.Dir, "cluster.json"), `{"version": 1}`, 0o644)
		}, []string{"not valid before", "clock", "set the clock"}},
		{"node address", extra("--node-ip", "x"), []string{`--node-ip "x"`, "not an IP address"}},
		{"overlapping ranges", extra("--cluster-cidr", "10.20.0.0/16", "--service-cidr", "10.20.128.0/20"),
			[]string{"--cluster-cidr", "--service-cidr", "overlap", "choose"}},
		{"not a range", extra("--service-cidr", "10.20.0.0"), []string{`--service-cidr "10.20.0.0"`, "not a CIDR"}},
		{"log level", extra("--log-level", "loud"), []string{`--log-level "loud"`, "debug, info, warn and error"}},
		{"log format", extra("--log-format", "xml"), []string{`--log-format "xml"`, "text and json"}},
		{"runtime dies", func(t *testing.T, c *kit.Cluster) {
			c.Flags = append(c.Flags, "--bundle-dir",
				bundle(t, c, "containerd", "#!/bin/sh\necho the sky fell on this machine >&2\nexit 1\n"))
		}, []string{"containerd ended at start", "the sky fell on this machine", "containerd.log"}},
		{"agent's configuration", func(t *testing.T, c *kit.Cluster) {
			c.Flags = append(c.Flags, "--agent-config", kit.AgentConfig(t, "cpuManagerPolicy: static\n"))
		}, []string{"the agent ended", "cpuManagerPolicy", "reserve", "agent.log"}},
		{"no runtime on the given socket", extra("--container-runtime-endpoint", "unix:///nonexistent/cri.sock"),
			[]string{"/nonexistent/cri.sock", "--container-runtime-endpoint", "must be the socket of a running"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := kit.NewCluster(t)
			tt.setup(t, c)
			before, files := kit.ReadHostState(t, c.Dir), tree(t, c.Dir)
			for _, mode := range []string{"", "--detach"} {
				args := []string{"up", "--data-dir", c.Dir, "--ports-from", strconv.Itoa(c.FirstPort)}
				if mode != "" {
					args = append(args, mode)
				}
				out, err := c.TryBerth(append(args, c.Flags...)...)
				if err == nil {
					t.Fatalf("up %s succeeded:\n%s", mode, out)
				}
				for _, want := range tt.want {
					if want = strings.ReplaceAll(want, "%PORT1%", strconv.Itoa(c.FirstPort+1)); !strings.Contains(out, want) {
						t.Errorf("up %s: the message lacks %q:\n%s", mode, want, out)
					}
				}
				if strings.Contains(out, "context canceled") {
					t.Errorf("up %s: the message names a consequence beside the cause:\n%s", mode, out)
				}
				if left := kit.ReadHostState(t, c.Dir).LeftSince(before); len(left) != 0 {
					t.Errorf("up %s left:\n%s", mode, strings.Join(left, "\n"))
				}
				for _, f := range tree(t, c.Dir) {
					if !slices.Contains(files, f) && f != "logs" && !strings.HasPrefix(f, "logs/") && f != "lock" && f != "run" &&
						f != "run/boot-id" {
						t.Errorf("up %s left the file %s", mode, f)
					}
				}
			}
		})
	}
}

// TestRefusedAtALaterStart gives a cluster that was Ready before a configuration
// that its agent refuses: the Ready that the last start left in the API must
// not hide it. With the old one it starts again.
func TestRefusedAtALaterStart(t *testing.T) {
	c := kit.NewCluster(t)
	fine := []string{"--agent-config", kit.AgentConfig(t, "cpuManagerPolicy: none\n")}
	c.Flags = fine
	c.Up()
	c.Disconnect()
	c.Down()
	c.Flags = []string{"--agent-config", kit.AgentConfig(t, "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n")}
	out, err := c.TryUp()
	if err == nil || !strings.Contains(out, "cpu_manager_state") || !strings.Contains(out, "the agent ended") {
		t.Errorf("a policy that the state file contradicts: %v\n%s", err, out)
	}
	if out, err := c.TryBerth("status", "--data-dir", c.Dir); err == nil {
		t.Errorf("the failed start goes on:\n%s", out)
	}
	c.Flags = fine
	c.Up()
}

// TestFailedStartKeepsForeignFiles makes sure that neither a failed start nor
// a purge empties a directory that was never a cluster's.
func TestFailedStartKeepsForeignFiles(t *testing.T) {
	c := kit.NewCluster(t)
	mine := filepath.Join(c.Dir, "thesis.txt")
	kit.WriteFile(t, mine, "years of work", 0o644)
	t.Cleanup(func() { os.Remove(mine) })
	if out, err := tryUpWith(c, "--bundle-dir", bundle(t, c, "containerd", "#!/bin/sh\nexit 1\n")); err == nil {
		t.Fatalf("up succeeded with a broken runtime:\n%s", out)
	}
	os.Remove(filepath.Join(c.Dir, "cluster.json"))
	out, err := c.TryBerth("down", "--data-dir", c.Dir, "--purge")
	if err == nil || !strings.Contains(out, "cluster.json") || !strings.Contains(out, "by hand") {
		t.Errorf("purging a directory that is no cluster's: %v\n%s", err, out)
	}
	if data, err := os.ReadFile(mine); err != nil || string(data) != "years of work" {
		t.Errorf("the file is damaged: %q, %v", data, err)
	}
	// What the failed start made is the test's to clear.
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		os.RemoveAll(filepath.Join(c.Dir, e.Name()))
	}
}

func TestNotRoot(t *testing.T) {
	c := kit.NewCluster(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is not installed (util-linux): it starts a program without root")
	}
	// A copy that others may execute, wherever the binaries lie.
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "berth")
	open := filepath.Dir(exe)
	for ; open != os.TempDir() && open != "/"; open = filepath.Dir(open) {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(c.Bin, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, data, 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, c.Dir)
	for _, args := range [][]string{{"up"}, {"up", "--detach"}, {"down"}} {
		ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
		line := append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", exe}, args...)
		out, err := exec.CommandContext(ctx, setpriv, append(line, "--data-dir", c.Dir)...).CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), "root is needed") || !strings.Contains(string(out), "sudo") {
			t.Errorf("%v as nobody: %v\n%s", args, err, out)
		}
	}
	if after := tree(t, c.Dir); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("left behind: %v", after)
	}
}

// TestSecondUp starts berth again on a data directory in use, and another
// cluster on the ports of the first.
func TestSecondUp(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	pid := c.PID()
	out, err := c.TryUp()
	if err != nil || !strings.Contains(out, "already up") || !strings.Contains(out, strconv.Itoa(pid)) {
		t.Errorf("detached: %v\n%s", err, out)
	}
	out, err = c.TryBerth("up", "--data-dir", c.Dir, "--ports-from", strconv.Itoa(c.FirstPort))
	if err == nil || !strings.Contains(out, "already running") || !strings.Contains(out, "berth down") ||
		!strings.Contains(out, strconv.Itoa(pid)) {
		t.Errorf("in the foreground: %v\n%s", err, out)
	}
	if c.PID() != pid {
		t.Errorf("process %d took over from %d", c.PID(), pid)
	}
	other := kit.NewCluster(t)
	other.FirstPort = c.FirstPort
	if out, err := other.TryUp(); err == nil || !strings.Contains(out, "is taken") {
		t.Errorf("another cluster on the same ports: %v\n%s", err, out)
	}
	// Settings that the stored objects depend on cannot be changed later.
	c.Disconnect()
	c.Down()
	if out, err := tryUpWith(c, "--cluster-cidr", "10.77.0.0/16"); err == nil ||
		!strings.Contains(out, "--cluster-cidr 10.77.0.0/16: this cluster was made with") {
		t.Errorf("another pod range: %v\n%s", err, out)
	}
}

func TestStatusAndDown(t *testing.T) {
	c := kit.NewCluster(t)
	out, err := c.TryBerth("status", "--data-dir", c.Dir)
	if err == nil || !strings.Contains(out, "down: no cluster runs on "+c.Dir) {
		t.Errorf("status of nothing: %v\n%s", err, out)
	}
	if out, err := c.TryBerth("down", "--data-dir", c.Dir); err != nil || !strings.Contains(out, "not running") {
		t.Errorf("down of nothing: %v\n%s", err, out)
	}
	if out, err := c.TryBerth("down", "--data-dir", filepath.Join(c.Dir, "none")); err != nil || !strings.Contains(out, "no data in") {
		t.Errorf("down of no directory: %v\n%s", err, out)
	}
	if out, err := c.TryBerth("status", "--data-dir", c.Dir, "-o", "yaml"); err == nil || !strings.Contains(out, "text and json") {
		t.Errorf("status -o yaml: %v\n%s", err, out)
	}
	c.Up()
	text := c.Berth("status", "--data-dir", c.Dir)
	for _, want := range []string{c.Dir, "ready (in ", "process " + strconv.Itoa(c.PID()), strconv.Itoa(c.FirstPort),
		"check     ok   store",
		"check     ok   api", "check     ok   agent", "part      scheduler", "part      agent", "containerd (bundled), process " +
			strconv.Itoa(c.RuntimePID())} {
		if !strings.Contains(text, want) {
			t.Errorf("status lacks %q:\n%s", want, text)
		}
	}
	var s struct {
		PID, RuntimePID int
		DataDir         string
		Ready           bool
		Settings        struct{ Ports struct{ API int } }
		Parts           []struct{ Name string }
		Checks          []struct {
			Name string
			OK   bool
		}
	}
	raw := c.Berth("status", "--data-dir", c.Dir, "-o", "json")
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		t.Fatalf("status -o json: %v\n%s", err, raw)
	}
	if s.PID != c.PID() || s.RuntimePID != c.RuntimePID() || s.DataDir != c.Dir || !s.Ready || s.Settings.Ports.API != c.FirstPort ||
		len(s.Parts) == 0 || len(s.Checks) == 0 {
		t.Errorf("status -o json: %s", raw)
	}
	for _, check := range s.Checks {
		if !check.OK {
			t.Errorf("check %s failed:\n%s", check.Name, raw)
		}
	}
	c.Disconnect()
	c.Down()
	if out, err := c.TryBerth("down", "--data-dir", c.Dir); err != nil || !strings.Contains(out, "not running") {
		t.Errorf("a second down: %v\n%s", err, out)
	}
}

func extra(flags ...string) func(*testing.T, *kit.Cluster) {
	return func(_ *testing.T, c *kit.Cluster) { c.Flags = append(c.Flags, flags...) }
}

func tryUpWith(c *kit.Cluster, flags ...string) (string, error) {
	return c.TryBerth(append([]string{"up", "--detach", "--data-dir", c.Dir, "--ports-from", strconv.Itoa(c.FirstPort)}, flags...)...)
}

// bundle links the runtime bundle into a new directory but for one file,
// which gets other content, or is missing if that is empty.
func bundle(t *testing.T, c *kit.Cluster, change, content string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(c.Bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == change {
			continue
		}
		if err := os.Symlink(filepath.Join(c.Bin, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if content != "" {
		kit.WriteFile(t, filepath.Join(dir, change), content, 0o755)
	}
	return dir
}

// tree lists the files below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if rel, rerr := filepath.Rel(dir, p); rerr == nil && rel != "." {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
