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

	"github.com/berth-dev/berth/internal/agent/volume"
	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
)

// PauseImage is the sandbox image of the bundle.
const PauseImage = "berth.dev/pause:1"

// shareMounts comes before the runtime or the agent mounts anything there.
func (u *up) shareMounts(context.Context) error {
	if err := volume.ShareRoot(u.Path("agent")); err != nil {
		u.notes = append(u.notes, "mounts do not propagate between containers and the node: "+err.Error())
	}
	return nil
}

// startRuntime starts the bundled containerd, or finds it running.
func (u *up) startRuntime(ctx context.Context) error {
	if u.RuntimeEndpoint != "" {
		return nil
	}
	log, err := u.logs.part("runtime")
	if err != nil {
		return err
	}
	return u.clock.stage("runtime", func() (string, error) {
		s, notes, err := u.supervisor(ctx, u.facts, log)
		if s != nil {
			u.runtimeLacks = s.NoSeccomp
		}
		if err != nil {
			return "", err
		}
		u.runtime, u.notes = s, append(u.notes, notes...)
		pid, adopted, err := s.Ensure(ctx)
		u.startedRuntime = !adopted
		if err != nil {
			return "", err
		}
		u.keep("runtime watch", func(ctx context.Context) error { s.Watch(ctx, pid); return ctx.Err() })
		how := "started"
		if adopted {
			how = "found running"
		}
		return fmt.Sprintf("containerd %s, process %d", how, pid), nil
	})
}

// loadImages fills the runtime, which may be one of the user's own.
func (u *up) loadImages(ctx context.Context) error {
	return u.clock.stage("images", func() (string, error) {
		if u.runtime != nil {
			return u.importImages(ctx, u.runtime.Socket())
		}
		detail, err := u.importImages(ctx, trimUnix(u.RuntimeEndpoint))
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: --container-runtime-endpoint %s must be the socket of a running containerd", err, u.RuntimeEndpoint)
		}
		return detail, err
	})
}

func trimUnix(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }

// supervisor prepares the bundled runtime for this host.
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
			notes = append(notes, fmt.Sprintf("%s does not work on this host (%s), using %s", t.Name, t.Err, chosen.Name))
		}
	}
	snapshotter := "overlayfs"
	if onOverlay(c.DataDir) {
		snapshotter = "native"
		notes = append(notes, "the data directory is itself on overlayfs: images are copied, not layered, which is slower and takes "+
			"more space")
	}
	credentials, told, err := c.writeRegistries()
	if err != nil {
		return nil, nil, err
	}
	notes = append(notes, told...)
	fragments, sum, err := c.fragments()
	if err != nil {
		return nil, nil, err
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
			Credentials:   credentials,
			Handlers:      containerd.FindHandlers(tried),
			Fragments:     fragments, FragmentSum: sum, NRI: c.NRI, NoCDI: c.NoCDI,
		},
		Binary:    filepath.Join(c.BundleDir, "containerd"),
		LogFile:   c.Path("logs", "containerd.log"),
		NoSeccomp: chosen.NoSeccomp,
		Log:       log,
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

// bundle is the container runtime that comes with berth.
type bundle struct {
	// NRI lets plugins of the bundled runtime change containers; NoCDI ignores
	// device specifications.
	NRI, NoCDI bool
	// BundleDir holds containerd, its shim, the CNI plugins and images/.
	BundleDir string
	// ImagesDir holds the OCI archives to import; empty: BundleDir/images.
	ImagesDir string
}
