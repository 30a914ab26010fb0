package resource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// remove deletes the cgroup p with its children from every hierarchy, killing
// what still runs inside. The runtime has already stopped the pod's containers
// by contract; survivors are processes it lost track of.
func (c *Cgroups) remove(ctx context.Context, p string) error {
	if c.cfg.Driver == Systemd && c.exists(p) {
		if err := c.cfg.Units.StopSlice(filepath.Base(p)); err != nil {
			return fmt.Errorf("stopping %s: %w", filepath.Base(p), err)
		}
	}
	var errs []error
	for _, mount := range c.mounts() {
		errs = append(errs, removeTree(ctx, filepath.Join(mount, p)))
	}
	return errors.Join(errs...)
}

func (c *Cgroups) exists(p string) bool {
	for _, mount := range c.mounts() {
		if _, err := os.Stat(filepath.Join(mount, p)); err == nil {
			return true
		}
	}
	return false
}

// removeTree removes a cgroup directory bottom up. Only directories are
// removed: control files vanish with theirs.
func removeTree(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		killed, kerr := killMembers(ctx, dir)
		if kerr != nil {
			return kerr
		}
		// Busy without members: another remover or the runtime holds it for
		// a moment; the caller retries on its own schedule.
		if killed == 0 {
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
	}
}

// killMembers kills the processes of one cgroup and waits for their exit on
// pidfds, so it needs no polling and cannot kill a recycled pid.
func killMembers(ctx context.Context, dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return 0, fmt.Errorf("reading members: %w", err)
	}
	killed := 0
	for _, field := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		if err := killWait(ctx, dir, pid); err != nil {
			return killed, err
		}
		killed++
	}
	return killed, nil
}

func killWait(ctx context.Context, dir string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// The pid may have been recycled between the read and the open.
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || !contains(strings.Fields(string(b)), strconv.Itoa(pid)) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	return waitReadable(ctx, fd)
}

// waitReadable waits until fd is readable or ctx ends; an eventfd carries the
// end of the context into the same poll.
func waitReadable(ctx context.Context, fd int) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(wake)
	written := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(written)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-written
		}
	}()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case fds[0].Revents != 0:
			return nil
		default:
			return ctx.Err()
		}
	}
}
