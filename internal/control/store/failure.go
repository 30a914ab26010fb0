package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// failure contains what etcd calls fatal. When its log or database cannot be
// written (a full or failing disk), etcd logs a fatal or panic entry and
// expects the process to end; here that process is also the node's agent,
// proxy and DNS. While etcd starts, the entry panics, and the start fails.
// Later the goroutine that logged it is held for ever, so that nothing is done
// after the write that failed, and happened is closed: etcd is lost, until a
// new process reads what is on disk.
type failure struct {
	contained atomic.Bool
	once      sync.Once
	cause     atomic.Pointer[error]
	happened  chan struct{}
}

func newFailure() *failure { return &failure{happened: make(chan struct{})} }

// contain begins to hold instead of to panic.
func (f *failure) contain() { f.contained.Store(true) }

// err is what was fatal; nil while nothing was.
func (f *failure) err() error {
	if p := f.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// OnWrite makes it a hook of zap, called after a fatal or panic entry is written.
func (f *failure) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	if !f.contained.Load() {
		panic(entry.Message)
	}
	f.once.Do(func() {
		err := fmt.Errorf("etcd gave up: %s%s", entry.Message, errorOf(fields))
		f.cause.Store(&err)
		close(f.happened)
	})
	select {}
}

// errorOf is the error among the fields of an entry.
func errorOf(fields []zapcore.Field) string {
	var all []string
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			all = append(all, err.Error())
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, "; ")
}

// Failure is what an embedded server failed of while it ran; nil if it did not.
func (s *Store) Failure() error {
	if s.embedded == nil {
		return nil
	}
	return s.embedded.failure.err()
}

// CanStart says whether a store could start in the directory now: that there is
// room, and that the disk takes a write. Nil means it could.
func CanStart(dir string) error {
	if err := checkSpace(dir); err != nil {
		return err
	}
	name := filepath.Join(dir, "write-test")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing to the store's directory: %w", err)
	}
	_, err = f.Write(make([]byte, 4096))
	if err = errors.Join(err, f.Sync(), f.Close(), os.Remove(name)); err != nil {
		return fmt.Errorf("writing to the store's directory: %w", err)
	}
	return nil
}
