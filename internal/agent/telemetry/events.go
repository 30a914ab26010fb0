package telemetry

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/pod"
)

// Events reports what happens to this node and its pods.
type Events struct {
	record.EventRecorder
	NodeName string
}

// NewEvents makes events that go to the API without ever making a pod wait;
// without a client they go nowhere.
func NewEvents(client kubernetes.Interface, k *kubeletv1beta1.KubeletConfiguration, nodeName string) (events Events, stop func()) {
	if client == nil {
		return Events{&record.FakeRecorder{}, nodeName}, func() {}
	}
	// What it remembers in order to count an event that comes again instead of
	// writing another: a few for each pod that fits. The
	// default of 4096 is memory that pods which come and go fill in an hour.
	b := record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: max(512, 4*int(k.MaxPods))}))
	b.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return Events{b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: nodeName}), nodeName}, b.Shutdown
}

// Pod reports an event about a pod.
func (e Events) Pod(p *v1.Pod, kind, reason, message string) {
	e.Container(p, "", kind, reason, message)
}

// Container reports an event about one of a pod's containers.
func (e Events) Container(p *v1.Pod, name, kind, reason, message string) {
	e.Event(pod.Reference(p, name), kind, reason, message)
}

// Warn reports a warning about one of a pod's containers.
func (e Events) Warn(p *v1.Pod, name, reason, message string) {
	e.Container(p, name, v1.EventTypeWarning, reason, message)
}

// Node reports an event about the Node.
func (e Events) Node(kind, reason, message string) {
	e.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: e.NodeName, UID: types.UID(e.NodeName)}, kind, reason, message)
}
