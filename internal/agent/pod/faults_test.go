package pod

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

// fault runs a manager in virtual time: a sleep ends once no one has anything
// left to do before it.
func fault(t *testing.T, change func(*Config, *fake.Runtime), story func(*agentUnderTest)) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := startAgent(t, change)
		defer stop()
		story(a)
	})
}

// phase is a pod's phase in the API.
func (a *agentUnderTest) phase(name string) v1.PodPhase {
	a.Helper()
	p, err := a.api.CoreV1().Pods("default").Get(a.ctx, name, metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	return p.Status.Phase
}

func (a *agentUnderTest) container(name string) v1.ContainerStatus {
	a.Helper()
	p, err := a.api.CoreV1().Pods("default").Get(a.ctx, name, metav1.GetOptions{})
	if err != nil || len(p.Status.ContainerStatuses) != 1 {
		a.Fatalf("pod %s: %v %+v", name, err, p)
	}
	return p.Status.ContainerStatuses[0]
}

// TestCallHangsTenMinutes: that pod comes up when the call is over, all others
// at once.
func TestCallHangsTenMinutes(t *testing.T) {
	fault(t, func(_ *Config, rt *fake.Runtime) {
		rt.Before = func(ctx context.Context, call, object string) error {
			if call == "RunPodSandbox" && object == "stuck" {
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Minute):
				}
			}
			return nil
		}
	}, func(a *agentUnderTest) {
		a.create("stuck")
		for i := range 20 {
			a.create(fmt.Sprint("p", i))
		}
		time.Sleep(time.Second)
		for i := range 20 {
			if got := a.phase(fmt.Sprint("p", i)); got != v1.PodRunning {
				t.Errorf("beside a hanging pod another is %s after a second", got)
			}
		}
		time.Sleep(10*time.Minute - 2*time.Second)
		if got := a.phase("stuck"); got == v1.PodRunning {
			t.Error("the call did not hang: the test proves nothing")
		}
		time.Sleep(2 * time.Second)
		if got := a.phase("stuck"); got != v1.PodRunning {
			t.Errorf("after the call came back the pod is %s", got)
		}
	})
}

// TestRuntimeAwayAndBack: what ran is left alone, what was asked for meanwhile
// starts soon after.
func TestRuntimeAwayAndBack(t *testing.T) {
	var away atomic.Bool
	fault(t, func(_ *Config, rt *fake.Runtime) {
		rt.Before = func(context.Context, string, string) error {
			if away.Load() {
				return status.Error(codes.Unavailable, "connection refused")
			}
			return nil
		}
	}, func(a *agentUnderTest) {
		a.create("old")
		time.Sleep(2 * time.Second)
		before := a.container("old")
		away.Store(true)
		a.create("new")
		time.Sleep(5 * time.Minute)
		if got := a.container("old"); got.ContainerID != before.ContainerID || !got.Ready {
			t.Errorf("while the runtime was away the old pod became %+v", got)
		}
		if got := a.phase("new"); got != v1.PodPending {
			t.Errorf("without a runtime the new pod is %s", got)
		}
		away.Store(false)
		time.Sleep(25 * time.Second) // the longest pause between tries of a sandbox is 20 s
		if got := a.phase("new"); got != v1.PodRunning {
			t.Errorf("with the runtime back the new pod is %s", got)
		}
		if got := a.container("old"); got.ContainerID != before.ContainerID || got.RestartCount != 0 {
			t.Errorf("with the runtime back the old pod is %+v", got)
		}
	})
}

// TestBrokenEvents: with the stream broken for good, the lists tell.
func TestBrokenEvents(t *testing.T) {
	fault(t, func(_ *Config, rt *fake.Runtime) {
		rt.Before = func(_ context.Context, call, _ string) error {
			if call == "GetContainerEvents" {
				return status.Error(codes.Internal, "stream broken")
			}
			return nil
		}
	}, func(a *agentUnderTest) {
		a.create("web")
		time.Sleep(2 * time.Second)
		if !a.rt.ExitByName("uid-web", "app", 1, "Error") {
			t.Fatal("nothing ran")
		}
		time.Sleep(3 * time.Second)
		if got := a.container("web"); got.RestartCount != 1 || got.State.Running == nil {
			t.Errorf("an end that no event told of: %+v", got)
		}
	})
}

// TestClockJumps: whatever the clock does, a crash loop goes on with a pause
// that is never longer than its back-off.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			var shift atomic.Int64
			fault(t, func(c *Config, rt *fake.Runtime) {
				c.Now = func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
				rt.Run = func(*runtimeapi.ContainerConfig) (int32, bool) { return 1, true }
			}, func(a *agentUnderTest) {
				a.create("bad")
				time.Sleep(15 * time.Second) // restarted at once and after 10 s
				if got := a.container("bad").RestartCount; got != 2 {
					t.Fatalf("%d restarts before the jump", got)
				}
				shift.Store(int64(jump))
				a.m.Enqueue("uid-bad")
				time.Sleep(time.Minute)
				if got := a.container("bad").RestartCount; got < 3 {
					t.Errorf("a minute after the jump still %d restarts", got)
				}
			})
		})
	}
}

// TestAPIAwayMinutes: the pod lives its whole life meanwhile; afterwards the
// API gets what is true, and never an older status after a newer one.
func TestAPIAwayMinutes(t *testing.T) {
	var away atomic.Bool
	rank := map[v1.PodPhase]int{v1.PodPending: 1, v1.PodRunning: 2, v1.PodSucceeded: 3, v1.PodFailed: 3}
	fault(t, func(*Config, *fake.Runtime) {}, func(a *agentUnderTest) {
		a.api.PrependReactor("patch", "pods", func(ktesting.Action) (bool, apiruntime.Object, error) {
			if away.Load() {
				return true, nil, errors.New("the API is away")
			}
			return false, nil, nil
		})
		away.Store(true)
		p := testPod(v1.RestartPolicyNever, "app")
		p.Name, p.UID = "once", "uid-once"
		p, err := a.api.CoreV1().Pods("default").Create(a.ctx, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a.m.Set(p, false)
		time.Sleep(2 * time.Minute)
		if !a.rt.ExitByName("uid-once", "app", 3, "Error") {
			t.Fatal("without the API the pod does not run")
		}
		time.Sleep(3 * time.Minute)
		away.Store(false)
		was := 0
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			if now := rank[a.phase("once")]; now < was {
				t.Fatalf("the phase went back to %s", a.phase("once"))
			} else {
				was = now
			}
		}
		if got := a.container("once"); a.phase("once") != v1.PodFailed || got.State.Terminated == nil ||
			got.State.Terminated.ExitCode != 3 {
			t.Errorf("in the end the API holds %s, %+v", a.phase("once"), got)
		}
	})
}

// TestFullDisk: a container that cannot be made is tried again until it can.
func TestFullDisk(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	fault(t, func(_ *Config, rt *fake.Runtime) {
		rt.Before = func(_ context.Context, call, _ string) error {
			if call == "CreateContainer" && full.Load() {
				return status.Error(codes.Unknown, "failed to create snapshot: no space left on device")
			}
			return nil
		}
	}, func(a *agentUnderTest) {
		a.create("web")
		time.Sleep(time.Minute)
		w := a.container("web").State.Waiting
		if w == nil || w.Reason != "CreateContainerError" || w.Message != "failed to create snapshot: no space left on device" {
			t.Errorf("with a full disk the container waits for %+v", w)
		}
		full.Store(false)
		time.Sleep(16 * time.Second)
		if got := a.phase("web"); got != v1.PodRunning {
			t.Errorf("with room again the pod is %s", got)
		}
	})
}
