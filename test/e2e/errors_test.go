package e2e

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
)

// TestFailingStarts makes each stage of `berth up` fail, in the foreground and
// detached: the message must name cause and remedy, and the machine and the
// data directory must be as before (a failed start may leave its logs).
func TestFailingStarts(t *testing.T) {
	tests := []struct {
		name  string
		setup func(t *testing.T, c *cluster)
		want  []string
	}{
		{"port taken", func(t *testing.T, c *cluster) {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(c.first+1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, []string{"port %PORT1% is taken", "--agent-port", "--ports-from"}},
		{"newer data directory", func(t *testing.T, c *cluster) {
			write(t, filepath.Join(c.dir, "cluster.json"), `{"version": 99}`, 0o644)
			t.Cleanup(func() { os.Remove(filepath.Join(c.dir, "cluster.json")) })
		}, []string{"newer berth", "layout 99", "another --data-dir"}},
		{"damaged settings", func(t *testing.T, c *cluster) {
			write(t, filepath.Join(c.dir, "cluster.json"), `{"version": `, 0o644)
			t.Cleanup(func() { os.Remove(filepath.Join(c.dir, "cluster.json")) })
		}, []string{"cluster.json", "reading the cluster's settings"}},
		{"path too long", func(t *testing.T, c *cluster) {
			c.extra = append(c.extra, "--data-dir", filepath.Join(c.dir, strings.Repeat("long", 25)))
		}, []string{"--data-dir", "too long", "shorter"}},
		{"bundle file missing", func(t *testing.T, c *cluster) {
			c.extra = append(c.extra, "--bundle-dir", bundle(t, c, "host-local", ""))
		}, []string{"has no host-local", "make build", "--container-runtime-endpoint"}},
		{"no space", func(t *testing.T, c *cluster) {
			if err := unix.Mount("tmpfs", c.dir, "tmpfs", 0, "size=8m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(c.dir, 0); err != nil {
					t.Errorf("unmounting: %v", err)
				}
			})
		}, []string{"MiB free", "256", "make room"}},
		{"clock", func(t *testing.T, c *cluster) {
			if _, err := pki.EnsureCA(filepath.Join(c.dir, "pki"), "ca", "", time.Now().Add(48*time.Hour)); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(c.dir, "cluster.json"), `{"version": 1}`, 0o644)
		}, []string{"not valid before", "clock", "set the clock"}},
		{"node address", extra("--node-ip", "x"), []string{`--node-ip "x"`, "not an IP address"}},
		{"overlapping ranges", extra("--cluster-cidr", "10.20.0.0/16", "--service-cidr", "10.20.128.0/20"),
			[]string{"--cluster-cidr", "--service-cidr", "overlap", "choose"}},
		{"not a range", extra("--service-cidr", "10.20.0.0"), []string{`--service-cidr "10.20.0.0"`, "not a CIDR"}},
		{"log level", extra("--log-level", "loud"), []string{`--log-level "loud"`, "debug, info, warn and error"}},
		{"log format", extra("--log-format", "xml"), []string{`--log-format "xml"`, "text and json"}},
		{"runtime dies", func(t *testing.T, c *cluster) {
			c.extra = append(c.extra, "--bundle-dir",
				bundle(t, c, "containerd", "#!/bin/sh\necho the sky fell on this machine >&2\nexit 1\n"))
		}, []string{"containerd ended at start", "the sky fell on this machine", "containerd.log"}},
		{"agent's configuration", func(t *testing.T, c *cluster) {
			c.extra = append(c.extra, "--agent-config", agentConfig(t, "cpuManagerPolicy: static\n"))
		}, []string{"the agent ended", "cpuManagerPolicy", "reserve", "agent.log"}},
		{"no runtime on the given socket", extra("--container-runtime-endpoint", "unix:///nonexistent/cri.sock"),
			[]string{"/nonexistent/cri.sock", "--container-runtime-endpoint", "must be the socket of a running"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			tt.setup(t, c)
			before, files := look(t, c.dir), tree(t, c.dir)
			for _, mode := range []string{"", "--detach"} {
				args := []string{"up", "--data-dir", c.dir, "--ports-from", strconv.Itoa(c.first)}
				if mode != "" {
					args = append(args, mode)
				}
				out, err := c.tryBerth(append(args, c.extra...)...)
				if err == nil {
					t.Fatalf("up %s succeeded:\n%s", mode, out)
				}
				for _, want := range tt.want {
					if want = strings.ReplaceAll(want, "%PORT1%", strconv.Itoa(c.first+1)); !strings.Contains(out, want) {
						t.Errorf("up %s: the message lacks %q:\n%s", mode, want, out)
					}
				}
				if strings.Contains(out, "context canceled") {
					t.Errorf("up %s: the message names a consequence beside the cause:\n%s", mode, out)
				}
				if left := look(t, c.dir).left(before); len(left) != 0 {
					t.Errorf("up %s left:\n%s", mode, strings.Join(left, "\n"))
				}
				for _, f := range tree(t, c.dir) {
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
	c := newCluster(t)
	fine := []string{"--agent-config", agentConfig(t, "cpuManagerPolicy: none\n")}
	c.extra = fine
	c.up()
	c.disconnect()
	c.down()
	c.extra = []string{"--agent-config", agentConfig(t, "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n")}
	out, err := c.tryUp()
	if err == nil || !strings.Contains(out, "cpu_manager_state") || !strings.Contains(out, "the agent ended") {
		t.Errorf("a policy that the state file contradicts: %v\n%s", err, out)
	}
	if out, err := c.tryBerth("status", "--data-dir", c.dir); err == nil {
		t.Errorf("the failed start goes on:\n%s", out)
	}
	c.extra = fine
	c.up()
}

// TestFailedStartKeepsForeignFiles makes sure that neither a failed start nor
// a purge empties a directory that was never a cluster's.
func TestFailedStartKeepsForeignFiles(t *testing.T) {
	c := newCluster(t)
	mine := filepath.Join(c.dir, "thesis.txt")
	write(t, mine, "years of work", 0o644)
	t.Cleanup(func() { os.Remove(mine) })
	if out, err := c.tryUpWith("--bundle-dir", bundle(t, c, "containerd", "#!/bin/sh\nexit 1\n")); err == nil {
		t.Fatalf("up succeeded with a broken runtime:\n%s", out)
	}
	os.Remove(filepath.Join(c.dir, "cluster.json"))
	out, err := c.tryBerth("down", "--data-dir", c.dir, "--purge")
	if err == nil || !strings.Contains(out, "cluster.json") || !strings.Contains(out, "by hand") {
		t.Errorf("purging a directory that is no cluster's: %v\n%s", err, out)
	}
	if data, err := os.ReadFile(mine); err != nil || string(data) != "years of work" {
		t.Errorf("the file is damaged: %q, %v", data, err)
	}
	// What the failed start made is the test's to clear.
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		os.RemoveAll(filepath.Join(c.dir, e.Name()))
	}
}

func TestNotRoot(t *testing.T) {
	c := newCluster(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is not installed (util-linux): it starts a program without root")
	}
	// A copy that others may execute, wherever the binaries lie.
	if err := os.Chmod(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "berth")
	open := filepath.Dir(exe)
	for ; open != os.TempDir() && open != "/"; open = filepath.Dir(open) {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(c.bin, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, data, 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, c.dir)
	for _, args := range [][]string{{"up"}, {"up", "--detach"}, {"down"}} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		line := append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", exe}, args...)
		out, err := exec.CommandContext(ctx, setpriv, append(line, "--data-dir", c.dir)...).CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), "root is needed") || !strings.Contains(string(out), "sudo") {
			t.Errorf("%v as nobody: %v\n%s", args, err, out)
		}
	}
	if after := tree(t, c.dir); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("left behind: %v", after)
	}
}

// TestSecondUp starts berth again on a data directory in use, and another
// cluster on the ports of the first.
func TestSecondUp(t *testing.T) {
	c := newCluster(t)
	c.up()
	pid := c.pid()
	out, err := c.tryUp()
	if err != nil || !strings.Contains(out, "already up") || !strings.Contains(out, strconv.Itoa(pid)) {
		t.Errorf("detached: %v\n%s", err, out)
	}
	out, err = c.tryBerth("up", "--data-dir", c.dir, "--ports-from", strconv.Itoa(c.first))
	if err == nil || !strings.Contains(out, "already running") || !strings.Contains(out, "berth down") ||
		!strings.Contains(out, strconv.Itoa(pid)) {
		t.Errorf("in the foreground: %v\n%s", err, out)
	}
	if c.pid() != pid {
		t.Errorf("process %d took over from %d", c.pid(), pid)
	}
	other := newCluster(t)
	other.first = c.first
	if out, err := other.tryUp(); err == nil || !strings.Contains(out, "is taken") {
		t.Errorf("another cluster on the same ports: %v\n%s", err, out)
	}
	// Settings that the stored objects depend on cannot be changed later.
	c.disconnect()
	c.down()
	if out, err := c.tryUpWith("--cluster-cidr", "10.77.0.0/16"); err == nil ||
		!strings.Contains(out, "--cluster-cidr 10.77.0.0/16: this cluster was made with") {
		t.Errorf("another pod range: %v\n%s", err, out)
	}
}

func TestStatusAndDown(t *testing.T) {
	c := newCluster(t)
	out, err := c.tryBerth("status", "--data-dir", c.dir)
	if err == nil || !strings.Contains(out, "down: no cluster runs on "+c.dir) {
		t.Errorf("status of nothing: %v\n%s", err, out)
	}
	if out, err := c.tryBerth("down", "--data-dir", c.dir); err != nil || !strings.Contains(out, "not running") {
		t.Errorf("down of nothing: %v\n%s", err, out)
	}
	if out, err := c.tryBerth("down", "--data-dir", filepath.Join(c.dir, "none")); err != nil || !strings.Contains(out, "no data in") {
		t.Errorf("down of no directory: %v\n%s", err, out)
	}
	if out, err := c.tryBerth("status", "--data-dir", c.dir, "-o", "yaml"); err == nil || !strings.Contains(out, "text and json") {
		t.Errorf("status -o yaml: %v\n%s", err, out)
	}
	c.up()
	text := c.berth("status", "--data-dir", c.dir)
	for _, want := range []string{c.dir, "ready (in ", "process " + strconv.Itoa(c.pid()), strconv.Itoa(c.first), "check     ok   store",
		"check     ok   api", "check     ok   agent", "part      scheduler", "part      agent", "containerd (bundled), process " +
			strconv.Itoa(c.runtimePID())} {
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
	raw := c.berth("status", "--data-dir", c.dir, "-o", "json")
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		t.Fatalf("status -o json: %v\n%s", err, raw)
	}
	if s.PID != c.pid() || s.RuntimePID != c.runtimePID() || s.DataDir != c.dir || !s.Ready || s.Settings.Ports.API != c.first ||
		len(s.Parts) == 0 || len(s.Checks) == 0 {
		t.Errorf("status -o json: %s", raw)
	}
	for _, check := range s.Checks {
		if !check.OK {
			t.Errorf("check %s failed:\n%s", check.Name, raw)
		}
	}
	c.disconnect()
	c.down()
	if out, err := c.tryBerth("down", "--data-dir", c.dir); err != nil || !strings.Contains(out, "not running") {
		t.Errorf("a second down: %v\n%s", err, out)
	}
}

func extra(flags ...string) func(*testing.T, *cluster) {
	return func(_ *testing.T, c *cluster) { c.extra = append(c.extra, flags...) }
}

func (c *cluster) tryUpWith(flags ...string) (string, error) {
	return c.tryBerth(append([]string{"up", "--detach", "--data-dir", c.dir, "--ports-from", strconv.Itoa(c.first)}, flags...)...)
}

// bundle links the runtime bundle into a new directory but for one file,
// which gets other content, or is missing if that is empty.
func bundle(t *testing.T, c *cluster, change, content string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(c.bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == change {
			continue
		}
		if err := os.Symlink(filepath.Join(c.bin, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if content != "" {
		write(t, filepath.Join(dir, change), content, 0o755)
	}
	return dir
}

func write(t *testing.T, file, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
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
