package kube

import (
	"bytes"
	"context"
	"testing"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// What is recorded after the end is dropped, and nobody complains.
func TestEventsAfterTheEnd(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var said bytes.Buffer
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(),
		textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&said)))))
	client := fake.NewClientset()
	written := make(chan struct{}, 10)
	client.PrependReactor("create", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
		select { // those of the end may be many, and nobody waits for them
		case written <- struct{}{}:
		default:
		}
		return true, &v1.Event{}, nil
	})
	events := Events(ctx, client)("test")
	ref := &v1.ObjectReference{Kind: "Node", Name: "n"}
	events.Event(ref, v1.EventTypeNormal, "Before", "")
	<-written
	cancel()
	for range 1000 { // before, while and after the recorder ends
		events.Eventf(ref, v1.EventTypeNormal, "After", "%d", 1)
	}
	if said.Len() > 0 {
		t.Errorf("a complaint at the end: %s", said.String())
	}
}
