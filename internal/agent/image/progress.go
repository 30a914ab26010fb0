package image

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Who waits for a long pull hears of it after half a minute, and then ever more
// rarely: the runtime interface does not tell how far a pull is, but that it
// goes on is worth knowing.
const (
	firstProgress = 30 * time.Second
	leastProgress = 5 * time.Minute
)

// awaited tells the pod's user, until stop is called, that its image is still
// being pulled and for how long.
func (p *Puller) awaited(ctx context.Context, r request, since time.Time) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pause := firstProgress
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			p.event(r, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Still pulling image %q after %v", r.Image,
				p.cfg.Clock.Since(since).Round(time.Second)))
			pause = min(2*pause, leastProgress)
			timer.Reset(pause)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
