// Package controller is the kit that every controller is made of: what it
// declares and is given, a keyed queue with back-off, event handlers, and one
// way to tell what it did. It decides nothing.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/journal"
)

// Env is what a controller works with. Client, Informers and Log are required;
// Use fills in the rest.
type Env struct {
	// Name is the controller's name, as in metrics, logs and --controllers.
	Name string
	// Client acts as the controller: writes and live reads go through it, and
	// the API server checks them against the rights of its account.
	Client kubernetes.Interface
	// Metadata is as Client, for controllers of objects of every kind; nil for
	// the others.
	Metadata metadata.Interface
	// Informers are shared with the other controllers of the process and read
	// as the process, not as the controller.
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	// Reader reads as the process, for informers that one controller alone
	// needs and that its account may not make.
	Reader kubernetes.Interface
	// Recorders write events as the controller; nil records nothing.
	Recorders Recorders
	// Journal and Registerer may be nil.
	Journal    journal.Sink
	Registerer prometheus.Registerer
	// Metrics counts syncs; may be nil.
	Metrics *Metrics
}

// Recorders makes recorders by component, whose events a client writes;
// *kube.Recorders is one.
type Recorders interface {
	As(client kubernetes.Interface) func(component string) record.EventRecorder
}

// RecorderFunc is Recorders that write in their own way, for all clients alike.
type RecorderFunc func(component string) record.EventRecorder

// As is part of Recorders.
func (f RecorderFunc) As(kubernetes.Interface) func(component string) record.EventRecorder { return f }

// Check fails unless what every controller needs is there, and fills in what
// may be left out.
func (e *Env) Check() error {
	if e.Client == nil || e.Informers == nil || e.Log == nil {
		return fmt.Errorf("starting controller %q: Client, Informers and Log must be set", e.Name)
	}
	if e.Journal == nil {
		e.Journal = journal.Discard
	}
	if e.Reader == nil {
		e.Reader = e.Client
	}
	return nil
}

// Recorder returns a recorder whose events carry the component's name.
func (e Env) Recorder(component string) record.EventRecorder {
	if e.Recorders == nil {
		return silent{}
	}
	return e.Recorders.As(e.Client)(component)
}

// silent records nothing.
type silent struct{}

func (silent) Event(runtime.Object, string, string, string)                                      {}
func (silent) Eventf(runtime.Object, string, string, string, ...any)                             {}
func (silent) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {}

// Synced starts the informers asked for so far and waits until the given
// handlers have seen everything that existed. It fails only when the context
// ends first.
func (e Env) Synced(ctx context.Context, handlers ...cache.DoneChecker) error {
	e.Informers.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", handlers...) {
		return fmt.Errorf("%s: waiting for caches: %w", e.Name, context.Cause(ctx))
	}
	return nil
}

// On calls f for every add, update and delete of an informer's objects, with
// the object (the last one known, for a delete), until the context ends. It
// returns a checker that is done once f was called for all that existed.
func On[T runtime.Object](ctx context.Context, inf cache.SharedIndexInformer, f func(old, obj T, gone bool)) (cache.DoneChecker, error) {
	var none T
	return Handle(ctx, inf, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(none, o.(T), false) },
		UpdateFunc: func(o, n any) { f(o.(T), n.(T), false) },
		DeleteFunc: func(o any) {
			if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if obj, ok := o.(T); ok {
				f(obj, obj, true)
			}
		},
	})
}

// Handle is On for a handler of client-go's kind.
func Handle(ctx context.Context, inf cache.SharedIndexInformer, h cache.ResourceEventHandler) (cache.DoneChecker, error) {
	reg, err := inf.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("adding an event handler: %w", err)
	}
	// Informers outlive the controller where it ends with leadership.
	context.AfterFunc(ctx, func() { _ = inf.RemoveEventHandler(reg) })
	return reg.HasSyncedChecker(), nil
}

// Key is an object's namespace/name, or name when it has no namespace.
func Key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// Existing makes a Sync from a function that takes the object: it
// looks a key's object up in the cache. An object that is gone needs no work.
// The object is the cache's and must not be changed.
func Existing[T any](cached cache.KeyGetter, sync func(context.Context, T) (time.Duration, error)) Sync {
	return func(ctx context.Context, key string) (time.Duration, error) {
		obj, exists, err := cached.GetByKey(key)
		if err != nil || !exists {
			return 0, err
		}
		return sync(ctx, obj.(T))
	}
}

// Split undoes Key.
func Split(key string) (namespace, name string) {
	ns, n, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return "", key
	}
	return ns, n
}
