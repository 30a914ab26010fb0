package containerd

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// Handler is a runtime that pods can choose by a RuntimeClass, beside the default.
type Handler struct {
	// Name is the handler's; Type is its shim's, as containerd names it.
	Name, Type string
	// Binary is the OCI runtime that runc's shim calls; empty for others.
	Binary string
	// Shim is the path of a shim; empty for the bundle's.
	Shim string
}

const runcShim = "io.containerd.runc.v2"

// ociRuntimes are called by runc's shim. crun is not among them: whether it
// works here is found out by trial.
var ociRuntimes = []struct{ name, binary string }{
	{"youki", "youki"}, {"nvidia", "nvidia-container-runtime"}, {"nvidia-cdi", "nvidia-container-runtime.cdi"},
}

// shims are runtimes with shims of their own.
var shims = []struct{ name, kind, binary string }{
	{"runsc", "io.containerd.runsc.v1", "containerd-shim-runsc-v1"},
	{"kata", "io.containerd.kata.v2", "containerd-shim-kata-v2"},
	{"spin", "io.containerd.spin.v2", "containerd-shim-spin-v2"},
	{"slight", "io.containerd.slight.v1", "containerd-shim-slight-v1"},
	{"lunatic", "io.containerd.lunatic.v1", "containerd-shim-lunatic-v1"},
	{"wws", "io.containerd.wws.v1", "containerd-shim-wws-v1"},
	{"wasmedge", "io.containerd.wasmedge.v1", "containerd-shim-wasmedge-v1"},
	{"wasmer", "io.containerd.wasmer.v1", "containerd-shim-wasmer-v1"},
	{"wasmtime", "io.containerd.wasmtime.v1", "containerd-shim-wasmtime-v1"},
}

// handlerDirs are looked into after PATH, which a service's may be short.
var handlerDirs = []string{"/usr/local/bin", "/usr/bin", "/usr/sbin", "/usr/local/nvidia/toolkit", "/opt/kwasm/bin", "/opt/kata/bin"}

// FindHandlers finds the runtimes that are installed. tried are those that
// ChooseOCIRuntime tried: crun is among the handlers if it works on this host.
func FindHandlers(tried []trialResult) []Handler {
	return findHandlers(tried, func(name string) string {
		for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), handlerDirs...) {
			path := filepath.Join(dir, name)
			if st, err := os.Stat(path); err == nil && filepath.IsAbs(path) && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return path
			}
		}
		return ""
	})
}

func findHandlers(tried []trialResult, look func(string) string) (out []Handler) {
	for _, t := range tried {
		if t.Name == "crun" && t.Err == "" {
			out = append(out, Handler{Name: t.Name, Type: runcShim, Binary: t.Path})
		}
	}
	for _, r := range ociRuntimes {
		if path := look(r.binary); path != "" {
			out = append(out, Handler{Name: r.name, Type: runcShim, Binary: path})
		}
	}
	for _, s := range shims {
		if path := look(s.binary); path != "" && (s.name != "runsc" || look("runsc") != "") {
			out = append(out, Handler{Name: s.name, Type: s.kind, Shim: path})
		}
	}
	return out
}

// Fragments reads a directory of configuration files that containerd merges
// into its own: their sum goes into the configuration, so that a change of them
// is one of it.
func Fragments(dir string) (sum string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.toml"))
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", dir, err)
	}
	if len(files) == 0 {
		return "", nil
	}
	sort.Strings(files)
	all := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading containerd's configuration: %w", err)
		}
		if !strings.Contains(string(text), "version") {
			return "", fmt.Errorf("%s has no version: containerd takes it for one of version 1 then; write `version = 3` at its top", file)
		}
		fmt.Fprintf(all, "%s %d\n%s", file, len(text), text)
	}
	return fmt.Sprintf("%x", all.Sum(nil)), nil
}
