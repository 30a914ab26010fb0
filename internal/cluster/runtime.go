package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
)

// PauseImage is the sandbox image of the bundle.
const PauseImage = "berth.dev/pause:1"

// supervisor prepares the bundled runtime for this machine.
func (c *Config) supervisor(ctx context.Context, facts host.Facts, log *slog.Logger) (*containerd.Supervisor, []string, error) {
	// `berth down` may need it when the runtime died.
	if err := os.WriteFile(c.Path("run", "bundle-dir"), []byte(c.BundleDir), 0o644); err != nil {
		return nil, nil, fmt.Errorf("noting the runtime bundle: %w", err)
	}
	chosen, tried, err := containerd.ChooseOCIRuntime(ctx, c.Path("run", "oci-runtime.json"), c.CgroupRoot(), facts.BootID)
	if err != nil {
		return nil, nil, err
	}
	var notes []string
	for _, t := range tried {
		if t.Err != "" && t.Path != "" {
			notes = append(notes, fmt.Sprintf("%s does not work on this machine (%s), using %s", t.Name, t.Err, chosen.Name))
		}
	}
	snapshotter := "overlayfs"
	if onOverlay(c.DataDir) {
		snapshotter = "native"
		notes = append(notes, "the data directory is itself on overlayfs: images are copied, not layered, which is slower and takes more space")
	}
	return &containerd.Supervisor{
		Options: containerd.Options{
			Layout:        c.Layout(),
			CNIBinDir:     c.BundleDir,
			OCIRuntime:    chosen.Path,
			PauseImage:    PauseImage,
			Snapshotter:   snapshotter,
			SystemdCgroup: c.systemdCgroups(facts),
			RestrictOOM:   !facts.LowersOOMScore,
			Hugetlb:       facts.Hugetlb,
		},
		Binary:  filepath.Join(c.BundleDir, "containerd"),
		LogFile: c.Path("logs", "containerd.log"),
		Log:     log,
	}, notes, nil
}

// systemdCgroups says whether systemd manages the cgroups: it insists on that
// where it runs on the unified hierarchy.
func (c *Config) systemdCgroups(facts host.Facts) bool {
	return facts.Systemd && facts.Cgroups == host.CgroupV2
}

// dropStaleRun empties run/ after a reboot: everything in it was true for the
// last boot only.
func (c *Config) dropStaleRun(bootID string) error {
	memo := c.Path("run", "boot-id")
	if old, err := os.ReadFile(memo); err == nil && strings.TrimSpace(string(old)) == bootID {
		return nil
	}
	if err := purgeFiles(c.Path("run")); err != nil {
		return fmt.Errorf("clearing what the last boot left: %w", err)
	}
	if err := os.MkdirAll(c.Path("run"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(memo, []byte(bootID), 0o644)
}

// onOverlay says whether dir's filesystem is overlayfs, which cannot be the
// upper layer of another one.
func onOverlay(dir string) bool {
	const overlayMagic = 0x794c7630
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == overlayMagic
}

// importImages fills the runtime from the images directory. A missing
// directory is fine: a runtime of the user's own may have what is needed.
func (c *Config) importImages(ctx context.Context, socket string) (string, error) {
	if _, err := os.Stat(c.ImagesDir); err != nil {
		if os.IsNotExist(err) {
			return "no images in " + c.ImagesDir, nil
		}
		return "", &fs.PathError{Op: "reading images", Path: c.ImagesDir, Err: err}
	}
	conn, err := containerd.Dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	got, err := containerd.ImportDir(ctx, conn, c.ImagesDir, PauseImage)
	if err != nil {
		return "", err
	}
	fresh := 0
	for _, img := range got {
		if !img.Present {
			fresh++
		}
	}
	return fmt.Sprintf("%d images, %d imported now", len(got), fresh), nil
}
