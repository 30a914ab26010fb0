package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/internal/controller"
)

// Supervisor keeps one containerd running. It owns the process only in the
// sense of starting and watching it: when berth ends, containerd goes on.
type Supervisor struct {
	Options
	// Binary is containerd's path; its shim is found beside it.
	Binary string
	// NoSeccomp says why the OCI runtime applies no seccomp profile; empty if it does.
	NoSeccomp string
	// LogFile receives its output.
	LogFile string
	Log     *slog.Logger
	// Died is called, if set, each time containerd ended unexpectedly.
	Died func(cause string)
}

// Ensure returns once a containerd with the present configuration answers on
// the socket. It adopts one that is already running; one that runs with an
// older configuration is replaced, which leaves containers running. adopted
// says which of the two happened.
func (s *Supervisor) Ensure(ctx context.Context) (pid int, adopted bool, err error) {
	if pid, adopted, err = s.ensure(ctx); err != nil {
		return pid, adopted, err
	}
	s.endLostShims()
	return pid, adopted, nil
}

func (s *Supervisor) ensure(ctx context.Context) (pid int, adopted bool, err error) {
	config, err := s.Render()
	if err != nil {
		return 0, false, err
	}
	for _, d := range []string{s.Root(), s.State(), s.SocketDir(), s.CNIConfDir(), filepath.Dir(s.LogFile)} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return 0, false, fmt.Errorf("preparing containerd's directories: %w", err)
		}
	}
	old, _ := os.ReadFile(s.ConfigFile())
	if pid := s.running(); pid != 0 {
		if bytes.Equal(old, config) {
			if err := s.answer(ctx, pid); err == nil {
				return pid, true, nil
			}
		}
		if err := StopProcess(ctx, pid, 10*time.Second); err != nil {
			return 0, false, err
		}
	}
	if err := os.WriteFile(s.ConfigFile(), config, 0o600); err != nil {
		return 0, false, fmt.Errorf("writing containerd's configuration: %w", err)
	}
	pid, err = s.start()
	if err != nil {
		return 0, false, err
	}
	return pid, false, s.answer(ctx, pid)
}

// Watch blocks until ctx ends; whenever containerd dies it is started again,
// with a pause that grows while it keeps dying. Now and then shims that it has
// forgotten are ended.
func (s *Supervisor) Watch(ctx context.Context, pid int) {
	var wg sync.WaitGroup
	wg.Go(func() { s.sweep(ctx) })
	defer wg.Wait()
	retry := controller.Retry{Backoff: controller.Backoff{First: 200 * time.Millisecond, Most: 30 * time.Second}}
	for {
		began := time.Now()
		if !waitEnd(ctx, pid) {
			return
		}
		cause := s.lastLines(3)
		s.Log.Error("containerd ended; starting it again", "pid", pid, "last output", cause)
		if s.Died != nil {
			s.Died(cause)
		}
		if time.Since(began) > time.Minute {
			retry.Succeeded()
		}
		for {
			if !controller.Sleep(ctx, retry.Failed()) {
				return
			}
			var err error
			if pid, _, err = s.Ensure(ctx); err == nil {
				break
			}
			s.Log.Error("containerd did not start", "err", err)
		}
	}
}

// Stop ends containerd if it runs. Containers go on unless they were stopped
// before.
func (s *Supervisor) Stop(ctx context.Context) error {
	pid := s.running()
	if pid == 0 {
		return nil
	}
	if err := StopProcess(ctx, pid, 10*time.Second); err != nil {
		return err
	}
	return remove(s.PIDFile())
}

// Revive starts a containerd that died, with the configuration it had, so that
// the containers it left can be stopped. It does nothing where there is none
// to revive: it runs, it never ran here, or no shim is left.
func (s *Supervisor) Revive(ctx context.Context) error {
	if s.running() != 0 {
		return nil
	}
	if _, err := os.Stat(s.ConfigFile()); err != nil {
		return nil //nolint:nilerr // it never ran here
	}
	tasks, err := filepath.Glob(filepath.Join(s.State(), "io.containerd.runtime.v2.task", "*", "*"))
	if err != nil || len(tasks) == 0 {
		return err
	}
	pid, err := s.start()
	if err != nil {
		return err
	}
	return s.answer(ctx, pid)
}

// PID is the running containerd's process, or 0.
func (s *Supervisor) PID() int { return s.running() }

func (s *Supervisor) start() (int, error) {
	out, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return 0, fmt.Errorf("opening containerd's log: %w", err)
	}
	defer out.Close()
	if err := remove(s.Socket()); err != nil {
		return 0, err
	}
	cmd := exec.Command(s.Binary, "--config", s.ConfigFile())
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(s.Binary)+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting %s: %w", s.Binary, err)
	}
	pid := cmd.Process.Pid
	// Reap it if it ends while we are its parent.
	go cmd.Wait() //nolint:errcheck // the end itself is seen by waitEnd
	return pid, os.WriteFile(s.PIDFile(), []byte(strconv.Itoa(pid)), 0o644)
}

// running returns the pid in the pid file if that process is our containerd.
func (s *Supervisor) running() int {
	data, err := os.ReadFile(s.PIDFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(cmdline, []byte(s.ConfigFile()+"\x00")) {
		return 0
	}
	return pid
}

// slowStart bounds how long a containerd that lives may take to answer: a busy
// machine with a slow disk needs most of it, one that ended is not waited for.
const slowStart = 2 * time.Minute

// answer waits until the socket takes calls, or the process ended.
func (s *Supervisor) answer(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, slowStart)
	defer cancel()
	ended := make(chan struct{})
	watch, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if waitEnd(watch, pid) {
			close(ended)
		}
	}()
	conn, err := Dial(s.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		conn.Connect()
		state := conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		changed, cancelChange := context.WithCancel(ctx)
		go func() {
			select {
			case <-ended:
			case <-changed.Done():
			}
			cancelChange()
		}()
		conn.WaitForStateChange(changed, state)
		cancelChange()
		select {
		case <-ended:
			return fmt.Errorf("containerd ended at start: %s (its log: %s)", s.lastLines(5), s.LogFile)
		default:
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for containerd on %s: %w (its log: %s)", s.Socket(), ctx.Err(), s.LogFile)
		}
	}
}

// Dial opens a connection to a runtime socket; it connects when first used
// and tries again quickly, since the socket is local.
func Dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: localBackoff, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", socket, err)
	}
	return conn, nil
}

func (s *Supervisor) lastLines(n int) string {
	data, err := os.ReadFile(s.LogFile)
	if err != nil {
		return err.Error()
	}
	if len(data) > 16<<10 {
		data = data[len(data)-16<<10:]
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, " | ")
}

// waitEnd blocks until process pid ended (true) or ctx ended (false). A pidfd
// becomes readable when its process ends, child or not.
func waitEnd(ctx context.Context, pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		f.Close()
		return false
	}
	wake := os.NewFile(uintptr(pipe[1]), "wake")
	stop := context.AfterFunc(ctx, func() { wake.Close() })
	defer func() {
		if stop() {
			wake.Close()
		}
		unix.Close(pipe[0])
		f.Close()
	}()
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(pipe[0]), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && fds[0].Revents != 0
	}
}

// StopProcess asks pid to end and, after patience, makes it. A process that is
// gone is success.
func StopProcess(ctx context.Context, pid int, patience time.Duration) error {
	if err := unix.Kill(pid, unix.SIGTERM); errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return fmt.Errorf("stopping process %d: %w", pid, err)
	}
	soft, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if waitEnd(soft, pid) {
		return nil
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	if !waitEnd(ctx, pid) {
		return fmt.Errorf("process %d did not end: %w", pid, ctx.Err())
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}
