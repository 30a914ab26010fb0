package memory

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// GCPercent is the heap growth in percent before a collection. The live heap of
// every role is a few tens of megabytes, so collecting twice as often as by
// default costs little and keeps the process small.
const GCPercent = 50

// StartGCPercent applies while a cluster starts. Nearly all that a start
// allocates lives on, so collecting at GCPercent would take a third of its
// processor time; what the heap grows beyond that (some 30 MiB) is released
// right after.
const StartGCPercent = 400

// releaseAfter are the moments after the start when memory that only the start
// needed is released: once early, and again when lazily built things (OpenAPI,
// caches) have had their first use.
var releaseAfter = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// releaseEvery is how often memory is released later: what a burst of pods
// touched would stay in the process for good. One round costs a collection and
// a few thousand page faults, together some 20 ms of one core.
const releaseEvery = 5 * time.Minute

// ReleasePeriodically sets the collector to GCPercent and releases memory that
// only the start or a burst needed, until ctx ends.
func ReleasePeriodically(ctx context.Context, log *slog.Logger) {
	debug.SetGCPercent(GCPercent)
	began := time.Now()
	for n := 0; ; n++ {
		wait := releaseEvery
		if n < len(releaseAfter) {
			wait = releaseAfter[n] - time.Since(began)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := Release(); err != nil {
			log.Debug("releasing pages of the program file", "err", err)
		}
	}
}
