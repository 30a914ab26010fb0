package launch

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/berth-dev/berth/internal/memory"
)

// leanGC is the heap growth (percent) before a collection once the proxy is
// synced: little is allocated from there on, so that collections are rare.
const leanGC = 20

// trimAgain is when, after the first sync, what its aftermath needed is
// given back too.
const trimAgain = 5 * time.Second

// keepLean gives memory back once the proxy is synced.
func keepLean(ctx context.Context, synced <-chan struct{}, log *slog.Logger) {
	select {
	case <-synced:
	case <-ctx.Done():
		return
	}
	debug.SetGCPercent(leanGC)
	again := time.NewTimer(trimAgain)
	defer again.Stop()
	for {
		if err := memory.Release(); err != nil {
			log.Debug("keeping the program's pages", "err", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}
