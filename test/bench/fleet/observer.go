package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// observer hears every renewal as the node health controller does: by watch,
// and by its own clock.
type observer struct {
	duration time.Duration

	mu       sync.Mutex
	heard    map[string]time.Time
	since    time.Time // zero: not counting
	renewals int
	lapses   int
	longest  time.Duration
}

func newObserver(duration time.Duration) *observer {
	return &observer{duration: duration, heard: map[string]time.Time{}}
}

// watch follows the leases until ctx ends. A watch that ends before is an
// error, since what was missed cannot be told from silence.
func (o *observer) watch(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	day := int64(24 * 3600)
	w, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{TimeoutSeconds: &day})
	if err != nil {
		return fmt.Errorf("watching leases: %w", err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		lease, ok := e.Object.(*coordination.Lease)
		if !ok && ctx.Err() != nil {
			return nil // a watch that is ended by this side may end with a Status
		}
		if !ok {
			return fmt.Errorf("watching leases: %w", apierrors.FromObject(e.Object))
		}
		o.hear(lease.Name, e.Type != watch.Deleted, time.Now())
	}
	if ctx.Err() == nil {
		return fmt.Errorf("watching leases: the watch ended")
	}
	return nil
}

func (o *observer) hear(name string, there bool, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !there {
		delete(o.heard, name)
		return
	}
	if last, known := o.heard[name]; known && !o.since.IsZero() {
		o.renewals++
		o.silent(now.Sub(last))
	}
	o.heard[name] = now
}

// silent counts an interval in which a lease was not renewed.
func (o *observer) silent(d time.Duration) {
	o.longest = max(o.longest, d)
	if d > o.duration {
		o.lapses++
	}
}

// begin starts to count.
func (o *observer) begin(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = now
}

// end says what was counted. A lease that is silent now counts as well.
func (o *observer) end(now time.Time) (leases, renewals, lapses int, longest time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, last := range o.heard {
		o.silent(now.Sub(last))
	}
	return len(o.heard), o.renewals, o.lapses, o.longest
}
