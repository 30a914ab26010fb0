package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// Mount, Unmount and Update make a Starter the pods' volumes: it remembers what
// is mounted where for the containers' mounts.

// Mount mounts all volumes of a pod.
func (c *Starter) Mount(ctx context.Context, p *v1.Pod) error {
	m, err := c.cfg.Volumes.Mount(ctx, p)
	if errors.Is(err, volume.ErrAttachLimit) {
		c.cfg.Reject(p, "VolumeAttachmentLimitExceeded", err.Error())
	}
	if err != nil {
		return err
	}
	c.cfg.Mounts.set(p.UID, m)
	return nil
}

// Unmount unmounts all volumes of a pod.
func (c *Starter) Unmount(ctx context.Context, uid types.UID) error {
	if err := c.cfg.Exclusive.Claims.Unprepare(ctx, uid); err != nil {
		return fmt.Errorf("giving back resource claims: %w", err)
	}
	if err := c.cfg.Volumes.Unmount(ctx, uid); err != nil {
		return err
	}
	c.cfg.Mounts.set(uid, nil)
	return c.cfg.Users.Release(uid)
}

// Update takes a changed pod.
func (c *Starter) Update(p *v1.Pod) { c.cfg.Volumes.Update(p) }

// maxEnvFile bounds a file that environment variables come from.
const maxEnvFile = 64 << 10

// envFiles reads the files that the container's environment refers to.
func (c *Starter) envFiles(ct *v1.Container, mounted map[string]volume.Mounted) (map[container.EnvFile]string, error) {
	out := map[container.EnvFile]string{}
	for _, e := range ct.Env {
		if e.ValueFrom == nil || e.ValueFrom.FileKeyRef == nil {
			continue
		}
		r := e.ValueFrom.FileKeyRef
		vol, ok := mounted[r.VolumeName]
		if !ok || vol.HostPath == "" {
			return nil, fmt.Errorf("volume %q of variable %q is not mounted", r.VolumeName, e.Name)
		}
		root, err := os.OpenRoot(vol.HostPath)
		if err != nil {
			return nil, fmt.Errorf("opening volume %q: %w", r.VolumeName, err)
		}
		text, err := readLimited(root, strings.TrimPrefix(filepath.Clean(r.Path), "/"))
		_ = root.Close()
		if errors.Is(err, os.ErrNotExist) {
			continue // whether that matters depends on the reference
		}
		if err != nil {
			return nil, fmt.Errorf("reading %q of volume %q: %w", r.Path, r.VolumeName, err)
		}
		out[container.EnvFile{Volume: r.VolumeName, Path: r.Path}] = text
	}
	return out, nil
}

func readLimited(root *os.Root, path string) (string, error) {
	// The pod may write there: opening a FIFO waits for a writer, and a file
	// may change between two looks.
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() || st.Size() > maxEnvFile {
		return "", fmt.Errorf("it must be a regular file of at most %d bytes", maxEnvFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(b) > maxEnvFile {
		return "", fmt.Errorf("it must be a regular file of at most %d bytes", maxEnvFile)
	}
	return string(b), err
}
