package faulttest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcoordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// client is the API as one instance of the controllers reaches it. What it does not
// serve is not called: it would panic.
type client struct {
	kubernetes.Interface
	instance *instance
}

func (c client) IsWatchListSemanticsUnSupported() bool { return true }
func (c client) CoreV1() typedcore.CoreV1Interface     { return core{instance: c.instance} }
func (c client) CoordinationV1() typedcoordination.CoordinationV1Interface {
	return coord{instance: c.instance}
}

type core struct {
	typedcore.CoreV1Interface
	instance *instance
}

func (c core) Nodes() typedcore.NodeInterface     { return nodeAPI{instance: c.instance} }
func (c core) Pods(string) typedcore.PodInterface { return podAPI{instance: c.instance} }

type coord struct {
	typedcoordination.CoordinationV1Interface
	instance *instance
}

func (c coord) Leases(string) typedcoordination.LeaseInterface { return leaseAPI{instance: c.instance} }

var errAway = errors.New("connection refused")

// call carries a request to the API and its answer back. Each may be late or
// lost, and the instance may end before, between and after.
func (l *instance) call(ctx context.Context, write bool, do func() error) error {
	s := l.w.store
	if err := l.travel(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	l.w.ref.called(l)
	down, early, lateLoss := s.down, s.lossy && s.r.IntN(8) == 0, s.lossy && s.r.IntN(8) == 0
	dies := write && !l.w.calm && s.r.IntN(150) == 0
	s.mu.Unlock()
	switch {
	case down:
		return errAway
	case early:
		return apierrors.NewInternalError(errors.New("try again"))
	}
	err := do()
	if dies {
		l.crash()
		<-ctx.Done()
		return ctx.Err()
	}
	if back := l.travel(ctx); back != nil {
		return back
	}
	if lateLoss && err == nil {
		return apierrors.NewTimeoutError("the answer was lost", 1)
	}
	return err
}

func (l *instance) travel(ctx context.Context) error {
	l.w.store.mu.Lock()
	d := l.w.store.latency() / 2
	l.w.store.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func get[T object](ctx context.Context, l *instance, k kind, name string) (out T, err error) {
	err = l.call(ctx, false, func() error {
		o := l.w.store.get(k, name)
		if o == nil {
			return apierrors.NewNotFound(k.resource(), name)
		}
		out = o.DeepCopyObject().(T)
		return nil
	})
	return out, err
}

func list(ctx context.Context, l *instance, k kind, add func(object)) (version string, err error) {
	err = l.call(ctx, false, func() error {
		var all []object
		all, version = l.w.store.list(k)
		for _, o := range all {
			add(o.DeepCopyObject().(object))
		}
		return nil
	})
	return version, err
}

func (l *instance) watch(ctx context.Context, k kind, opts metav1.ListOptions) (w watch.Interface, err error) {
	limit := 5 * time.Minute
	if opts.TimeoutSeconds != nil {
		limit = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	err = l.call(ctx, false, func() error {
		w = l.w.store.watch(k, opts.ResourceVersion, limit)
		return nil
	})
	if err != nil && w != nil {
		w.Stop()
		w = nil
	}
	return w, err
}

func (l *instance) patch(ctx context.Context, k kind, name string, how types.PatchType, body []byte) (out object, err error) {
	body, skip := l.w.bug.patch(k, body)
	if skip {
		return l.w.store.get(k, name), nil
	}
	err = l.call(ctx, true, func() (err error) {
		out, err = l.w.store.patch(k, name, how, body, l)
		return err
	})
	if n, ok := out.(*v1.Node); ok && err == nil {
		l.w.bug.putBack(l, n)
	}
	if l.w.bug.name == "forget failures" && err != nil && l.ctx.Err() == nil {
		if out = l.w.store.get(k, name); out == nil {
			out = k.empty()
		}
		return out, nil
	}
	return out, err
}

type nodeAPI struct {
	typedcore.NodeInterface
	instance *instance
}

func (a nodeAPI) Get(ctx context.Context, name string, _ metav1.GetOptions) (*v1.Node, error) {
	if old := a.instance.w.bug.cached(nodes, name); old != nil {
		return old.(*v1.Node), nil
	}
	n, err := get[*v1.Node](ctx, a.instance, nodes, name)
	if err == nil {
		a.instance.w.bug.answered(n)
	}
	return n, err
}

func (a nodeAPI) List(ctx context.Context, _ metav1.ListOptions) (*v1.NodeList, error) {
	out := &v1.NodeList{}
	var err error
	out.ResourceVersion, err = list(ctx, a.instance, nodes, func(o object) {
		n := *o.(*v1.Node)
		a.instance.w.bug.listed(&n)
		out.Items = append(out.Items, n)
	})
	return out, err
}

func (a nodeAPI) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return a.instance.watch(ctx, nodes, opts)
}

func (a nodeAPI) Patch(ctx context.Context, name string, how types.PatchType, body []byte, _ metav1.PatchOptions,
	_ ...string) (*v1.Node, error) {
	o, err := a.instance.patch(ctx, nodes, name, how, body)
	if n, ok := o.(*v1.Node); ok && err == nil {
		n = n.DeepCopy()
		a.instance.w.bug.answered(n)
		return n, nil
	}
	return nil, err
}

type podAPI struct {
	typedcore.PodInterface
	instance *instance
}

func (a podAPI) Get(ctx context.Context, name string, _ metav1.GetOptions) (*v1.Pod, error) {
	p, err := get[*v1.Pod](ctx, a.instance, pods, name)
	if err == nil {
		a.instance.w.bug.pod(p)
	}
	return p, err
}

func (a podAPI) List(ctx context.Context, _ metav1.ListOptions) (*v1.PodList, error) {
	out := &v1.PodList{}
	var err error
	out.ResourceVersion, err = list(ctx, a.instance, pods, func(o object) {
		p := o.(*v1.Pod)
		a.instance.w.bug.pod(p)
		out.Items = append(out.Items, *p)
	})
	return out, err
}

func (a podAPI) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return a.instance.watch(ctx, pods, opts)
}

func (a podAPI) Patch(ctx context.Context, name string, how types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*v1.Pod,
	error) {
	o, err := a.instance.patch(ctx, pods, name, how, body)
	if p, ok := o.(*v1.Pod); ok && err == nil {
		return p.DeepCopy(), nil
	}
	return nil, err
}

func (a podAPI) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	switch a.instance.w.bug.name {
	case "no grace":
		opts.GracePeriodSeconds = new(int64)
	case "forget pods":
		if opts.GracePeriodSeconds == nil {
			a.instance.w.bug.forget(name)
			return nil
		}
	}
	return a.instance.call(ctx, true, func() error { return a.instance.w.store.remove(pods, name, opts, a.instance) })
}

type leaseAPI struct {
	typedcoordination.LeaseInterface
	instance *instance
}

func (a leaseAPI) List(ctx context.Context, _ metav1.ListOptions) (*coordination.LeaseList, error) {
	out := &coordination.LeaseList{}
	var err error
	out.ResourceVersion, err = list(ctx, a.instance, leases, func(o object) {
		l := o.(*coordination.Lease)
		if a.instance.w.bug.name == "forget the past" {
			l.ManagedFields, l.Spec.RenewTime = nil, &metav1.MicroTime{Time: a.instance.began}
		}
		out.Items = append(out.Items, *l)
	})
	return out, err
}

func (a leaseAPI) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return a.instance.watch(ctx, leases, opts)
}
