package pod

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// room removes what one part of the agent has left of pods that are not known.
type room func(ctx context.Context, known func(types.UID) bool) error

// ClearOrphans removes, once told is closed because every source has told its
// pods, what each room has left of pods that no source has. Pods that left a
// directory or something in the runtime are the manager's own to clear.
func (m *Manager) ClearOrphans(ctx context.Context, statusReported <-chan struct{}, rooms ...room) error {
	select {
	case <-ctx.Done():
		return nil
	case <-statusReported:
	}
	for pause := time.Second; ; pause = min(2*pause, 5*time.Minute) {
		var errs []error
		for _, clear := range rooms {
			errs = append(errs, clear(ctx, m.Has))
		}
		err := errors.Join(errs...)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		m.cfg.Log.Warn("clearing what is left of former pods", "err", err, "again", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
