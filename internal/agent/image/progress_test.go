package image

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// slowRuntime takes ten minutes for a pull and holds no image before.
type slowRuntime struct{}

func (slowRuntime) ImageStatus(context.Context, *runtimeapi.ImageSpec, bool) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{}, nil
}

func (slowRuntime) PullImage(context.Context, *runtimeapi.ImageSpec, *runtimeapi.AuthConfig, *runtimeapi.PodSandboxConfig) (string, error) {
	time.Sleep(10 * time.Minute)
	return "sha256:x", nil
}

// TestLongPullsAreTold: who waits for a long pull, as the first or as one who
// joined, hears that it goes on, and nothing more once it has ended.
func TestLongPullsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &recorder{}, &recorder{}
		p := newPuller(t, Config{Service: slowRuntime{}, Event: func(pod *v1.Pod, container, kind, reason, message string) {
			to := first
			if pod.UID == "b" {
				to = second
			}
			to.add(pod, container, kind, reason, message)
		}})
		joined := make(chan error)
		go func() {
			time.Sleep(time.Minute)
			_, err := ensure(p, testPod("b"), "r.example/app:1", v1.PullIfNotPresent)
			joined <- err
		}()
		if _, err := ensure(p, testPod("a"), "r.example/app:1", v1.PullIfNotPresent); err != nil {
			t.Fatal(err)
		}
		if err := <-joined; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		still := `Normal Pulling Still pulling image "r.example/app:1" after `
		for _, c := range []struct {
			got  string
			want []string
		}{{first.take(), []string{"30s", "1m30s", "3m30s", "7m30s"}}, {second.take(), []string{"30s", "1m30s", "3m30s", "7m30s"}}} {
			lines := strings.Split(c.got, "\n")
			if len(lines) != len(c.want)+2 || !strings.HasPrefix(lines[0], "Normal Pulling Pulling image") ||
				!strings.HasPrefix(lines[len(lines)-1], "Normal Pulled Successfully") {
				t.Fatalf("events:\n%s", c.got)
			}
			for i, after := range c.want {
				if lines[i+1] != still+after {
					t.Errorf("%q, not %q", lines[i+1], still+after)
				}
			}
		}
	})
}
