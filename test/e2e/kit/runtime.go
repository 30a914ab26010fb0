package kit

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
)

// ContainerdRuntime finds an OCI runtime that works here, as berth does.
func ContainerdRuntime(t *testing.T) (string, error) {
	t.Helper()
	t.Cleanup(func() {
		if err := host.RemoveCgroup("/sys/fs/cgroup", "/berth-own"); err != nil {
			t.Error(err)
		}
	})
	chosen, _, err := containerd.ChooseOCIRuntime(context.Background(), filepath.Join(t.TempDir(), "memo.json"), "/berth-own", "test")
	return chosen.Path, err
}
