package kube

import (
	"context"
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
	b := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
	g := &gate{}
	context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.shut = true
		b.Shutdown()
	})
	return func(component string) record.EventRecorder {
		return recorder{g, b.NewRecorder(scheme.Scheme, v1.EventSource{Component: component})}
	}
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
