package kit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// CSIDriver is the name of the CSI driver in test/tools/csihostpath.
const CSIDriver = "hostpath.csi.berth.dev"

// Tools are test programs of a module in test/tools.
type Tools struct {
	Module string // folder below test/tools; empty is test/tools itself
	Tags   string // build tags, with commas
	Cgo    bool   // has parts in C
}

// Build compiles packages of the module and returns the directory that holds
// the programs. All tests share the directory, which is beside berth's own
// binaries: the go command links a program again only after a change. Without
// BERTH_BIN the test is about to be skipped, and nothing is built.
func (b Tools) Build(t testing.TB, packages ...string) string {
	t.Helper()
	bin := os.Getenv("BERTH_BIN")
	if bin == "" {
		return ""
	}
	dir, err := filepath.Abs(filepath.Join(bin, "t", "tools", b.Module))
	Must(t, err)
	Must(t, os.MkdirAll(dir, 0o755))
	ctx, cancel := context.WithTimeout(context.Background(), 10*Timeout)
	defer cancel()
	args := append([]string{"build", "-trimpath", "-ldflags=-X main.version=test", "-tags=" + b.Tags, "-o", dir + "/"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join("..", "..", "tools", b.Module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b.Cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building tools of %s: %v\n%s", cmd.Dir, err, out)
	}
	return dir
}
