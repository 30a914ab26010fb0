// Package logs reads container logs as a CRI runtime writes them and follows
// them across rotation.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options choose what of a log is wanted. The zero value is all of it so far.
type Options struct {
	// Follow continues after the end until Exited is closed or the context
	// ends.
	Follow bool
	// Tail is the number of last lines to begin with; negative is all.
	Tail int64
	// Limit is the most bytes to write; negative is no limit.
	Limit int64
	// Since leaves out lines written before; zero is none.
	Since time.Time
	// Timestamps puts the time of writing before each line.
	Timestamps bool
	// Stdout and Stderr choose streams; with neither set both are wanted.
	Stdout, Stderr bool
	// Exited is closed when the container ended: what it wrote by then is
	// still delivered, then reading ends. Nil for a container that is known to
	// have ended. Only used with Follow.
	Exited <-chan struct{}
}

// Read writes the wanted part of the log file at path to out. If out has a
// Flush method it is called whenever all that was there is written.
func Read(ctx context.Context, path string, opts Options, out io.Writer) error {
	file, err := open(path)
	if err != nil {
		return err
	}
	r := &reader{opts: opts, path: path, file: file, out: out, left: opts.Limit, lineStart: true}
	defer func() { r.file.Close() }()
	if opts.Tail >= 0 {
		start, err := tailOffset(file, opts.Tail)
		if err != nil {
			return fmt.Errorf("finding the last %d lines of %s: %w", opts.Tail, path, err)
		}
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return fmt.Errorf("seeking in %s: %w", path, err)
		}
	}
	r.buf = bufio.NewReaderSize(file, 64<<10)
	if !opts.Follow {
		err := r.drain(ctx)
		r.flush()
		return ignoreFull(err)
	}
	return ignoreFull(r.follow(ctx))
}

// errFull ends reading when the byte limit is reached.
var errFull = errors.New("the byte limit is reached")

func ignoreFull(err error) error {
	if errors.Is(err, errFull) {
		return nil
	}
	return err
}

func open(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening log file: %w", err)
	}
	return file, nil
}

type reader struct {
	opts Options
	path string
	file *os.File
	buf  *bufio.Reader
	out  io.Writer
	left int64 // bytes that may still be written; negative is no limit

	pending   []byte // an incomplete last line of the file, at most maxLine
	skipping  bool   // the line is longer than that; it is left out
	lineStart bool   // the next output begins a line
}

// follow drains the file, then waits for the directory to change or for the
// container to end, and drains again.
func (r *reader) follow(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", r.path, err)
	}
	defer watcher.Close()
	// The directory shows both writes to the file and its replacement; the
	// path itself may be a link into another directory.
	real, err := filepath.EvalSymlinks(r.path)
	if err != nil {
		return fmt.Errorf("resolving %s: %w", r.path, err)
	}
	if err := watcher.Add(filepath.Dir(real)); err != nil {
		return fmt.Errorf("watching %s: %w", filepath.Dir(real), err)
	}
	exited := r.opts.Exited
	ended := exited == nil
	for {
		if err := r.drain(ctx); err != nil {
			r.flush()
			return err
		}
		rotated, err := r.reopen()
		if err != nil {
			return err
		}
		if rotated {
			continue
		}
		r.flush()
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-exited:
			ended = true
		case _, ok := <-watcher.Events:
			if !ok {
				return nil
			}
		case err, ok := <-watcher.Errors:
			if ok && !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching %s: %w", r.path, err)
			}
		}
	}
}

// reopen goes on with the new file if the log was rotated. It is called at the
// end of the file; what was written to the old one between that end and the
// rename is read first.
func (r *reader) reopen() (bool, error) {
	now, err := os.Stat(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // between rename and the runtime's new file
	}
	if err != nil {
		return false, fmt.Errorf("looking for a rotated log: %w", err)
	}
	have, err := r.file.Stat()
	if err != nil {
		return false, fmt.Errorf("looking for a rotated log: %w", err)
	}
	if os.SameFile(now, have) {
		return false, nil
	}
	if more, err := r.buf.Peek(1); err == nil && len(more) == 1 {
		return true, nil // not at the end after all
	}
	file, err := open(r.path)
	if err != nil {
		return false, err
	}
	r.file.Close()
	r.file, r.pending, r.skipping = file, nil, false
	r.buf.Reset(file)
	return true, nil
}

// maxLine bounds a line in memory. Runtimes cut a container's lines into
// records of 16 KiB; a longer line is none of theirs.
const maxLine = 1 << 20

// drain writes all complete lines up to the end of the file.
func (r *reader) drain(ctx context.Context) error {
	for lines := 0; ; lines++ {
		if lines&0xff == 0 && ctx.Err() != nil {
			return nil
		}
		chunk, err := r.buf.ReadSlice('\n')
		if len(r.pending)+len(chunk) > maxLine {
			r.skipping, r.pending = true, nil
		}
		if !r.skipping && (len(r.pending) > 0 || err != nil) {
			r.pending = append(r.pending, chunk...)
			chunk = r.pending
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading %s: %w", r.path, err)
		}
		if !r.skipping {
			if err := r.line(chunk); err != nil {
				return err
			}
		}
		r.skipping, r.pending = false, r.pending[:0]
	}
}

// line writes one line of the file if it is wanted.
func (r *reader) line(raw []byte) error {
	record, err := parse(raw)
	if err != nil {
		return nil // a torn line after a crash; the next one is whole
	}
	if !r.opts.Since.IsZero() && record.Time.Before(r.opts.Since) {
		return nil
	}
	if (r.opts.Stdout || r.opts.Stderr) && !(r.opts.Stdout && record.Stream == "stdout" || r.opts.Stderr && record.Stream == "stderr") {
		return nil
	}
	if r.opts.Timestamps && r.lineStart {
		if err := r.write(append([]byte(record.Stamp), ' ')); err != nil {
			return err
		}
	}
	r.lineStart = !record.Partial
	return r.write(record.Text)
}

func (r *reader) write(text []byte) error {
	full := false
	if r.left >= 0 && int64(len(text)) >= r.left {
		text, full = text[:r.left], true
	}
	if r.left >= 0 {
		r.left -= int64(len(text))
	}
	if _, err := r.out.Write(text); err != nil {
		return err
	}
	if full {
		return errFull
	}
	return nil
}

func (r *reader) flush() {
	if flusher, ok := r.out.(interface{ Flush() }); ok {
		flusher.Flush()
	}
}

// record is one line of a log file.
type record struct {
	// Stamp is the time as written, Time the same parsed.
	Stamp  string
	Time   time.Time
	Stream string
	// Partial says that the container's line goes on in the next record.
	Partial bool
	// Text ends with a newline unless Partial. It aliases the parsed bytes.
	Text []byte
}

// parse reads a line of the CRI log format:
// "2016-10-06T00:17:09.669794202Z stdout F text\n", where F (full) or P
// (partial) may be followed by further tags after colons.
func parse(line []byte) (record, error) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return record{}, fmt.Errorf("parsing log line: no time stamp")
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return record{}, fmt.Errorf("parsing log line: %w", err)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return record{}, fmt.Errorf("parsing log line: stream %q is neither stdout nor stderr", stream)
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return record{}, fmt.Errorf("parsing log line: no tags")
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	record := record{Stamp: string(stamp), Time: at, Stream: string(stream), Text: text}
	if string(first) == "P" {
		record.Partial = true
		record.Text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	return record, nil
}

// tailOffset is where the last n lines begin. An incomplete last line counts
// as one.
func tailOffset(file io.ReadSeeker, n int64) (int64, error) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return end, err
	}
	const block = 16 << 10
	buf := make([]byte, block)
	seen := int64(0)
	for at := end; at > 0; {
		size := min(int64(block), at)
		at -= size
		if _, err := file.Seek(at, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(file, buf[:size]); err != nil {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			// The newline that ends the file ends the last line and begins none.
			if buf[i] != '\n' || at+i == end-1 {
				continue
			}
			if seen++; seen == n {
				return at + i + 1, nil
			}
		}
	}
	return 0, nil
}
