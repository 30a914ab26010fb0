// Package shell is the thin part that all workload controllers share: a keyed
// queue with workers and back-off, caches with owner indexes, a memory of
// writes the caches do not show yet, and events. It decides nothing.
package shell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/journal"
)

// Env is what a controller works with. All fields are set.
type Env struct {
	// Name is the controller's name, as in metrics, logs and --controllers.
	Name      string
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Metrics   *Metrics
	Journal   journal.Sink
	// Broadcaster sends events; use Events to get a recorder for a component.
	Broadcaster record.EventBroadcaster
}

// Metrics counts what controllers do.
type Metrics struct {
	syncs    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the controllers' metrics; a nil registerer keeps them
// private.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_workload_syncs_total",
			Help: "Objects looked at by each workload controller, by result (ok, retry).",
		}, []string{"controller", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_workload_sync_duration_seconds",
			Help:    "Time one look at one object took, by controller.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"controller"}),
	}
	m.syncs, m.duration = Registered(reg, m.syncs), Registered(reg, m.duration)
	return m
}

// Registered registers a collector and returns it, or the equal one that an
// earlier run in this process (before leadership was lost, say) registered.
func Registered[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	var twice prometheus.AlreadyRegisteredError
	if errors.As(err, &twice) {
		if old, ok := twice.ExistingCollector.(C); ok {
			return old
		}
	}
	return c
}

// Named returns the environment for one controller.
func (e Env) Named(name string) Env {
	e.Name = name
	e.Log = e.Log.With("controller", name)
	return e
}

// Events returns a recorder whose events carry the component's name.
func (e Env) Events(component string) record.EventRecorder {
	return e.Broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: component})
}

// StartEvents makes a broadcaster that writes events through the client until
// the context ends.
func StartEvents(ctx context.Context, client kubernetes.Interface) record.EventBroadcaster {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return b
}

// Note writes one decision to the journal.
func (e Env) Note(kind string, obj metav1.Object, decision string, because ...journal.Fact) {
	e.Journal.Append(journal.Record{
		Time: time.Now(), Part: e.Name, Decision: decision, Because: because,
		Object: journal.Ref{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: string(obj.GetUID())},
	})
}

// Synced starts the informers asked for so far and waits until the given
// handlers have seen everything that existed. It fails only when the context
// ends first.
func (e Env) Synced(ctx context.Context, handlers ...cache.DoneChecker) error {
	e.Informers.StartWithContext(ctx)
	for _, h := range handlers {
		select {
		case <-h.Done():
		case <-ctx.Done():
			return fmt.Errorf("%s: waiting for caches: %w", e.Name, context.Cause(ctx))
		}
	}
	return nil
}

// On calls f for every add, update and delete of an informer's objects, with
// the object (the last one known, for a delete). It returns a checker that is
// done once f was called for all that existed.
func On[T runtime.Object](inf cache.SharedIndexInformer, f func(old, obj T, gone bool)) (cache.DoneChecker, error) {
	var none T
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
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
	if err != nil {
		return nil, fmt.Errorf("adding an event handler: %w", err)
	}
	return reg.HasSyncedChecker(), nil
}

// Key is an object's namespace/name, or name when it has no namespace.
func Key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// Split undoes Key.
func Split(key string) (namespace, name string) {
	ns, n, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return "", key
	}
	return ns, n
}
