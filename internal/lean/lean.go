// Package lean gives memory back that only the start of a program needed.
package lean

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Trim returns garbage and the program's unused pages to the machine. Where
// it fails, more memory stays in use and nothing else.
func Trim() error {
	debug.FreeOSMemory()
	return dropProgramPages()
}

// dropProgramPages unmaps the read-only pages of this program from the process.
// Initialising a program of this size touches most of it once; the few pages
// that a running cluster uses come back from the page cache when touched.
// Writable mappings are left alone: those hold state.
func dropProgramPages() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 6 || fields[5] != exe || fields[1] != "r-xp" && fields[1] != "r--p" {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			return fmt.Errorf("reading mapping %q: %w", fields[0], err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("advising mapping %q: %w", fields[0], errno)
		}
	}
	return sc.Err()
}
