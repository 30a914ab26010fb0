package containerd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBundledContainerdMerges asks the bundled containerd what it makes of a
// configuration with everything in it.
func TestBundledContainerdMerges(t *testing.T) {
	bin, dir := bundle(t), t.TempDir()
	fragments := filepath.Join(dir, "containerd.d")
	if err := os.Mkdir(fragments, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(fragments, "second.toml"), `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.second]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.second.options]
    BinaryName = '/second'
`)
	sum, err := Fragments(fragments)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Options{Layout: Layout{DataDir: dir}, OCIRuntime: "/usr/sbin/runc", RestrictOOM: true, NRI: true, NoCDI: true,
		Fragments: fragments, FragmentSum: sum, Handlers: []Handler{{Name: "crun", Type: runcShim, Binary: "/crun"},
			{Name: "kata", Type: "io.containerd.kata.v2", Shim: "/kata"}},
		Credentials: "[plugins.'io.containerd.cri.v1.images'.registry.configs.\"r.example:5000\".auth]\n  username = \"u\"\n"}.Render()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.toml")
	put(config, string(text))
	out, err := exec.Command(filepath.Join(bin, "containerd"), "--config", config, "config", "dump").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, want := range []string{"BinaryName = '/usr/sbin/runc'", "BinaryName = '/second'", "BinaryName = '/crun'",
		"runtime_path = '/kata'",
		"restrict_oom_score_adj = true", "cdi_spec_dirs = []", "socket_path = '" + dir + "/run/nri.sock'", "username = 'u'",
		"containerd.runtimes.second]"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing of %s in what containerd has:\n%s", want, out)
		}
	}
}
