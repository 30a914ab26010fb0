package cli

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/pki"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// writeCA gives a data directory the CA of a cluster.
func writeCA(t *testing.T, dataDir string) {
	t.Helper()
	dir := filepath.Join(dataDir, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.EnsureCA(dir, "ca", "", time.Now()); err != nil {
		t.Fatal(err)
	}
}

// TestHelp is what every command of our own says of itself, whole: the flags of
// agent, proxy and controllers are kubelet's, kube-proxy's and
// kube-controller-manager's, and are listed in docs/.
func TestHelp(t *testing.T) {
	t.Setenv("BERTH_DATA_DIR", "")
	t.Setenv("KUBECONFIG", "")
	var b strings.Builder
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if slices.Contains([]string{"agent", "proxy", "controllers", "up", "server"}, c.Name()) {
			fmt.Fprintf(&b, "## %s\n%s\n\n", c.CommandPath(), c.Long)
		} else {
			c.InitDefaultHelpFlag()
			fmt.Fprintf(&b, "## %s\n%s\n%s\n", c.CommandPath(), c.Long, c.UsageString())
		}
		for _, sub := range inOrder(c) {
			walk(sub)
		}
	}
	walk(rootCommand())
	golden.Check(t, filepath.Join("testdata", "help.txt"), b.String())
}

// TestExitCodes: 0 for success, 1 for failure; an error goes to standard error
// after the program's name, and what was shown already is not said again.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("BERTH_DATA_DIR", dir)
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	for _, c := range []struct {
		args        string
		code        int
		out, errors string
	}{
		{"--version", 0, "berth version " + version + "\n", ""},
		{"sail", 1, "", "berth: unknown command \"sail\" for \"berth\"\n"},
		{"status", 1, "down: no cluster runs on " + dir + "; start one with `berth up`\n", ""},
		{"status -o yaml", 1, "", "berth: --output \"yaml\": allowed are text and json\n"},
		{"kubectl version --client -o yaml", 0, "clientVersion:", ""},
		{"kubectl sail", 1, "", "Error: unknown command \"sail\""},
	} {
		code, out, errs := run(t, c.args)
		if code != c.code || !strings.HasPrefix(out, c.out) || c.out == "" && out != "" || !strings.HasPrefix(errs, c.errors) ||
			c.errors == "" && errs != "" {
			t.Errorf("berth %s exits with %d, says %q and %q", c.args, code, out, errs)
		}
	}
}

// run is a whole run of the program in this process.
func run(t *testing.T, args string) (code int, out, errs string) {
	t.Helper()
	stdout, stderr, called := os.Stdout, os.Stderr, os.Args
	defer func() { os.Stdout, os.Stderr, os.Args = stdout, stderr, called }()
	var files []*os.File
	for _, name := range []string{"out", "err"} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	os.Stdout, os.Stderr = files[0], files[1]
	code = Main(append([]string{"berth"}, strings.Fields(args)...))
	var texts []string
	for _, f := range files {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return code, texts[0], texts[1]
}

// TestKubectlFindsTheCluster: kubectl talks to the cluster of the data directory
// unless the user names another.
func TestKubectlFindsTheCluster(t *testing.T) {
	dir := t.TempDir()
	asked := map[string]string{}
	for _, name := range []string{"admin", "other"} {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked[name] = r.URL.Path
			if _, err := w.Write([]byte(name)); err != nil {
				t.Error(err)
			}
		}))
		defer api.Close()
		text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + api.URL + "'}}]\n" +
			"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
		if err := os.WriteFile(filepath.Join(dir, name+".kubeconfig"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(dir, "other.kubeconfig")
	t.Setenv("BERTH_DATA_DIR", dir)
	for _, c := range []struct{ env, args, want string }{
		{"", "kubectl get --raw /healthz", "admin"},
		{other, "kubectl get --raw /healthz", "other"},
		{"", "kubectl --kubeconfig " + other + " get --raw /healthz", "other"},
	} {
		t.Setenv("KUBECONFIG", c.env)
		clear(asked)
		if code, out, errs := run(t, c.args); code != 0 || out != c.want || len(asked) != 1 || asked[c.want] != "/healthz" {
			t.Errorf("KUBECONFIG=%s %s exits with %d, says %q and %q; asked: %v", c.env, c.args, code, out, errs, asked)
		}
	}
}

const scenario = "name: s\nduration: 5m\ncluster: {zones: [{name: a, nodes: 3}]}\n" +
	"workloads: [{name: w, kind: Deployment, replicas: 3}]\nevents: [{at: 1m, kill: {names: [a-1]}}]\n"

// TestSimulate: each form of output, changed flags, and two runs side by side.
func TestSimulate(t *testing.T) {
	dir := t.TempDir()
	file, plot := filepath.Join(dir, "s.yaml"), filepath.Join(dir, "plot.svg")
	if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args      string
		want, not []string
	}{
		{"", []string{"s: 5m, seed 1, default flags", "== power lost", "at the end"}, []string{"compared"}},
		{"--summary", []string{"at the end"}, []string{"== power lost"}},
		{"--seed 9", []string{"seed 9"}, nil},
		{"--set node-monitor-grace-period=20s", []string{"node-monitor-grace-period=20s"}, []string{"default flags"}},
		{"--compare node-monitor-grace-period=20s --compare node-eviction-rate=1",
			[]string{"default flags", "node-eviction-rate=1", "as is", "compared 2"}, nil},
		{"--svg " + plot, []string{"at the end"}, nil},
	} {
		out, err := try(t, append([]string{"simulate", file}, strings.Fields(c.args)...)...)
		if err != nil {
			t.Errorf("simulate %s: %v", c.args, err)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("simulate %s: no %q in\n%s", c.args, w, out)
			}
		}
		for _, n := range c.not {
			if strings.Contains(out, n) {
				t.Errorf("simulate %s: %q in\n%s", c.args, n, out)
			}
		}
	}
	picture, err := os.ReadFile(plot)
	if err != nil || xml.Unmarshal(picture, new(struct{ XMLName xml.Name })) != nil || !bytes.HasPrefix(picture, []byte("<svg")) {
		t.Errorf("the plot: %v, %.60s", err, picture)
	}
	out, err := try(t, "simulate", file, "--json")
	_, out, _ = strings.Cut(out, "\n") // how long it took goes to standard error
	var runs []struct{ Name string }
	if err != nil || json.Unmarshal([]byte(out), &runs) != nil || len(runs) != 1 || runs[0].Name != "s" {
		t.Errorf("--json: %v, %+v", err, runs)
	}
}

// TestSimulateRefuses: what cannot be played is refused by file, flag or field.
func TestSimulateRefuses(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for file, text := range map[string]string{good: scenario, bad: "cluster: {zone: []}"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"": "accepts 1 arg", dir + "/none.yaml": dir + "/none.yaml", bad: "cluster.zone is not a field: allowed are",
		good + " --set speed=3": "--set: flags: \"speed\" is not one", good + " --compare x": "--compare: \"x\"",
		good + " --from-kubeconfig /none": "both are taken from the live cluster", good + " --svg /none/plot.svg": "/none/plot.svg",
	} {
		if _, err := try(t, append([]string{"simulate"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("simulate %s: %v, want %q", args, err, want)
		}
	}
}

// TestSimulateALiveCluster reads nodes and pods, page by page, and writes nothing.
func TestSimulateALiveCluster(t *testing.T) {
	nodes := v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	for _, name := range []string{"n1", "n2"} {
		nodes.Items = append(nodes.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}})
	}
	var asked []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("continue"))
		w.Header().Set("Content-Type", "application/json")
		page := nodes
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods"):
			page = v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		case r.URL.Query().Get("continue") == "":
			page.Items, page.Continue = nodes.Items[:1], "second"
		default:
			page.Items = nodes.Items[1:]
		}
		if err := json.NewEncoder(w).Encode(page); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "s.yaml"), filepath.Join(dir, "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + api.URL + "'}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	for name, text := range map[string]string{kubeconfig: text,
		file: "name: live\nduration: 5m\nevents: [{at: 1m, kill: {names: [n2]}}]\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := try(t, "simulate", file, "--from-kubeconfig", kubeconfig)
	if err != nil || !strings.Contains(out, "2 nodes, 0 pods") ||
		!slices.Equal(asked, []string{"/api/v1/nodes ", "/api/v1/nodes second", "/api/v1/pods "}) {
		t.Errorf("%v, asked %q\n%s", err, asked, out)
	}
	if _, err := try(t, "simulate", file, "--from-kubeconfig", dir+"/none"); err == nil || !strings.Contains(err.Error(),
		"--from-kubeconfig") {
		t.Errorf("no kubeconfig: %v", err)
	}
}

// TestCheckConfig: `agent --check-config` prints the settings in effect and starts
// nothing.
func TestCheckConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 42\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := try(t, "agent", "--config", file, "--check-config")
	if err != nil || !strings.Contains(out, "42") || !strings.Contains(out, "maxPods") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(text+"maxPodz: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, "agent", "--config", file, "--check-config"); err == nil || !strings.Contains(err.Error(), "maxPodz") {
		t.Errorf("a field that does not exist: %v", err)
	}
}

// TestLogLevels: -v 4 and above shows debugging, as with klog.
func TestLogLevels(t *testing.T) {
	for v, want := range map[int]slog.Level{0: slog.LevelInfo, 3: slog.LevelInfo, 4: slog.LevelDebug, 9: slog.LevelDebug} {
		if got := verbosity(v); got != want {
			t.Errorf("-v %d is %s, want %s", v, got, want)
		}
	}
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	for format, want := range map[string]string{"text": "level=INFO msg=shown", "json": `"level":"INFO","msg":"shown"`} {
		f, err := os.Create(filepath.Join(t.TempDir(), "err"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		os.Stderr = f
		log := slog.New(stderrLog(format, slog.LevelInfo))
		log.Info("shown")
		log.Debug("hidden")
		text, err := os.ReadFile(f.Name())
		if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), "hidden") {
			t.Errorf("%s: %q, %v", format, text, err)
		}
	}
}
