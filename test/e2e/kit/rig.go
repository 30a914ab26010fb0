package kit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/test/rig"
)

// Rig is a rig seen as a cluster.
type Rig struct {
	*rig.Rig
	*Cluster
}

// NewRig starts server and runtime. At the end of the test all of it must be
// gone.
func NewRig(t *testing.T, clusterCIDR, podCIDR string, args ...string) *Rig {
	t.Helper()
	if os.Getenv("BERTH_BIN") == "" {
		t.Skip("BERTH_BIN is not set: it names the directory with the built binaries (make e2e sets it)")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: starting containers needs root")
	}
	r, err := rig.New(os.Getenv("BERTH_BIN"), FreePorts(t, 20))
	Must(t, err)
	b, before := &Rig{Rig: r, Cluster: &Cluster{T: t, Bin: r.Bin, Dir: r.ServerDir()}}, ReadHostState(t, r.Dir)
	t.Cleanup(func() {
		if t.Failed() {
			b.dumpLogs()
			(&Cluster{T: t, Dir: r.Dir}).dumpLogs()
		}
		b.Disconnect()
		Must(t, r.Close())
		for _, left := range ReadHostState(t, r.Dir).LeftSince(before) {
			// Others may use this host meanwhile.
			if mark := strings.TrimPrefix(host.Instance(r.Dir), "berth-"); strings.Contains(left, mark) || strings.Contains(left, r.Dir) {
				t.Errorf("left behind: %s", left)
			}
		}
	})
	Must(t, r.StartServer(append([]string{"--cluster-cidr", clusterCIDR}, args...)...))
	Must(t, r.StartRuntime(t.Context(), podCIDR))
	b.Connect()
	return b
}

// Clear deletes all pods as a user does, so that the agent cleans up.
func (b *Rig) Clear(a *rig.Agent) {
	b.T.Helper()
	Must(b.T, os.RemoveAll(a.Manifests()))
	Must(b.T, os.Mkdir(a.Manifests(), 0o755))
	b.Kubectl("delete", "pods", "--all", "--all-namespaces")
	b.Eventually("no pod directories", func() (bool, string) {
		dirs, err := filepath.Glob(filepath.Join(a.RootDir, "pods", "*"))
		return err == nil && len(dirs) == 0, strings.Join(dirs, " ")
	})
}
