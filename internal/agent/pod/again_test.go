package pod

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

// slowUnmount unmounts when it is let.
type slowUnmount struct {
	calm
	let chan struct{}
}

func (s slowUnmount) Unmount(ctx context.Context, _ types.UID) error {
	select {
	case <-s.let:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// TestAgainWhileItEnds: a static pod whose manifest comes back while what was of
// it still ends lives another life, of whose mirror the first says nothing.
func TestAgainWhileItEnds(t *testing.T) {
	let := make(chan struct{})
	a, stop := startAgent(t, func(c *Config, _ *fake.Runtime) { c.Volumes = slowUnmount{let: let} })
	t.Cleanup(func() { stop(); goleak.VerifyNone(t) })
	pods := a.api.CoreV1().Pods("default")
	static := testPod(v1.RestartPolicyAlways, "app")
	static.Name, static.UID = "web", "of-the-manifest"
	mirror := func(uid types.UID) {
		p := static.DeepCopy()
		p.UID = uid
		p, err := pods.Create(a.ctx, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a.m.SetMirror(static.UID, p)
	}
	a.m.Set(static, true)
	mirror("mirror-1")
	first := a.await("web", isRunning).Status.ContainerStatuses[0].ContainerID

	a.m.Remove(static.UID)
	select {
	case <-a.m.Terminated(static.UID):
	case <-time.After(patience):
		t.Fatal("it never ends")
	}
	if err := pods.Delete(a.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.m.Set(static.DeepCopy(), true)
	mirror("mirror-2")
	close(let)
	a.await("web", func(p *v1.Pod) bool { return isRunning(p) && p.Status.ContainerStatuses[0].ContainerID != first })
	for _, action := range a.api.Actions() {
		write, ok := action.(ktesting.PatchAction)
		if !ok {
			continue
		}
		if patch := string(write.GetPatch()); strings.Contains(patch, "mirror-2") && (strings.Contains(patch, `"Failed"`) ||
			strings.Contains(patch, first)) {
			t.Errorf("the mirror of the second life is told of the first: %s", patch)
		}
	}
}
