package containerd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindHandlers(t *testing.T) {
	here := map[string]string{"containerd-shim-kata-v2": "/opt/kata/bin/containerd-shim-kata-v2", "containerd-shim-runsc-v1": "/bin/shim",
		"nvidia-container-runtime": "/usr/bin/nvidia-container-runtime"}
	names := func(tried ...trialResult) string {
		var out []string
		for _, h := range findHandlers(tried, func(name string) string { return here[name] }) {
			if (h.Binary == "") == (h.Shim == "") || h.Type == "" {
				t.Errorf("%+v has no program, or two", h)
			}
			out = append(out, h.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(trialResult{Name: "crun", Path: "/usr/bin/crun", Err: "unknown cgroups"}); got != "nvidia kata" {
		t.Errorf("a crun that does not work, a runsc without its program: %s", got)
	}
	here["runsc"] = "/bin/runsc"
	if got := names(trialResult{Name: "crun", Path: "/usr/bin/crun"}, trialResult{Name: "runc", Path: "/usr/bin/runc"}); got !=
		"crun nvidia runsc kata" {
		t.Errorf("all: %s", got)
	}
}

// TestHandlersInConfig: what was found is a table, and what is not configured
// changes nothing.
func TestHandlersInConfig(t *testing.T) {
	plain, err := Options{Layout: Layout{DataDir: "/d"}}.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{"crun", "kata", "cdi_spec_dirs", "nri.sock"} {
		if strings.Contains(string(plain), no) {
			t.Errorf("%s in a configuration without:\n%s", no, plain)
		}
	}
	text, err := Options{Layout: Layout{DataDir: "/d"}, NRI: true, NoCDI: true, Fragments: "/etc/c.d", FragmentSum: "abc",
		Handlers: []Handler{
			{Name: "crun", Type: runcShim, Binary: "/usr/bin/crun"}, {Name: "kata", Type: "io.containerd.kata.v2", Shim: "/opt/shim"},
		}}.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`imports = ["/etc/c.d/*.toml"] # abc`, "disable = false", `socket_path = "/d/run/nri.sock"`,
		"cdi_spec_dirs = []", `containerd.runtimes."crun"]`, `BinaryName = "/usr/bin/crun"`, `runtime_path = "/opt/shim"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("nothing of %s in:\n%s", want, text)
		}
	}
}

func TestFragments(t *testing.T) {
	dir := t.TempDir()
	sum := func() string {
		t.Helper()
		s, err := Fragments(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	none := sum()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("README", "no fragment")
	if none != "" || sum() != "" {
		t.Error("a directory without fragments has a sum")
	}
	put("a.toml", "version = 3\n")
	one := sum()
	put("a.toml", "version = 3\n#\n")
	if one == "" || sum() == one {
		t.Error("a change does not show")
	}
	put("b.toml", "[plugins]\n")
	if _, err := Fragments(dir); err == nil || !strings.Contains(err.Error(), "b.toml has no version") {
		t.Error(err)
	}
}
