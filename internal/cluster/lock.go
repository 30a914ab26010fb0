package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrRunning says that another berth holds the data directory.
type ErrRunning struct {
	DataDir string
	PID     int
}

func (e *ErrRunning) Error() string {
	return fmt.Sprintf("a cluster is already running on %s (process %d): see `berth status`, stop it with `berth down`, or choose "+
		"another --data-dir", e.DataDir, e.PID)
}

// lock takes the data directory for this process until release. The kernel
// frees it when the process ends, however it ends.
func lock(dataDir string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dataDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the data directory: %w", err)
	}
	// Older versions let every local user open it, and so keep it locked.
	if err := f.Chmod(0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &ErrRunning{DataDir: dataDir, PID: readPID(f.Name())}
		}
		return nil, fmt.Errorf("locking the data directory: %w", err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the data directory: %w", err)
	}
	return func() { f.Close() }, nil
}

// Running returns the process that holds the data directory, or 0.
func Running(dataDir string) int {
	f, err := os.OpenFile(filepath.Join(dataDir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return 0
	}
	return readPID(f.Name())
}

func readPID(file string) int {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}
