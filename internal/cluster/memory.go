package cluster

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// leanGC is the heap growth (percent) before a collection. The live heap of a
// whole cluster is a few tens of megabytes, so collecting twice as often as by
// default costs little and keeps the process small.
const leanGC = 50

// trimAfter are the moments after the start when what only the start needed is
// given back: once at once, and once when lazily built things (OpenAPI, caches)
// have had their first use.
var trimAfter = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// keepLean gives memory back that only the start needed.
func keepLean(ctx context.Context, log *slog.Logger) {
	began := time.Now()
	for _, at := range trimAfter {
		select {
		case <-ctx.Done():
			return
		case <-time.After(at - time.Since(began)):
		}
		debug.FreeOSMemory()
		if err := dropProgramPages(); err != nil {
			log.Debug("giving back program pages", "error", err)
		}
	}
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
