package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
)

// Queue holds keys to look at. A key that is in it is looked at once, however
// often it is added, and by one worker at a time.
type Queue[K comparable] = workqueue.TypedRateLimitingInterface[K]

// NewQueue makes a queue in which a key whose work failed waits for first, then
// twice as long each time, at most for last.
func NewQueue[K comparable](name string, first, last time.Duration) Queue[K] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, last), workqueue.TypedRateLimitingQueueConfig[K]{Name: name})
}

// Work looks at the keys of a queue with that many workers until ctx ends, and
// then shuts the queue down and waits for them. A key whose work failed comes
// again later; doing says in the log what was tried. Who lost a race to another
// writer has nothing to complain of.
func Work[K comparable](ctx context.Context, queue Queue[K], workers int, log *slog.Logger, doing string, do func(context.Context, K) error) {
	// No worker ends before the queue does, so this is never taken back too early.
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				key, closed := queue.Get()
				if closed {
					return
				}
				err := do(ctx, key)
				switch {
				case err == nil || ctx.Err() != nil:
					queue.Forget(key)
				default:
					if !apierrors.IsConflict(err) {
						log.Warn(doing, "key", key, "error", err)
					}
					queue.AddRateLimited(key)
				}
				queue.Done(key)
			}
		})
	}
	wg.Wait()
}
