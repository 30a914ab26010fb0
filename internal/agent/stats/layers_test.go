package stats

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// noStats is a runtime that must not be asked what containers wrote.
type noStats struct{ t *testing.T }

func (n noStats) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	n.t.Error("the runtime was asked although every layer can be seen")
	return nil, nil
}

// TestWritableLayersAreMeasuredHere finds what containers wrote in the upper
// directory of their root, at the moment someone wants to know, and what
// images take although the runtime does not say.
func TestWritableLayersAreMeasuredHere(t *testing.T) {
	upper := t.TempDir()
	p := provider(t, 1, 1, func(cfg *Config) {
		write(t, filepath.Join(cfg.HostRoot, "proc/4242/mountinfo"), fmt.Sprintf(
			"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / / rw - overlay overlay rw,lowerdir=/l,upperdir=%s,workdir=/w\n3 2 0:6 / /proc "+
				"rw - proc proc rw\n", upper))
		cfg.Runtime, cfg.Images = noStats{t}, fakeCRI{dir: cfg.RootDir, lazy: true}
	})
	summary, err := p.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if used := *summary.Node.Runtime.ImageFs.UsedBytes; used != 1234 {
		t.Errorf("images take %d", used)
	}
	write(t, filepath.Join(upper, "file"), strings.Repeat("x", 100_000))
	usage, err := p.Usage(t.Context(), p.cfg.Pods(), true)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range usage[0].Containers {
		if c.Rootfs.Bytes < 100_000 || c.Rootfs.Inodes != 2 {
			t.Errorf("container %s wrote %+v", name, c.Rootfs)
		}
	}
	if len(usage[0].Containers) != 2 {
		t.Errorf("containers: %v", usage[0].Containers)
	}
}
