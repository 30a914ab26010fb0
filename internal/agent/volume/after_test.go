package volume

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/localvolume"
)

// TestDriverIsRegisteredAfterItsEvents: an agent that starts for the first time
// has no Node yet, and a driver that it finds waits for it instead of failing.
func TestDriverIsRegisteredAfterItsEvents(t *testing.T) {
	driver := startDriver(t, "")
	client := fake.NewClientset(csiObjects(false)...)
	drivers := NewDrivers(client, "n", nil)
	t.Cleanup(drivers.Close)
	node, never := make(chan struct{}), make(chan struct{}) // only local volumes need the certificate
	handler := drivers.RegisterAfter(node, never)
	done := make(chan error, 1)
	go func() { done <- handler.Register(t.Context(), "test.csi", driver.endpoint, []string{"1.0.0"}) }()
	if calls := client.Actions(); len(calls) != 0 {
		t.Errorf("the API was asked before the event: %v", calls)
	}
	close(node)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := drivers.get("test.csi"); err != nil {
		t.Error(err)
	}
}

// TestWaitForEventsEndsWithItsContext: a driver whose socket went while it
// waited is not registered.
func TestWaitForEventsEndsWithItsContext(t *testing.T) {
	client := fake.NewClientset()
	drivers := NewDrivers(client, "n", nil)
	t.Cleanup(drivers.Close)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	closed, never := make(chan struct{}), make(chan struct{})
	close(closed)
	if err := drivers.RegisterAfter(never, nil).Register(ctx, "test.csi", "/nowhere.sock", []string{"1.0.0"}); err == nil {
		t.Error("a driver was registered before the Node was there")
	}
	err := drivers.RegisterAfter(closed, never).Register(ctx, localvolume.Name, "/nowhere.sock", []string{"1.0.0"})
	if err == nil {
		t.Error("local volumes were registered before the certificate was there")
	}
	if calls := client.Actions(); len(calls) != 0 {
		t.Errorf("the API was asked: %v", calls)
	}
}
