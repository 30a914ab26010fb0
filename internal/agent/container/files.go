package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// file is a file that must exist before a container is created.
type file struct {
	Path    string
	Content string
	Mode    fs.FileMode
	// Keep leaves the content of an existing file alone.
	Keep bool
	// UID and GID own the file, for user namespaces.
	UID, GID int
}

// Files are the host files that ContainerConfig of the same arguments mounts:
// the pod's hosts file and the container's termination message.
func Files(in Input, c *v1.Container, attempt uint32) ([]file, error) {
	var out []file
	uid, gid := 0, 0
	if u := in.UserNamespace; u != nil && len(u.UIDs) > 0 && len(u.GIDs) > 0 {
		uid, gid = int(u.UIDs[0].HostID), int(u.GIDs[0].HostID)
	}
	if len(hostIPs(in)) > 0 {
		content, err := hostsContent(in)
		if err != nil {
			return nil, err
		}
		out = append(out, file{Path: hostsPath(in), Content: content, Mode: 0o644, UID: uid, GID: gid})
	}
	if c.TerminationMessagePath != "" {
		// Any user of the container may report its end.
		out = append(out, file{Path: terminationFile(in, c, attempt), Mode: 0o666, Keep: true, UID: uid, GID: gid})
	}
	return out, nil
}

// WriteFiles makes files in place: running containers have them bind mounted,
// so a replaced file would not be seen.
func WriteFiles(files []file) error {
	for _, f := range files {
		if err := writeFile(f); err != nil {
			return fmt.Errorf("writing %s: %w", filepath.Base(f.Path), err)
		}
	}
	return nil
}

func writeFile(f file) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o750); err != nil {
		return err
	}
	old, err := os.ReadFile(f.Path)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !exists || !f.Keep && !bytes.Equal(old, []byte(f.Content)) {
		if err := os.WriteFile(f.Path, []byte(f.Content), f.Mode); err != nil {
			return err
		}
	}
	// The mode given at creation is cut by the umask.
	if err := os.Chmod(f.Path, f.Mode); err != nil {
		return err
	}
	if f.UID != 0 || f.GID != 0 {
		return os.Chown(f.Path, f.UID, f.GID)
	}
	return nil
}
