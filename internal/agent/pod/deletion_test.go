package pod

import (
	"context"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

// TestWhatADeletionWaitsFor: between the end of a pod's last container and the
// deletion of its object stand one look at the container, the stop of the
// sandbox with a look at it, and a status that is written meanwhile. Whatever
// is removed is removed after.
func TestWhatADeletionWaitsFor(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	note := func(step string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, step)
	}
	patched := make(chan struct{})
	a := newAgent(t, func(rt *fake.Runtime) {
		rt.Before = func(_ context.Context, call, _ string) error {
			note(call)
			if call == "StopPodSandbox" {
				<-patched // the status does not wait for the sandbox
			}
			return nil
		}
	})
	pod := a.create("web")
	a.await("web", isRunning)
	var over sync.Once
	a.api.PrependReactor("patch", "pods", func(ktesting.Action) (bool, apiruntime.Object, error) {
		over.Do(func() { close(patched) })
		return false, nil, nil
	})
	a.api.PrependReactor("delete", "pods", func(ktesting.Action) (bool, apiruntime.Object, error) {
		note("delete")
		return false, nil, nil
	})
	gone, now, grace := pod.DeepCopy(), metav1.Now(), int64(1)
	gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = &now, &grace
	a.m.Set(gone, false)
	a.await("web", func(p *v1.Pod) bool { return p == nil })
	mu.Lock()
	defer mu.Unlock()
	path := steps[slices.Index(steps, "StopContainer")+1 : slices.Index(steps, "delete")]
	// The relist and the events' stream are not the pod's.
	path = slices.DeleteFunc(slices.Clone(path), func(s string) bool {
		return s == "ListContainers" || s == "ListPodSandbox" || s == "GetContainerEvents" || s == "Version" || s == "Status"
	})
	if want := []string{"ContainerStatus", "StopPodSandbox", "PodSandboxStatus"}; !slices.Equal(path, want) {
		t.Errorf("a deletion waits for %v, not %v", path, want)
	}
}
