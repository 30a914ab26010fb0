package pod

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/controller"
)

// room removes what one part of the agent has left of pods that are not known.
type room func(ctx context.Context, known func(types.UID) bool) error

// orphanRetry are the pauses before what could not be removed is removed again.
var orphanRetry = controller.Backoff{First: time.Second, Most: 5 * time.Minute}

// ClearOrphans removes, once statusReported is closed because every source has
// delivered its pods, what each room has left of pods that no source has. Pods
// that left a directory or something in the runtime are the manager's own to
// clear.
func (m *Manager) ClearOrphans(ctx context.Context, statusReported <-chan struct{}, rooms ...room) error {
	select {
	case <-ctx.Done():
		return nil
	case <-statusReported:
	}
	retry := controller.Retry{Backoff: orphanRetry}
	for {
		var errs []error
		for _, clear := range rooms {
			errs = append(errs, clear(ctx, m.Has))
		}
		err := errors.Join(errs...)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		pause := retry.Failed()
		m.cfg.Log.Warn("clearing what is left of former pods", "err", err, "again", pause)
		controller.Sleep(ctx, pause)
	}
}
