package pod

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
)

// TestEvictedWhileAPIAway: a node short of disk does not wait for an API whose
// store is lost: the evicted pod ends at once, and the API learns why when it is
// back.
func TestEvictedWhileAPIAway(t *testing.T) {
	a := newAgent(t)
	var away atomic.Bool
	a.api.PrependReactor("*", "*", func(ktesting.Action) (bool, apiruntime.Object, error) {
		if away.Load() {
			return true, nil, errors.New("the API is away")
		}
		return false, nil, nil
	})
	p := a.create("web")
	a.await("web", isRunning)
	away.Store(true)
	done := a.m.Kill(p.UID, Kill{Phase: v1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: ephemeral-storage. "})
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the eviction waits for the API")
	}
	away.Store(false)
	a.await("web", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted" })
}
