package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// bookmarkPeriod is how often, at most, a watch that asked for bookmarks gets
// one: a little less than etcd's own period, so that none of its notes is lost
// to rounding.
const bookmarkPeriod = time.Minute - time.Second

// ownStream lets etcd's client open a stream of its own for these watches.
// Watch caches ask etcd for its progress, and etcd tells every watch on the
// stream, whether it asked or not.
var ownStream = metadata.Pairs("source", "readers")

// uncached serves watches straight from etcd, with the bookmarks that a watch
// cache would send: none to a watch that did not ask for them.
type uncached struct{ storage.Interface }

func (u uncached) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	wanted := opts.Predicate.AllowWatchBookmarks
	opts.ProgressNotify = wanted
	w, err := u.Interface.Watch(metadata.NewOutgoingContext(ctx, ownStream), key, opts)
	if err != nil {
		return nil, err
	}
	return filterBookmarks(w, wanted, time.Now), nil
}

// filterBookmarks passes on everything but bookmarks, and of those, where they
// are wanted, one each period and the one that ends the initial events.
func filterBookmarks(w watch.Interface, wanted bool, now func() time.Time) watch.Interface {
	var mu sync.Mutex
	last := now()
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if e.Type != watch.Bookmark {
			return e, true
		}
		if !wanted {
			return e, false
		}
		mu.Lock()
		defer mu.Unlock()
		if m, err := meta.Accessor(e.Object); err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			last = now()
			return e, true
		}
		if now().Sub(last) < bookmarkPeriod {
			return e, false
		}
		last = now()
		return e, true
	})
}
