package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/logfile"
)

// shimName is the program that containerd starts for each pod.
const shimName = "containerd-shim-runc-v2"

// EndLostShims kills shims of this containerd that no one will ever talk to
// again, and says how many. When a call to start a pod is given up at the wrong
// moment, because its caller was killed for example, containerd forgets a shim
// that had just forked: its working directory, the pod's bundle, is deleted,
// and the process stays for good. With all, every shim of this containerd goes,
// which is for one that has ended and holds no pods.
func (s *Supervisor) EndLostShims(all bool) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("looking for lost shims: %w", err)
	}
	ended := 0
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !s.ownsShim(pid) {
			continue
		}
		if !all && !lost(pid) {
			continue
		}
		killed, err := s.killShim(pid)
		errs = append(errs, err)
		if killed {
			ended++
		}
	}
	return ended, errors.Join(errs...)
}

// sweepEvery is the pause between two looks for lost shims: there is hardly
// ever one, and each is some ten megabytes.
const sweepEvery = 10 * time.Minute

func (s *Supervisor) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.endLostShims()
			s.boundLog()
		}
	}
}

// boundLog keeps containerd's log to its size. It outlives this process, so its
// output is no pipe to here.
func (s *Supervisor) boundLog() {
	if err := logfile.Truncate(s.LogFile, logfile.DefaultLimits); err != nil {
		s.Log.Warn("containerd's log cannot be rotated", "file", s.LogFile, "err", err)
	}
}

func (s *Supervisor) endLostShims() {
	if n, err := s.EndLostShims(false); err != nil || n > 0 {
		s.Log.Warn("shims were left that containerd had forgotten", "ended", n, "err", err)
	}
}

// ownsShim says whether a process is a shim that answers to this containerd.
func (s *Supervisor) ownsShim(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := bytes.Split(line, []byte{0})
	if filepath.Base(string(args[0])) != shimName {
		return false
	}
	for i := 1; i+1 < len(args); i++ {
		if string(args[i]) == "-address" && string(args[i+1]) == s.Socket() {
			return true
		}
	}
	return false
}

// lost says whether the bundle that a shim lives in was deleted. Containerd
// makes it before it starts a shim and deletes it when it is done with one.
func lost(pid int) bool {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && strings.HasSuffix(dir, " (deleted)")
}

// killShim kills a shim and waits for its end. The pidfd is opened before the
// second look at the process, so that none is hit that took over its number.
func (s *Supervisor) killShim(pid int) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ending the lost shim %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !s.ownsShim(pid) {
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return false, fmt.Errorf("ending the lost shim %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if !waitEnd(ctx, pid) {
		return false, fmt.Errorf("ending the lost shim %d: it is killed and does not end", pid)
	}
	return true, nil
}
