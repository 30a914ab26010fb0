package pod

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// Bounds of termination messages.
const (
	maxMessage   = 4096
	maxMessages  = 12 << 10 // of all containers of a pod together
	maxTailBytes = 2048
	maxTailLines = 80
)

// podDirs lists the pods that have a directory on disk.
func (m *Manager) podDirs() []types.UID {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Dirs.Root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.cfg.Log.Warn("listing pod directories", "err", err)
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out
}

// clean removes a pod's directory and logs. It refuses while anything is still
// mounted below, so that nothing is ever deleted through a live mount.
func (m *Manager) clean(pod *v1.Pod) error {
	if pod.UID == "" || strings.ContainsAny(string(pod.UID), "/") {
		return fmt.Errorf("removing the directory of pod %q: not a usable UID", pod.UID)
	}
	dir := filepath.Join(m.cfg.Dirs.Root, "pods", string(pod.UID))
	if _, err := os.Lstat(dir); err == nil {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err != nil {
			return fmt.Errorf("looking for mounts below %s: %w", dir, err)
		}
		if len(mounts) > 0 {
			return fmt.Errorf("removing %s: %s is still mounted", dir, mounts[0].Mountpoint)
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing a pod's directory: %w", err)
		}
	}
	logs, err := filepath.Glob(filepath.Join(m.cfg.Dirs.Logs, "*_"+string(pod.UID)))
	if err != nil {
		return fmt.Errorf("looking for a pod's logs: %w", err)
	}
	for _, d := range logs {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("removing a pod's logs: %w", err)
		}
	}
	return nil
}

// loggedAttempts is the highest restart count of each container of a pod that
// has a log.
func (m *Manager) loggedAttempts(uid types.UID) map[string]uint32 {
	out := map[string]uint32{}
	logs, err := filepath.Glob(filepath.Join(m.cfg.Dirs.Logs, "*_"+string(uid), "*", "*.log"))
	if err != nil {
		m.cfg.Log.Warn("looking for a pod's logs", "uid", uid, "err", err)
	}
	for _, path := range logs {
		n, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), ".log"), 10, 32)
		if name := filepath.Base(filepath.Dir(path)); err == nil {
			out[name] = max(out[name], uint32(n))
		}
	}
	return out
}

// removeLogs removes a container's log with its rotated parts.
func removeLogs(path string) error {
	found, err := filepath.Glob(path + "*")
	if err != nil {
		return err
	}
	for _, f := range found {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// terminationMessage reads what a container said at its end: its message file,
// or the end of its log if it failed without a word and asks for that.
func terminationMessage(c *runtime.Container, containers int) string {
	limit := min(maxMessage, maxMessages/max(containers, 1))
	for _, mt := range c.Mounts {
		if c.TerminationPath != "" && mt.ContainerPath == c.TerminationPath {
			if b := readHead(mt.HostPath, limit); len(b) > 0 {
				return string(b)
			}
		}
	}
	if c.ExitCode != 0 && c.TerminationPolicy == string(v1.TerminationMessageFallbackToLogsOnError) && c.LogPath != "" {
		return tail(c.LogPath, min(limit, maxTailBytes))
	}
	return c.Message
}

func readHead(path string, limit int) []byte {
	// A pod may put a FIFO there: opening one for reading waits for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err != nil {
		return nil
	}
	return b
}

// tail returns the last lines of a CRI log without their prefixes.
func tail(path string, limit int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const window = 64 << 10
	if st, err := f.Stat(); err == nil && st.Size() > window {
		if _, err := f.Seek(-window, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, window))
	if err != nil {
		return ""
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	lines = lines[max(0, len(lines)-maxTailLines-1):]
	var out []byte
	for _, l := range lines {
		// <time> <stream> <tag> <text>
		parts := bytes.SplitN(l, []byte(" "), 4)
		if len(parts) < 4 {
			continue
		}
		text := parts[3]
		if string(parts[2]) == "P" {
			text = bytes.TrimSuffix(text, []byte("\n"))
		}
		out = append(out, text...)
	}
	return string(out[max(0, len(out)-limit):])
}
