package volume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
)

// runKind decides how a kind is watched and, when one watch may serve all,
// runs that watch until the node stops.
func (o *objects) runKind(kd kind, sh *sharing) {
	for attempt := 0; ; attempt++ {
		all, err := o.mayWatchAll(o.ctx, kd)
		// A server that cannot review access is asked per object.
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			sh.all = all
			break
		}
		o.log.Debug("asking what may be watched", "kind", kd, "err", err)
		o.undecided(kd, sh, fmt.Errorf("asking the API server what may be watched: %w", err))
		if !o.pause(o.ctx, attempt) {
			return
		}
	}
	o.log.Debug("watching", "kind", kd, "one watch for all", sh.all)
	close(sh.decided)
	if !sh.all {
		return
	}
	attempt := 0
	for o.ctx.Err() == nil {
		started, err := o.watchKind(kd)
		if started {
			attempt = 0
		}
		if err != nil {
			o.log.Debug("watch ended", "kind", kd, "err", err)
		}
		if !o.pause(o.ctx, attempt) {
			return
		}
		attempt++
	}
}

// watchKind runs one shared watch. It starts at the kind's present version
// without transferring the kind, and then reads what is referenced, so that
// nothing that happened while no watch ran is missed.
func (o *objects) watchKind(kd kind) (started bool, err error) {
	ctx, cancel := context.WithCancel(o.ctx)
	defer cancel()
	version, _, err := o.list(ctx, key{kind: kd}, 1)
	if err != nil {
		return false, err
	}
	w, err := o.watch(ctx, key{kind: kd}, version)
	if err != nil {
		return false, err
	}
	defer w.Stop()
	o.wg.Go(func() { o.rereadAll(ctx, kd) })
	return true, o.consume(ctx, w, func(kd2 key) *entry {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.entries[kd2]
	}, kd)
}

// rereadAll reads every referenced object of a kind once.
func (o *objects) rereadAll(ctx context.Context, kd kind) {
	o.mu.Lock()
	list := map[key]*entry{}
	for k, e := range o.entries {
		// Entries without an answer are being read by their own follower.
		if k.kind == kd && e.done {
			list[k] = e
		}
	}
	o.mu.Unlock()
	for k, e := range list {
		if ctx.Err() != nil {
			return
		}
		o.readInto(ctx, k, e)
	}
}

// readUntil reads an object until there is an answer. Errors are recorded
// too, so that who waits can report them, but reading goes on.
func (o *objects) readUntil(ctx context.Context, k key, e *entry) {
	for attempt := 0; ; attempt++ {
		err := o.readInto(ctx, k, e)
		if err == nil || apierrors.IsNotFound(err) || !o.pause(ctx, attempt) {
			return
		}
	}
}

// readInto reads an object once and records the answer unless an event told
// more in the meantime.
func (o *objects) readInto(ctx context.Context, k key, e *entry) error {
	o.mu.Lock()
	before := e.touched
	o.mu.Unlock()
	value, err := o.read(ctx, k)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	o.mu.Lock()
	overtaken := value == nil && e.touched != before
	o.mu.Unlock()
	if !overtaken {
		o.set(k, e, value, err)
	}
	return err
}

// runOne follows a single object with a watch of its own.
func (o *objects) runOne(ctx context.Context, k key, e *entry) {
	attempt := 0
	for ctx.Err() == nil {
		started, final, err := o.watchOne(ctx, k, e)
		if final {
			return
		}
		if started {
			attempt = 0
		}
		if err != nil {
			o.set(k, e, nil, err)
		}
		if !o.pause(ctx, attempt) {
			return
		}
		attempt++
	}
}

// watchOne lists and watches one name. final says that the object can never
// change, so that nothing needs to be watched.
func (o *objects) watchOne(ctx context.Context, k key, e *entry) (started, final bool, err error) {
	version, value, err := o.list(ctx, k, 0)
	if err != nil {
		return false, false, err
	}
	if value == nil {
		o.set(k, e, nil, notFound(k))
	} else {
		o.set(k, e, value, nil)
		if value.immutable {
			return true, true, nil
		}
	}
	w, err := o.watch(ctx, k, version)
	if err != nil {
		return false, false, err
	}
	defer w.Stop()
	return true, false, o.consume(ctx, w, func(key) *entry { return e }, k.kind)
}

// consume feeds events until the watch ends.
func (o *objects) consume(ctx context.Context, w watch.Interface, find func(key) *entry, kd kind) error {
	for {
		ev, ok := next(ctx, w)
		if !ok {
			return errors.New("the watch ended")
		}
		switch ev.Type {
		case watch.Bookmark:
			continue
		case watch.Error:
			return apierrors.FromObject(ev.Object)
		}
		meta, ok := ev.Object.(metav1.Object)
		if !ok {
			return fmt.Errorf("watching %s: unexpected %T", kd, ev.Object)
		}
		k := key{kd, meta.GetNamespace(), meta.GetName()}
		e := find(k)
		if e == nil {
			continue
		}
		if ev.Type == watch.Deleted {
			// A delete carries the version of the deletion; an older one than
			// what is known belongs to a predecessor of the same name.
			if !stale(e.peek(o), contentOf(ev.Object)) {
				o.set(k, e, nil, notFound(k))
			}
			continue
		}
		o.set(k, e, contentOf(ev.Object), nil)
	}
}

// next is the next event of a watch, until it or ctx ends.
func next(ctx context.Context, w watch.Interface) (watch.Event, bool) {
	select {
	case ev, ok := <-w.ResultChan():
		return ev, ok
	case <-ctx.Done():
		return watch.Event{}, false
	}
}

func (e *entry) peek(o *objects) *content {
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.value
}

// stale says whether next is older than what is known.
func stale(known, next *content) bool {
	if known == nil || next == nil {
		return false
	}
	c, err := resourceversion.CompareResourceVersion(next.version, known.version)
	return err == nil && c < 0
}

// list reads the version to watch from, and the object when k names one.
func (o *objects) list(ctx context.Context, k key, limit int64) (string, *content, error) {
	opts := metav1.ListOptions{Limit: limit}
	if k.name != "" {
		opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", k.name).String()
	}
	switch k.kind {
	case configMaps:
		l, err := o.client.CoreV1().ConfigMaps(k.namespace).List(ctx, opts)
		if err != nil {
			return "", nil, err
		}
		for i := range l.Items {
			if l.Items[i].Name == k.name {
				return l.ResourceVersion, contentOf(&l.Items[i]), nil
			}
		}
		return l.ResourceVersion, nil, nil
	case secrets:
		l, err := o.client.CoreV1().Secrets(k.namespace).List(ctx, opts)
		if err != nil {
			return "", nil, err
		}
		for i := range l.Items {
			if l.Items[i].Name == k.name {
				return l.ResourceVersion, contentOf(&l.Items[i]), nil
			}
		}
		return l.ResourceVersion, nil, nil
	}
	return "", nil, fmt.Errorf("listing %s: not a kind that pods refer to", k.kind)
}

func (o *objects) watch(ctx context.Context, k key, version string) (watch.Interface, error) {
	// Spread reconnects: watches opened together must not end together.
	seconds := int64(300 + rand.IntN(300))
	opts := metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}
	if k.name != "" {
		opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", k.name).String()
	}
	if k.kind == configMaps {
		return o.client.CoreV1().ConfigMaps(k.namespace).Watch(ctx, opts)
	}
	return o.client.CoreV1().Secrets(k.namespace).Watch(ctx, opts)
}

// pause waits before the next attempt and says whether to go on.
func (o *objects) pause(ctx context.Context, attempt int) bool {
	t := o.clock.NewTimer(objectRetry.Jittered(attempt + 1))
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}
