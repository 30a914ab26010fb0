package kube

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Events makes recorders, by component, that write events until ctx ends. What
// is recorded later is dropped without a word: who ends tells of it, and nobody
// is there to write it down.
func Events(ctx context.Context, client kubernetes.Interface) func(component string) record.EventRecorder {
	return NewRecorders(ctx).As(client)
}

// Recorders makes recorders that share one queue of events and one correlator,
// and each write with the client of the part that records.
type Recorders struct {
	gate
	b record.EventBroadcaster
	// sinks are by component; an event names the one it comes from.
	sinks sync.Map
}

// NewRecorders returns recorders that write until ctx ends.
func NewRecorders(ctx context.Context) *Recorders {
	r := &Recorders{b: record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))}
	r.b.StartRecordingToSink(r)
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.shut = true
		r.b.Shutdown()
	})
	return r
}

// As makes recorders, by component, whose events are written with a client. A
// component is one client's: the last one asked for.
func (r *Recorders) As(client kubernetes.Interface) func(component string) record.EventRecorder {
	return func(component string) record.EventRecorder {
		r.sinks.Store(component, &typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
		return recorder{&r.gate, r.b.NewRecorder(scheme.Scheme, v1.EventSource{Component: component})}
	}
}

func (r *Recorders) sink(e *v1.Event) (record.EventSink, error) {
	if sink, ok := r.sinks.Load(e.Source.Component); ok {
		return sink.(record.EventSink), nil
	}
	return nil, fmt.Errorf("recording an event of component %q: nobody asked for its recorder", e.Source.Component)
}

// Create is part of record.EventSink, as are Update and Patch.
func (r *Recorders) Create(e *v1.Event) (*v1.Event, error) {
	to, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return to.Create(e)
}

// Update replaces an event.
func (r *Recorders) Update(e *v1.Event) (*v1.Event, error) {
	to, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return to.Update(e)
}

// Patch changes the event that was written before.
func (r *Recorders) Patch(old *v1.Event, body []byte) (*v1.Event, error) {
	to, err := r.sink(old)
	if err != nil {
		return nil, err
	}
	return to.Patch(old, body)
}

// gate lets events through until it is shut. Recording does not block, so
// neither does shutting.
type gate struct {
	mu   sync.RWMutex
	shut bool
}

func (g *gate) pass(record func()) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.shut {
		record()
	}
}

type recorder struct {
	gate *gate
	to   record.EventRecorder
}

func (r recorder) Event(about runtime.Object, kind, reason, message string) {
	r.gate.pass(func() { r.to.Event(about, kind, reason, message) })
}

func (r recorder) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	r.gate.pass(func() { r.to.Eventf(about, kind, reason, format, args...) })
}

func (r recorder) AnnotatedEventf(about runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	r.gate.pass(func() { r.to.AnnotatedEventf(about, annotations, kind, reason, format, args...) })
}
