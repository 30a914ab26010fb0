package lean

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// GC is the heap growth (percent) before a collection. The live heap of every
// role is a few tens of megabytes, so collecting twice as often as by default
// costs little and keeps the process small.
const GC = 50

// trimAfter are the moments after the start when what only the start needed is
// given back: once at once, and once when lazily built things (OpenAPI, caches)
// have had their first use.
var trimAfter = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// Keep makes the process collect earlier, gives memory back that only the
// start needed, and lets the heap grow more while there is much to do. It
// returns when ctx ends.
func Keep(ctx context.Context, log *slog.Logger) {
	debug.SetGCPercent(GC)
	began := time.Now()
	for _, at := range trimAfter {
		select {
		case <-ctx.Done():
			return
		case <-time.After(at - time.Since(began)):
		}
		if err := Trim(); err != nil {
			log.Debug("giving back program pages", "error", err)
		}
	}
	pace(ctx)
}
