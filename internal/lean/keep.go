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

// trimEvery is how often memory is given back later: what a burst of pods
// touched would stay in the process for good. One round costs a collection and
// a few thousand page faults, together some 20 ms of one core.
const trimEvery = 5 * time.Minute

// Keep makes the process collect earlier, and gives memory back that only the
// start or a burst needed, until ctx ends.
func Keep(ctx context.Context, log *slog.Logger) {
	debug.SetGCPercent(GC)
	began := time.Now()
	for n := 0; ; n++ {
		wait := trimEvery
		if n < len(trimAfter) {
			wait = trimAfter[n] - time.Since(began)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := Trim(); err != nil {
			log.Debug("giving back program pages", "error", err)
		}
	}
}
