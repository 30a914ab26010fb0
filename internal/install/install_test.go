package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// TestServices: the unit and the script, word for word.
func TestServices(t *testing.T) {
	golden.Check(t, "../../examples/systemd/berth.service", unit("up"))
	for _, role := range []string{"up", "server", "join"} {
		if role != "up" {
			golden.Check(t, filepath.Join("testdata", role+".service"), unit(role))
		}
		golden.Check(t, filepath.Join("testdata", role+".openrc"), script(role))
	}
}

// TestSystemdReadsTheUnit has systemd's own reader look at the units, where it
// is installed.
func TestSystemdReadsTheUnit(t *testing.T) {
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed here")
	}
	for _, role := range []string{"up", "server", "join"} {
		file := filepath.Join(t.TempDir(), "berth.service")
		// The program need not be there for the rest to be read.
		text := strings.Replace(unit(role), "ExecStart="+binary, "ExecStart=/bin/true", 1)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, "verify", "--man=no", "--recursive-errors=no", file).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("berth.service")) {
			t.Errorf("%s: %v\n%s", role, err, out)
		}
	}
}

// world is a host below a directory, whose service manager records.
type world struct {
	Host
	t    *testing.T
	root string
	ran  []string
	fail string // a command that fails
	out  bytes.Buffer
}

func newWorld(t *testing.T, init string) *world {
	w := &world{t: t, root: t.TempDir()}
	w.Host = Host{Root: w.root, Out: &w.out, Run: func(_ context.Context, program string, args ...string) error {
		line := program + " " + strings.Join(args, " ")
		w.ran = append(w.ran, line)
		if w.fail != "" && strings.Contains(line, w.fail) {
			return errors.New("exit status 1")
		}
		return nil
	}}
	for _, dir := range map[string][]string{"systemd": {"run/systemd/system"}, "openrc": {"run/openrc"}}[init] {
		w.mkdir(dir)
	}
	if init == "openrc" {
		w.write("sbin/openrc-run", "")
	}
	w.mkdir("usr/local/bin")
	w.mkdir("etc")
	w.mkdir("home/jo")
	return w
}

func (w *world) mkdir(dir string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Join(w.root, dir), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	w.mkdir(filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(w.root, name), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// snapshot is every path with its mode and content.
func (w *world) snapshot() string {
	w.t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %s", strings.TrimPrefix(path, w.root), info.Mode())
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", text)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return b.String()
}

// bundle is a directory with programs.
func bundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"berth": "the program", "containerd": "runtime", "images/pause.tar": "image",
		"t/tools/x": "of a test"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const admin = `apiVersion: v1
kind: Config
current-context: berth
clusters: [{name: berth, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: Y2E=}}]
users: [{name: admin, user: {token: secret}}]
contexts: [{name: berth, context: {cluster: berth, user: admin}}]
`

func (w *world) install(settings map[string]any) (changed bool) {
	w.t.Helper()
	dir := bundle(w.t)
	programs, err := Programs(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	files := Plan(Options{Role: "up", Init: w.Init(), Bundle: dir, Programs: programs, Settings: settings,
		Completions: map[string]string{"bash": "complete", "zsh": "compdef", "fish": "fish"}})
	if changed, err = w.Write(files, "up", w.Init(), "/var/lib/berth"); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Start(w.t.Context(), w.Init(), changed); err != nil {
		w.t.Fatal(err)
	}
	w.write("var/lib/berth/admin.kubeconfig", admin) // the start made it
	if err := w.MergeKubeconfig("/var/lib/berth/admin.kubeconfig", User{Home: "/home/jo", UID: os.Getuid(), GID: os.Getgid()}); err != nil {
		w.t.Fatal(err)
	}
	return changed
}

func (w *world) uninstall() error {
	w.t.Helper()
	r, err := w.PlanRemoval()
	if err != nil {
		return err
	}
	return w.Remove(w.t.Context(), r, func(dataDir string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(dataDir))) })
}

// TestInstallAndLeave: before and after are the same, byte by byte, with both
// service managers, with and without a kubeconfig that was there.
func TestInstallAndLeave(t *testing.T) {
	for _, init := range []string{"systemd", "openrc"} {
		for _, kubeconfig := range []bool{false, true} {
			w := newWorld(t, init)
			if kubeconfig {
				w.write("home/jo/.kube/config", normal(t, strings.ReplaceAll(strings.ReplaceAll(admin, "berth", "work"), "6443", "7443")))
				if err := os.Chmod(filepath.Join(w.root, "home/jo/.kube/config"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := w.snapshot()
			if !w.install(map[string]any{"node-name": "n1", "token": "s3cret"}) {
				t.Error("nothing was written")
			}
			st, err := os.Stat(filepath.Join(w.root, configFile))
			if err != nil || st.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", configFile, st, err)
			}
			if exists(w.path(libDir+"/t")) || !exists(w.path(libDir+"/images/pause.tar")) {
				t.Error("the wrong programs are copied")
			}
			first := w.snapshot()
			w.ran = nil
			if w.install(nil) {
				t.Errorf("a second installation changes something:\n%s", w.out.String())
			}
			if second := w.snapshot(); second != first {
				t.Errorf("a second installation leaves another host")
			}
			if slices.ContainsFunc(w.ran, func(s string) bool { return strings.Contains(s, "restart") }) {
				t.Errorf("a second installation restarts it: %q", w.ran)
			}
			w.ran = nil
			if err := w.uninstall(); err != nil {
				t.Fatal(err)
			}
			if after := w.snapshot(); after != before {
				t.Errorf("%s, kubeconfig %t: left behind\nbefore:\n%s\nafter:\n%s", init, kubeconfig, before, after)
			}
			want := map[string]string{"systemd": "systemctl disable --now berth.service|systemctl daemon-reload",
				"openrc": "rc-service berth stop|rc-update del berth default"}[init]
			if got := strings.Join(w.ran, "|"); got != want {
				t.Errorf("ran %q, want %q", got, want)
			}
			if err := w.uninstall(); !errors.Is(err, ErrNotInstalled) {
				t.Errorf("a second uninstallation: %v", err)
			}
		}
	}
}

func normal(t *testing.T, kubeconfig string) string {
	t.Helper()
	cfg, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	out, err := clientcmd.Write(*cfg)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestUninstallKeepsWhatOthersMade: files of the administrator stay and are
// named; a service that does not stop keeps everything for another try.
func TestUninstallKeepsWhatOthersMade(t *testing.T) {
	w := newWorld(t, "systemd")
	w.install(map[string]any{})
	w.write("etc/berth/registries.yaml", "mirrors: {}\n")
	r, err := w.PlanRemoval()
	if err != nil || !slices.Contains(r.Keeps, "/etc/berth/registries.yaml, which you made") {
		t.Fatalf("%+v, %v", r.Keeps, err)
	}
	w.fail = "disable"
	if err := w.uninstall(); err == nil || !exists(w.path(recordFile)) || !exists(w.path(binary)) {
		t.Fatalf("it goes on while the service runs: %v", err)
	}
	w.fail = ""
	if err := w.uninstall(); err != nil || !exists(w.path("/etc/berth/registries.yaml")) || exists(w.path(unitFile)) {
		t.Fatalf("%v", err)
	}
}

// TestMergeKubeconfig: other clusters and the current context stay; a name that
// is taken is not overwritten; a file that cannot be read is not replaced.
func TestMergeKubeconfig(t *testing.T) {
	w := newWorld(t, "systemd")
	w.write("home/jo/.kube/config", normal(t, strings.ReplaceAll(admin, "6443", "9999"))) // a context berth of another cluster
	w.install(map[string]any{})
	cfg, err := clientcmd.LoadFromFile(w.path("/home/jo/.kube/config"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.CurrentContext != "berth" || cfg.Clusters["berth"].Server != "https://127.0.0.1:9999" ||
		cfg.Clusters["berth-2"].Server != "https://127.0.0.1:6443" || cfg.Contexts["berth-2"].AuthInfo != "berth-2" {
		t.Errorf("%+v", cfg)
	}
	st, err := os.Stat(w.path("/home/jo/.kube/config"))
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	w.write("home/jo/.kube/config", "{{{")
	err = w.MergeKubeconfig("/var/lib/berth/admin.kubeconfig", User{Home: "/home/jo", UID: os.Getuid(), GID: os.Getgid()})
	if text, _ := os.ReadFile(w.path("/home/jo/.kube/config")); err == nil || string(text) != "{{{" {
		t.Errorf("a broken file is replaced: %v", err)
	}
}

// TestRefused: what would leave an installation that cannot be taken away.
func TestRefused(t *testing.T) {
	w := newWorld(t, "systemd")
	w.install(map[string]any{})
	if _, err := w.Write(nil, "up", "systemd", "/elsewhere"); err == nil || !strings.Contains(err.Error(), "/var/lib/berth") {
		t.Errorf("another data directory: %v", err)
	}
	if _, err := w.Write(nil, "server", "systemd", "/var/lib/berth"); err == nil || !strings.Contains(err.Error(), "uninstall") {
		t.Errorf("another role: %v", err)
	}
	if _, err := Programs(t.TempDir()); err == nil || !strings.Contains(err.Error(), "--bundle-dir") {
		t.Errorf("a bundle without berth: %v", err)
	}
}

// TestShownHidesSecrets: a dry run does not print tokens.
func TestShownHidesSecrets(t *testing.T) {
	files := Plan(Options{Role: "join", Settings: map[string]any{"token": "abcdef.0123456789abcdef", "server": "https://s:6443"}})
	text := files[len(files)-1].Shown()
	if strings.Contains(text, "abcdef") || !strings.Contains(text, "server: https://s:6443") ||
		!strings.Contains(text, "token: (not shown)") {
		t.Error(text)
	}
}
