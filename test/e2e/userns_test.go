package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestUserNamespaces runs the pods of testdata/userns.yaml with a runc that
// knows user namespaces (the machine's may be older), built from its module.
func TestUserNamespaces(t *testing.T) {
	if os.Getenv("BERTH_BIN") == "" {
		t.Skip("BERTH_BIN is not set")
	}
	tools := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-tags", "seccomp", "-o", filepath.Join(tools, "runc"),
		"github.com/opencontainers/runc")
	build.Dir = filepath.Join("..", "tools", "runc")
	build.Env = append(os.Environ(), "CGO_ENABLED=1") // it has parts in C
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building runc: %v\n%s", err, out)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	c := newCluster(t)
	// The pods' root has no rights on the way to its root directory.
	if err := os.Chmod(c.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	c.up()
	if !hostSupports(c.node())["userns"] {
		t.Skipf("this machine has no user namespaces with idmapped mounts: %+v", c.node().Status.RuntimeHandlers)
	}
	host := t.TempDir()
	c.apply(podFeatureObjects)
	c.come(t, featurePods(t, "userns.yaml", strings.NewReplacer("image: T", "image: berth.dev/toolbox:1", "reference: T",
		"reference: berth.dev/toolbox:1", "HOSTDIR", host)))
	// The pod's root is the machine's nobody, but what it writes to volumes is
	// root's: they are mapped, not given away.
	st, err := os.Stat(filepath.Join(host, "userns", "host"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("a file of the pod's root belongs to %d on the machine", owner)
	}
}
