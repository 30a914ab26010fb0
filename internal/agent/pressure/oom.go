package pressure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// victim is a process that the kernel ended because the host, not one
// cgroup, was out of memory.
type victim struct {
	pid  int
	name string
}

// outOfMemory is what the kernel says of such a victim; of one that a cgroup's
// limit cost its life it says "Memory cgroup out of memory". Old kernels say
// "Kill process".
var outOfMemory = regexp.MustCompile(`^Out of memory(?: \([a-z_]+\))?: Kill(?:ed)? process (\d+) \((.*)\) (?:total-vm:|score )`)

// systemVictim reads one record of the kernel's log: numbers and commas, a
// semicolon, the message. Anything else, such as what programs write into that
// log, names no victim.
func systemVictim(record []byte) (victim, bool) {
	header, message, ok := bytes.Cut(record, []byte{';'})
	if !ok {
		return victim{}, false
	}
	priority, _, _ := bytes.Cut(header, []byte{','})
	// The kernel's own records have facility 0, so their number is the level.
	if n, err := strconv.Atoi(string(priority)); err != nil || n < 0 || n > 7 {
		return victim{}, false
	}
	m := outOfMemory.FindSubmatch(message)
	if m == nil {
		return victim{}, false
	}
	pid, err := strconv.Atoi(string(m[1]))
	return victim{pid: pid, name: string(m[2])}, err == nil
}

// watchKernelLog calls found for each victim from now on. It returns when the
// context ends, or with an error where the log cannot be read.
func watchKernelLog(ctx context.Context, path string, found func(victim)) error {
	// Without blocking the read can be ended; see os.File.Close.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { file.Close() })
	defer func() {
		if stop() {
			file.Close()
		}
	}()
	if _, err := file.Seek(0, io.SeekEnd); err != nil && !errors.Is(err, unix.ESPIPE) {
		return fmt.Errorf("passing over the records of %s: %w", path, err)
	}
	buf := make([]byte, 8192) // the kernel's own bound of a record
	for {
		n, err := file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EPIPE):
			continue // records were overwritten before they were read
		case err != nil:
			return fmt.Errorf("reading the kernel's log: %w", err)
		}
		for line := range bytes.Lines(buf[:n]) {
			if v, ok := systemVictim(bytes.TrimRight(line, "\n")); ok {
				found(v)
			}
		}
	}
}

// reportVictim says that the host ran out of memory.
func (g *guard) reportVictim(v victim) {
	g.cfg.Log.Warn("the kernel ran out of memory and ended a process", "process", v.name, "pid", v.pid)
	g.note(journal.Ref{Kind: "Node", Name: g.cfg.NodeName}, "saw the kernel end a process for lack of memory",
		[]journal.Fact{{Name: "process", Value: v.name}, {Name: "pid", Value: strconv.Itoa(v.pid)}})
	g.cfg.Events.Eventf(nodeRef(g.cfg.NodeName), v1.EventTypeWarning, "SystemOOM", "System OOM encountered, victim process: %s, pid: %d",
		v.name, v.pid)
}
