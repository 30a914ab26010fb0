package launch

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/berth-dev/berth/internal/memory"
)

// syncedGC is the heap growth (percent) before a collection once the proxy is
// synced: little is allocated from there on, so that collections are rare.
const syncedGC = 20

// trimAgain is when, after the first sync, what its aftermath needed is
// given back too.
const trimAgain = 5 * time.Second

// releaseMemory gives memory back once the proxy is synced.
func releaseMemory(ctx context.Context, synced <-chan struct{}, log *slog.Logger) {
	select {
	case <-synced:
	case <-ctx.Done():
		return
	}
	debug.SetGCPercent(syncedGC)
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
