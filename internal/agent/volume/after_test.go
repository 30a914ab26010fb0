package volume

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

// TestDriverIsRegisteredAfterItsEvents: an agent that starts for the first time has no Node yet, and a driver that it finds
// waits for it instead of failing.
func TestDriverIsRegisteredAfterItsEvents(t *testing.T) {
	driver := startDriver(t, "")
	client := fake.NewClientset(csiObjects(false)...)
	drivers := NewDrivers(client, "n", nil)
	t.Cleanup(drivers.Close)
	node, asked := make(chan struct{}), make(chan string, 1)
	handler := drivers.RegisterAfter(func(name string) []<-chan struct{} {
		asked <- name
		return []<-chan struct{}{node}
	})
	done := make(chan error, 1)
	go func() { done <- handler.Register(t.Context(), "test.csi", driver.endpoint, []string{"1.0.0"}) }()
	if name := <-asked; name != "test.csi" {
		t.Errorf("asked for the events of %q", name)
	}
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

// TestWaitForEventsEndsWithItsContext: a driver whose socket went while it waited is not registered.
func TestWaitForEventsEndsWithItsContext(t *testing.T) {
	client := fake.NewClientset()
	drivers := NewDrivers(client, "n", nil)
	t.Cleanup(drivers.Close)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	never := drivers.RegisterAfter(func(string) []<-chan struct{} { return []<-chan struct{}{make(chan struct{})} })
	if err := never.Register(ctx, "test.csi", "/nowhere.sock", []string{"1.0.0"}); err == nil {
		t.Error("a driver was registered before its event")
	}
	if calls := client.Actions(); len(calls) != 0 {
		t.Errorf("the API was asked: %v", calls)
	}
}
