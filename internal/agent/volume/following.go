package volume

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// following keeps one watch of a kind open while any pod needs it.
type following struct {
	// watch runs one watch until it ends; started says that it began.
	watch func(ctx context.Context) (started bool, err error)
	pause func(ctx context.Context, attempt int) bool

	ctx context.Context
	wg  *sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]bool
	stop context.CancelFunc
}

// follow keeps the watch open for a pod until forget.
func (f *following) follow(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		f.pods = map[types.UID]bool{}
	}
	f.pods[uid] = true
	if f.stop != nil || f.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(f.ctx)
	f.stop = stop
	f.wg.Go(func() { f.run(ctx) })
}

func (f *following) forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, uid)
	if len(f.pods) == 0 && f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// users are the pods that need the watch.
func (f *following) users() []types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pods []types.UID
	for uid := range f.pods {
		pods = append(pods, uid)
	}
	return pods
}

func (f *following) run(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		if started, err := f.watch(ctx); started {
			attempt = 0
		} else if apierrors.IsNotFound(err) {
			attempt = 7 // not served: ask rarely
		}
		if !f.pause(ctx, attempt) {
			return
		}
	}
}
