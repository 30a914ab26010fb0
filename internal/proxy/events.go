package proxy

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// events tells users what happened through Events of the API.
type events struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
	stop     func()
}

func newEvents(ctx context.Context, cfg Config) *events {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cfg.Client.CoreV1().Events("")})
	return &events{
		recorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kube-proxy", Host: cfg.NodeName}),
		// Node events are found by the node's name in place of its UID.
		node: &corev1.ObjectReference{Kind: "Node", Name: cfg.NodeName, UID: types.UID(cfg.NodeName)},
		stop: b.Shutdown,
	}
}

func (e *events) started() { e.recorder.Event(e.node, corev1.EventTypeNormal, "Starting", "") }

// portTaken says that the health check port of a Service cannot be opened.
func (e *events) portTaken(n model.Name, port int32, err error) {
	ref := &corev1.ObjectReference{Kind: "Service", Namespace: n.Namespace, Name: n.Name, UID: types.UID(n.String())}
	e.recorder.Eventf(ref, corev1.EventTypeWarning, "FailedToStartServiceHealthcheck",
		"node cannot open the health check port %d of the load balancer: %v", port, err)
}
