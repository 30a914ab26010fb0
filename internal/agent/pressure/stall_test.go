package pressure

import (
	"context"
	"testing"
	"time"
)

// TestStallWatchEnds asks the real kernel, which may refuse, and wants the
// watch to end with its context either way.
func TestStallWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watchStalls(ctx, "/proc/pressure/memory", make(chan struct{}, 1)) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Logf("this kernel or user has no notifications: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the watch goes on")
	}
}
