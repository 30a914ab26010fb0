package launch

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// kernelSettings are what containers rely on: memory may be overcommitted, and
// a kernel that ran out of it or panicked comes back by itself.
var kernelSettings = []struct{ path, value string }{
	{"vm/overcommit_memory", "1"},
	{"vm/panic_on_oom", "0"},
	{"kernel/panic", "10"},
	{"kernel/panic_on_oops", "1"},
	{"kernel/keys/root_maxkeys", "1000000"},
	{"kernel/keys/root_maxbytes", "25000000"},
}

// prepare sets up this process and the kernel below root as configured, or
// says what must be changed.
func prepare(cfg *kubeletv1beta1.KubeletConfiguration, log *slog.Logger, root string) error {
	if cfg.FailSwapOn == nil || *cfg.FailSwapOn {
		if err := noSwap(root); err != nil {
			return err
		}
	}
	if err := tuneKernel(cfg.ProtectKernelDefaults, log, root); err != nil {
		return err
	}
	if cfg.EnableContentionProfiling {
		runtime.SetBlockProfileRate(1)
		runtime.SetMutexProfileFraction(1)
	}
	if cfg.OOMScoreAdj != nil {
		if err := os.WriteFile(filepath.Join(root, "proc/self/oom_score_adj"), []byte(strconv.Itoa(int(*cfg.OOMScoreAdj))), 0); err != nil {
			log.Warn("setting oomScoreAdj: the agent may be ended before its pods when memory runs out", "err", err)
		}
	}
	if cfg.MaxOpenFiles > 0 {
		limit := uint64(cfg.MaxOpenFiles)
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err == nil && now.Cur < limit {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: max(limit, now.Max)}); err != nil {
				log.Warn("setting maxOpenFiles", "have", now.Cur, "want", limit, "err", err)
			}
		}
	}
	return nil
}

func noSwap(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "proc/swaps"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for swap: %w", err)
	}
	if lines := strings.Split(strings.TrimSpace(string(text)), "\n"); len(lines) > 1 {
		return fmt.Errorf("running with swap on is not supported while failSwapOn is true: switch it off (swapoff -a) or set failSwapOn: "+
			"false; in use are %s", strings.Join(lines[1:], "; "))
	}
	return nil
}

func tuneKernel(protect bool, log *slog.Logger, root string) error {
	var wrong []string
	for _, setting := range kernelSettings {
		path := filepath.Join(root, "proc/sys", setting.path)
		text, err := os.ReadFile(path)
		if err != nil {
			log.Warn("reading a kernel setting", "setting", setting.path, "err", err)
			continue
		}
		have := strings.TrimSpace(string(text))
		if have == setting.value {
			continue
		}
		if protect {
			wrong = append(wrong, fmt.Sprintf("%s is %s, want %s", strings.ReplaceAll(setting.path, "/", "."), have, setting.value))
			continue
		}
		if err := os.WriteFile(path, []byte(setting.value), 0); err != nil {
			log.Warn("changing a kernel setting", "setting", setting.path, "have", have, "want", setting.value, "err", err)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("checking kernel settings (protectKernelDefaults): %s: set them with sysctl", strings.Join(wrong, "; "))
	}
	return nil
}

// lock takes the lock file, waiting for the process that holds it. Contended is closed
// when another process opens the file, if that is wanted.
func lock(path string, watch bool) (unlock func(), contended <-chan struct{}, err error) {
	if path == "" {
		if watch {
			return nil, nil, errors.New("reading --exit-on-lock-contention: it needs --lock-file")
		}
		return func() {}, nil, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("opening --lock-file: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if !watch {
		return func() { file.Close() }, nil, nil
	}
	closeWatch, opened, err := watchOpen(path)
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return func() {
		closeWatch()
		file.Close()
	}, opened, nil
}

// watchOpen closes the channel when a process opens or deletes the file.
func watchOpen(path string) (stop func(), opened <-chan struct{}, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("watching %s: %w", path, err)
	}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_DELETE_SELF); err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("watching %s: %w", path, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	ch := make(chan struct{})
	go func() {
		if n, err := events.Read(make([]byte, 4096)); err == nil && n > 0 {
			close(ch)
		}
	}()
	return func() { events.Close() }, ch, nil
}
