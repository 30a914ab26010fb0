package node

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestUserNamespaces runs the pods of testdata/userns.yaml with a runc that
// knows user namespaces (the host's may be older), built from its module.
func TestUserNamespaces(t *testing.T) {
	kit.OnlyInAll(t, "50 s; builds runc with cgo")
	if os.Getenv("BERTH_BIN") == "" {
		t.Skip("BERTH_BIN is not set")
	}
	tools := kit.Tools{Module: "runc", Tags: "seccomp", Cgo: true}.Build(t, "github.com/opencontainers/runc")
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	c := kit.NewCluster(t)
	// The pods' root has no rights on the way to its root directory.
	if err := os.Chmod(c.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	c.Up()
	if !hostSupports(c.Node())["userns"] {
		t.Skipf("this machine has no user namespaces with idmapped mounts: %+v", c.Node().Status.RuntimeHandlers)
	}
	host := t.TempDir()
	c.Apply(podFeatureObjects)
	c.RunPods(t, featurePods(t, "userns.yaml", strings.NewReplacer("image: T", "image: berth.dev/toolbox:1", "reference: T",
		"reference: berth.dev/toolbox:1", "HOSTDIR", host)))
	// The pod's root is the host's nobody, but what it writes to volumes is
	// root's: they are mapped, not given away.
	st, err := os.Stat(filepath.Join(host, "userns", "host"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("a file of the pod's root belongs to %d on the machine", owner)
	}
}
