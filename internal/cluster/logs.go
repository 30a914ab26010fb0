package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/logfile"
)

// logs hands out one logger per part, each with a file of its own below the
// data directory.
type logs struct {
	dir    string
	format string
	level  slog.Level

	mu    sync.Mutex
	files []*logfile.File
}

// newLogs checks format and level before anything is written.
func newLogs(dir, format, level string) (*logs, error) {
	l := &logs{dir: dir, format: format}
	switch format {
	case "":
		l.format = "text"
	case "text", "json":
	default:
		return nil, fmt.Errorf("--log-format %q: allowed are text and json", format)
	}
	var err error
	if l.level, err = logLevel(level); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the log directory: %w", err)
	}
	return l, nil
}

// logLevel reads --log-level; empty means info.
func logLevel(name string) (slog.Level, error) {
	level := slog.LevelInfo
	if name == "" {
		return level, nil
	}
	if err := level.UnmarshalText([]byte(strings.ToUpper(name))); err != nil {
		return level, fmt.Errorf("--log-level %q: allowed are debug, info, warn and error", name)
	}
	return level, nil
}

// part opens PART.log and returns its logger.
func (l *logs) part(name string) (*slog.Logger, error) {
	f, err := logfile.Open(l.dir+"/"+name+".log", logfile.DefaultLimits)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	l.mu.Lock()
	l.files = append(l.files, f)
	l.mu.Unlock()
	return slog.New(l.handler(f)), nil
}

func (l *logs) handler(w io.Writer) slog.Handler {
	opts := &slog.HandlerOptions{Level: l.level}
	if l.format == "json" {
		return slog.NewJSONHandler(w, opts)
	}
	return slog.NewTextHandler(w, opts)
}

// libraries sends what the Kubernetes libraries log (through klog) to log,
// one level lower than our own: their info is our debug.
func (l *logs) libraries(log *slog.Logger) {
	h := &demoteHandler{log.Handler()}
	klog.SetLoggerWithOptions(logr.FromSlogHandler(h), klog.ContextualLogger(true))
}

// CrashLog is where a process in the background writes what is in no part's
// log: why it ended, if it did not end by itself.
const CrashLog = "crash.log"

// crashLogCheck is how often the size of the crash log is looked at: there is
// hardly ever anything in it.
const crashLogCheck = 10 * time.Minute

// boundCrashLog keeps the crash log to its size, until ctx ends: at once, since
// every start may have added to it, and at each tick. Its writers are this
// process's own standard output and error, which no File is between.
func (l *logs) boundCrashLog(ctx context.Context, tick <-chan time.Time, log *slog.Logger) {
	for {
		if err := logfile.Truncate(l.dir+"/"+CrashLog, logfile.DefaultLimits); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("the crash log cannot be rotated", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

func (l *logs) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.files {
		f.Close()
	}
}
