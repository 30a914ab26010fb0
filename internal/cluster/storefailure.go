package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/internal/control/store"
)

// roomCheck is how often a cluster whose store failed looks whether the disk
// takes writes again; the kernel tells no one when there is room.
const roomCheck = 2 * time.Second

// outliveStore is what follows the end of the store under a running cluster.
// The disk filled or failed: agent, proxy and DNS go on with what they know,
// pods are evicted under disk pressure as ever, and the API answers no writes.
// When the disk takes writes again, the process begins again in its own place,
// which disturbs no container.
func (u *up) outliveStore(ctx context.Context) error {
	failed := u.store.Failure()
	if failed == nil {
		return errors.New("the store stopped: see logs/etcd.log in the data directory")
	}
	u.log.Error("the store failed; agent, proxy and DNS go on, and the server comes back when the disk takes writes", "err", failed)
	if u.Restart == nil {
		return fmt.Errorf("the store failed: %w", failed)
	}
	look := time.NewTicker(roomCheck)
	defer look.Stop()
	for {
		select {
		case <-u.parts.Context().Done():
			return u.parts.Wait()
		case <-look.C:
		}
		if err := store.CanStart(u.Path("etcd")); err != nil {
			u.log.Debug("the store cannot start yet", "err", err)
			continue
		}
		u.log.Info("the disk takes writes again; starting again")
		return u.Restart()
	}
}
