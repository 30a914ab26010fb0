// Package logfile keeps log files at a bounded size and count.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
)

// Limits bound a log: a file of Size bytes, and Old files before it, named
// PATH.1 (the newest) to PATH.Old.
type Limits struct {
	Size int64
	Old  int
}

// DefaultLimits hold 40 MiB per log.
var DefaultLimits = Limits{Size: 10 << 20, Old: 3}

// File is a log that is rotated when it is full. Its methods may be called from
// several goroutines.
type File struct {
	path   string
	limits Limits

	mu   sync.Mutex
	file *os.File
	size int64
}

// Open opens or makes a log to append to.
func Open(path string, limits Limits) (*File, error) {
	f := &File{path: path, limits: limits}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write appends an entry, which never spans two files. A log that cannot be
// rotated or written loses the entry: the program goes on.
func (f *File) Write(entry []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return 0, fs.ErrClosed
	}
	if f.size > 0 && f.size+int64(len(entry)) > f.limits.Size {
		if err := f.rotate(); err != nil {
			return 0, fmt.Errorf("rotating %s: %w", f.path, err)
		}
	}
	n, err := f.file.Write(entry)
	f.size += int64(n)
	return n, err
}

// rotate begins a new file. The old one is given up only once there is a new.
func (f *File) rotate() error {
	if err := shift(f.path, f.limits.Old, func(to string) error { return os.Rename(f.path, to) }); err != nil {
		return err
	}
	old := f.file
	if err := f.open(); err != nil {
		return err
	}
	return old.Close()
}

// Sync makes it a zapcore.WriteSyncer; entries go to the kernel as they come.
func (f *File) Sync() error { return nil }

// Close ends the log.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}

// shift moves the old files up by one, the last one out, and lets move put the
// present one into PATH.1.
func shift(path string, old int, move func(to string) error) error {
	name := func(i int) string { return path + "." + strconv.Itoa(i) }
	for i := old; i > 1; i-- {
		if err := os.Rename(name(i-1), name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if old < 1 {
		return os.Remove(path)
	}
	return move(name(1))
}

// Truncate rotates a log that another process has open for appending: what is
// in it is copied, then the file is emptied. Lines that come in between may be
// lost. It does nothing to a log within its size.
func Truncate(path string, limits Limits) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= limits.Size {
		return err
	}
	// Without room for a copy the log is emptied all the same.
	copyErr := shift(path, max(limits.Old, 1), func(to string) error { return copyTail(path, to, limits.Size) })
	if err := os.Truncate(path, 0); err != nil {
		return err
	}
	return copyErr
}

// copyTail copies the last size bytes of a file.
func copyTail(from, to string, size int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if _, err := in.Seek(max(0, info.Size()-size), io.SeekStart); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, size))
	return errors.Join(err, out.Close())
}
