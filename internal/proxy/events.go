package proxy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	recording "k8s.io/client-go/tools/events"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// events tells users what happened through Events of the API, under the
// names they know from kube-proxy.
type events struct {
	recorder recording.EventRecorder
	node     *corev1.ObjectReference
	stop     func()
}

func newEvents(ctx context.Context, cfg Config) (*events, error) {
	b := recording.NewBroadcaster(&recording.EventSinkImpl{Interface: cfg.Client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("recording events: %w", err)
	}
	return &events{
		recorder: b.NewRecorder(scheme.Scheme, "kube-proxy"),
		// Node events are found by the node's name in place of its UID.
		node: &corev1.ObjectReference{Kind: "Node", Name: cfg.NodeName, UID: types.UID(cfg.NodeName)},
		stop: b.Shutdown,
	}, nil
}

func (e *events) started() {
	e.recorder.Eventf(e.node, nil, corev1.EventTypeNormal, "Starting", "StartKubeProxy", "")
}

// portTaken says that the health check port of a Service cannot be opened.
func (e *events) portTaken(n model.Name, port int32, err error) {
	ref := &corev1.ObjectReference{Kind: "Service", Namespace: n.Namespace, Name: n.Name, UID: types.UID(n.String())}
	e.recorder.Eventf(ref, nil, corev1.EventTypeWarning, "FailedToStartServiceHealthcheck", "Listen",
		"node %s cannot open the health check port %d of the load balancer: %v", e.node.Name, port, err)
}
