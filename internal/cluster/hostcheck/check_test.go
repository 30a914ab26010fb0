package hostcheck

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// tree unpacks a recorded host.
func tree(t *testing.T, name string) (root, comment string) {
	t.Helper()
	root = t.TempDir()
	a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range a.Files {
		write(t, root, f.Name, string(f.Data))
	}
	return root, string(a.Comment)
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestHosts: what is told of a host of each distribution, word for word.
func TestHosts(t *testing.T) {
	failures := map[string][]Failure{
		"ubuntu": {{"port 10250", "port 10250 is taken (listen tcp :10250: bind: address already in use)"}},
		"alpine": {{"nftables", "this host cannot serve Services: no nf_tables"}},
	}
	for _, name := range distributions {
		t.Run(name, func(t *testing.T) {
			root, _ := tree(t, name)
			if name == "ubuntu" { // archives hold no links
				if err := os.MkdirAll(filepath.Join(root, "proc/812/fd"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("socket:[21377]", filepath.Join(root, "proc/812/fd/7")); err != nil {
					t.Fatal(err)
				}
			}
			f := Probe(root)
			f.Failures = failures[name]
			var out bytes.Buffer
			for _, command := range []string{"up", "server"} {
				out.WriteString("# berth check --role " + command + "\n")
				Print(&out, Judge(f, Want{Command: command}))
			}
			golden.Check(t, filepath.Join("testdata", name+".txt"), out.String())
		})
	}
}

// TestEachFault: one thing that is wrong with a good host makes one finding
// that names it, and a remedy.
func TestEachFault(t *testing.T) {
	root, _ := tree(t, "fedora")
	for name, text := range map[string]string{"proc/sys/kernel/hostname": "web-1", "proc/meminfo": "MemTotal: 4000000 kB\n",
		"proc/901/comm": "bash"} {
		write(t, root, name, text)
	}
	good := Probe(root)
	for _, f := range Judge(good, Want{Command: "up"}) {
		if f.Level != OK {
			t.Fatalf("the good host: %+v", f)
		}
	}
	for _, c := range []struct {
		name, words string
		level       level
		break_      func(*hostFacts)
	}{
		{"namespaces", "kind user", Fail, func(f *hostFacts) {
			f.Namespaces = slices.DeleteFunc(slices.Clone(f.Namespaces), func(n string) bool { return n == "user" })
		}},
		{"capabilities", "CAP_NET_ADMIN", Fail, func(f *hostFacts) { f.Capabilities &^= 1 << 12 }},
		{"capabilities", "CAP_SYS_RESOURCE", Warn, func(f *hostFacts) { f.Capabilities &^= 1 << 24 }},
		{"oci-runtime", "neither crun nor runc", Fail, func(f *hostFacts) { f.Tools = nil }},
		{"hostname", "cannot be a Node's name", Fail, func(f *hostFacts) { f.Hostname = "my_host" }},
		{"cgroups", "controllers memory", Fail, func(f *hostFacts) { f.Host.Controllers = []string{"cpu", "pids"} }},
		{"cgroups", "hybrid", Warn, func(f *hostFacts) { f.Host.Cgroups = "hybrid" }},
		{"conflict", "k3s is running (process 7)", Warn, func(f *hostFacts) { f.Processes = map[string]int{"k3s": 7, "chronyd": 8} }},
		{"time", "nothing is seen", Warn, func(f *hostFacts) { f.Processes = nil }},
		{"kernel", "br_netfilter", Warn, func(f *hostFacts) { delete(f.Modules, "br_netfilter") }},
		{"sysctl", "max_user_instances is 128", Warn, func(f *hostFacts) { f.Sysctls["fs.inotify.max_user_instances"] = "128" }},
		{"swap", "1 MiB", Warn, func(f *hostFacts) { f.SwapKiB = 1024 }},
		{"service", "neither systemd nor OpenRC", Warn, func(f *hostFacts) { f.Init = "" }},
		{"system", "unknown distribution", Warn, func(f *hostFacts) { f.Distribution, f.Name = "", "" }},
		{"space", "no room", Fail, func(f *hostFacts) { f.Failures = []Failure{{"space", "no room: make some"}} }},
	} {
		f := Probe(root)
		c.break_(&f)
		var bad []Finding
		for _, finding := range Judge(f, Want{Command: "up"}) {
			if finding.Level != OK && finding.Name == c.name {
				bad = append(bad, finding)
			}
		}
		if len(bad) == 0 || bad[0].Level != c.level || !strings.Contains(bad[0].Message, c.words) || bad[0].Remedy == "" &&
			c.name != "space" {
			t.Errorf("%s %q: %+v", c.name, c.words, bad)
		}
	}
	if text, err := json.Marshal(Judge(good, Want{Command: "up"})[0]); err != nil || !strings.HasPrefix(string(text),
		`{"level":"ok","name":"system"`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestAServerNeedsNoContainers: what only containers need is not asked of it.
func TestAServerNeedsNoContainers(t *testing.T) {
	for _, f := range Judge(Probe(t.TempDir()), Want{Command: "server", NodeName: "s1"}) {
		if f.Level == Fail {
			t.Errorf("%+v", f)
		}
	}
}
