// Package memory tunes the garbage collector and returns memory that only the
// start of a program needed to the kernel.
package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Release returns garbage and the program's unused pages to the host. Where
// it fails, more memory stays in use and nothing else.
func Release() error {
	debug.FreeOSMemory()
	return releaseProgramPages()
}

// releaseProgramPages unmaps the read-only pages of this program from the process.
// Initialising a program of this size touches most of it once; the few pages
// that a running cluster uses come back from the page cache when touched.
// Mappings that can be written, or that were before they were sealed (a
// dynamic linker does that with the addresses it fills in), are left alone:
// what was written there is in no file.
func releaseProgramPages() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer f.Close()
	spans, err := programSpans(f, exe)
	if err != nil {
		return err
	}
	for _, s := range spans {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("advising mapping %x-%x: %w", s.from, s.to, errno)
		}
	}
	return nil
}

type span struct{ from, to uintptr }

// programSpans reads smaps and returns the mappings of a file that hold nothing
// but what the file holds.
func programSpans(smaps io.Reader, exe string) ([]span, error) {
	var spans []span
	var now *span // of the mapping whose details follow
	sc := bufio.NewScanner(smaps)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		switch {
		case len(fields) >= 2 && fields[0] == "Anonymous:":
			if now != nil && fields[1] == "0" {
				spans = append(spans, *now)
			}
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			now = nil
			if len(fields) < 6 || fields[5] != exe || fields[1] != "r-xp" && fields[1] != "r--p" {
				continue
			}
			now = &span{}
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &now.from, &now.to); err != nil {
				return nil, fmt.Errorf("reading mapping %q: %w", fields[0], err)
			}
		}
	}
	return spans, sc.Err()
}
