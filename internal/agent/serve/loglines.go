package serve

import (
	"bytes"
	"io"
	"regexp"
)

// Bounds of a log query's answer in memory. Lines are cut at maxLogLine; a
// tail holds at most maxLogTail bytes, of the newest lines.
const (
	maxLogLine = 1 << 20
	maxLogTail = 16 << 20
)

// lineFilter passes on the lines that match, as they come, or with a tail
// keeps the last ones until close. It holds a line and the tail, never more,
// whatever is written to it.
type lineFilter struct {
	out     io.Writer
	pattern *regexp.Regexp // nil takes every line
	tail    int            // -1 is all

	line []byte // what came of the line that has not ended
	cut  bool   // the line is longer than maxLogLine; its rest is dropped
	last [][]byte
	held int // bytes in last
}

// Write takes any part of the text.
func (f *lineFilter) Write(text []byte) (int, error) {
	n := len(text)
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n')
		part := text
		if end >= 0 {
			part = text[:end]
		}
		if room := maxLogLine - len(f.line); len(part) > room {
			part, f.cut = part[:room], true
		}
		f.line = append(f.line, part...)
		if end < 0 {
			return n, nil
		}
		if err := f.end(); err != nil {
			return 0, err
		}
		text = text[end+1:]
	}
	return n, nil
}

// end passes on the line that has come as a whole.
func (f *lineFilter) end() error {
	if f.cut {
		f.line = append(f.line, " [cut]"...)
	}
	return f.pass(append(f.line, '\n'))
}

func (f *lineFilter) pass(line []byte) error {
	f.line, f.cut = line[:0], false
	if f.pattern != nil && !f.pattern.Match(line) {
		return nil
	}
	if f.tail < 0 {
		_, err := f.out.Write(line)
		return err
	}
	f.last, f.held = append(f.last, bytes.Clone(line)), f.held+len(line)
	for len(f.last) > f.tail || f.held > maxLogTail {
		f.held -= len(f.last[0])
		f.last[0] = nil
		f.last = f.last[1:]
	}
	return nil
}

// close passes on what is left: a last line without its end, and the tail.
func (f *lineFilter) close() error {
	if len(f.line) > 0 {
		if err := f.pass(f.line); err != nil {
			return err
		}
	}
	for _, line := range f.last {
		if _, err := f.out.Write(line); err != nil {
			return err
		}
	}
	return nil
}
