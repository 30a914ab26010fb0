package pressure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Sensor reads the signals of this host. Every read is one or two small
// files of /proc or one statfs.
type Sensor struct {
	// HostRoot is where /proc is, default "/".
	HostRoot string
	// RootDir is the agent's directory, ImageDir the runtime's for images
	// (empty if unknown).
	RootDir, ImageDir string
	// Allocatable measures the cgroup of all pods: its working set and its
	// limit, 0 for none. May be nil.
	Allocatable func() (workingSet, limit int64, err error)
}

// Read returns the signals that can be read and an error about the others.
func (s *Sensor) Read() (Readings, error) {
	readings := Readings{}
	var failed []error
	if reading, err := s.memory(); err != nil {
		failed = append(failed, err)
	} else {
		readings[MemoryAvailable] = reading
	}
	if s.Allocatable != nil {
		used, limit, err := s.Allocatable()
		switch {
		case err != nil:
			failed = append(failed, err)
		case limit > 0:
			readings[AllocatableMemoryAvailable] = reading{Available: max(limit-used, 0), Capacity: limit}
		}
	}
	for _, fs := range []struct {
		dir           string
		bytes, inodes Signal
	}{{s.RootDir, NodeFSAvailable, NodeFSInodesFree}, {s.ImageDir, ImageFSAvailable, ImageFSInodesFree}} {
		if fs.dir == "" {
			continue
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(fs.dir, &stat); err != nil {
			failed = append(failed, fmt.Errorf("measuring the file system of %s: %w", fs.dir, err))
			continue
		}
		readings[fs.bytes] = reading{Available: int64(stat.Bavail) * stat.Bsize, Capacity: int64(stat.Blocks) * stat.Bsize}
		if stat.Files > 0 { // some file systems have no fixed number
			readings[fs.inodes] = reading{Available: int64(stat.Ffree), Capacity: int64(stat.Files)}
		}
	}
	if reading, err := s.pids(); err != nil {
		failed = append(failed, err)
	} else {
		readings[PIDAvailable] = reading
	}
	return readings, errors.Join(failed...)
}

func (s *Sensor) path(name string) string {
	if s.HostRoot == "" {
		return "/" + name
	}
	return filepath.Join(s.HostRoot, name)
}

// memory is what is free plus what the kernel can drop at once: page cache
// that was not touched lately.
func (s *Sensor) memory() (reading, error) {
	text, err := os.ReadFile(s.path("proc/meminfo"))
	if err != nil {
		return reading{}, fmt.Errorf("reading memory: %w", err)
	}
	var total, free, inactive int64
	for line := range bytes.Lines(text) {
		key, rest, _ := bytes.Cut(line, []byte{':'})
		var into *int64
		switch string(key) {
		case "MemTotal":
			into = &total
		case "MemFree":
			into = &free
		case "Inactive(file)":
			into = &inactive
		default:
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(string(rest)), " ")
		if *into, err = strconv.ParseInt(number, 10, 64); err != nil {
			return reading{}, fmt.Errorf("reading memory: %w", err)
		}
	}
	if total == 0 {
		return reading{}, errors.New("reading memory: no MemTotal in /proc/meminfo")
	}
	return reading{Available: (free + inactive) * 1024, Capacity: total * 1024}, nil
}

func (s *Sensor) pids() (reading, error) {
	text, err := os.ReadFile(s.path("proc/loadavg"))
	if err != nil {
		return reading{}, fmt.Errorf("reading the number of processes: %w", err)
	}
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return reading{}, fmt.Errorf("reading the number of processes: %q has no fourth field", text)
	}
	_, total, _ := strings.Cut(fields[3], "/")
	used, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return reading{}, fmt.Errorf("reading the number of processes: %w", err)
	}
	limit := int64(0)
	for _, name := range []string{"proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"} {
		text, err := os.ReadFile(s.path(name))
		if err != nil {
			return reading{}, fmt.Errorf("reading the limit of processes: %w", err)
		}
		value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return reading{}, fmt.Errorf("reading the limit of processes: %w", err)
		}
		if limit == 0 || value < limit {
			limit = value
		}
	}
	return reading{Available: max(limit-used, 0), Capacity: limit}, nil
}

// pace says when to read again. A signal far from its threshold cannot cross
// it soon, however fast it falls: the next read comes before it could.
const (
	paceMin = 250 * time.Millisecond
	paceMax = 10 * time.Second
	// memoryRate is how fast memory is assumed to be eaten, in bytes per
	// second, unless it was seen to go faster.
	memoryRate = 1 << 30
	// diskRate is the same for file systems.
	diskRate = 1 << 29
	// countRate is the same for inodes and processes.
	countRate = 20_000
)

// nextRead is the time until some threshold could be crossed. Before holds the
// readings an elapsed time ago, to see how fast they fall.
func nextRead(thresholds []threshold, readings, before Readings, elapsed time.Duration) time.Duration {
	wait := paceMax
	for _, threshold := range thresholds {
		reading, ok := readings[threshold.Signal]
		if !ok {
			continue
		}
		distance := reading.Available - threshold.Limit.Of(reading.Capacity)
		if distance <= 0 {
			return paceMin
		}
		rate := float64(assumedRate(threshold.Signal))
		if was, ok := before[threshold.Signal]; ok && elapsed > 0 {
			if fell := was.Available - reading.Available; fell > 0 {
				rate = max(rate, 2*float64(fell)/elapsed.Seconds())
			}
		}
		wait = min(wait, time.Duration(float64(distance)/rate*float64(time.Second)))
	}
	return max(wait, paceMin)
}

func assumedRate(signal Signal) int64 {
	switch signal {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return memoryRate
	case NodeFSAvailable, ImageFSAvailable:
		return diskRate
	}
	return countRate
}

// stallTriggers are tried in turn: the kernel wakes us when tasks stalled on
// memory for the first time within the second, in microseconds. Without the
// right to use short windows, two seconds are allowed.
var stallTriggers = []string{"some 100000 1000000", "some 150000 2000000"}

// watchStalls signals wake when the kernel sees memory stalls. It returns when
// the context ends, or at once with an error where the kernel offers none.
func watchStalls(ctx context.Context, path string, wake chan<- struct{}) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd)
	for _, trigger := range stallTriggers {
		if _, err = unix.Write(fd, append([]byte(trigger), 0)); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("asking %s for notifications: %w", path, err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("making an event descriptor: %w", err)
	}
	defer unix.Close(stop)
	ended := make(chan struct{})
	defer func() { <-ended }()
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(ended)
		<-watching.Done()
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}, {Fd: int32(stop), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting on %s: %w", path, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if fds[0].Revents&unix.POLLERR != 0 {
			return fmt.Errorf("waiting on %s: the kernel took the trigger back", path)
		}
		if fds[0].Revents&unix.POLLPRI != 0 {
			signalOnce(wake)
		}
	}
}

// watchEvents signals wake when a cgroup's memory.events change (version 2):
// the pods hit their common limit.
func watchEvents(ctx context.Context, log *slog.Logger, file string, wake chan<- struct{}) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("watching memory events", "err", err)
		return
	}
	defer watcher.Close()
	if err := watcher.Add(file); err != nil {
		log.Info("the kernel tells no memory events of pods", "file", file, "err", err)
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-watcher.Events:
			if !ok {
				return
			}
			signalOnce(wake)
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
		}
	}
}

func signalOnce(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
