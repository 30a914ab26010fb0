package cluster

import (
	"context"
	"log/slog"
	"time"

	"github.com/berth-dev/berth/internal/lean"
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
		if err := lean.Trim(); err != nil {
			log.Debug("giving back program pages", "error", err)
		}
	}
}
