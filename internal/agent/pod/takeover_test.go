package pod

import (
	"context"
	"encoding/json"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

// A node that kubelet 1.36.2 left with all kinds of pods: see
// testdata/kubelet-1.36.2. The agent that follows it must find all as it has to
// be: it admits, finds cgroups and volumes and then waits.

// recordedAt is a moment after the recording at which no back-off is over.
var recordedAt = time.Date(2026, 11, 22, 16, 32, 50, 0, time.UTC)

// restless are actions that change what runs.
var restless = map[kind]bool{CreateSandbox: true, Start: true, Stop: true, Remove: true, StopSandbox: true, RemoveSandbox: true,
	PostStart: true, PreStop: true, Pull: true, Resize: true, Unmount: true, RemoveCgroup: true, Clean: true, Delete: true}

func recordedPods(t *testing.T) []v1.Pod {
	t.Helper()
	var list v1.PodList
	text, err := os.ReadFile("testdata/kubelet-1.36.2/pods.json")
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil || len(list.Items) != 10 {
		t.Fatal(len(list.Items), err)
	}
	return list.Items
}

// takeover is the world of an agent that follows the kubelet, about to meet the
// pod.
func takeover(t *testing.T, p *v1.Pod) *fixture {
	t.Helper()
	w := newFixture(t)
	w.now = recordedAt
	text, err := os.ReadFile("testdata/kubelet-1.36.2/cri.json")
	if err == nil {
		w.rt = fake.New(func() time.Time { return w.now })
		err = w.rt.Load(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.m.cfg.Service = w.rt
	w.api, w.mounted, w.cgroup = p.Status, true, true
	w.spec = spec{Pod: p}
	if uid := p.Annotations["kubernetes.io/config.mirror"]; uid != "" {
		static := p.DeepCopy()
		static.UID = types.UID(uid)
		static.Status = v1.PodStatus{}
		w.spec = spec{Pod: static, Static: true}
	}
	w.obs = observed{RuntimeName: "containerd", Messages: map[string]string{}}
	w.crash()
	w.obs.Allocation = w.m.loadAllocation(w.spec.Pod.UID)
	return w
}

// rounds plans until there is nothing to do and returns every action.
func (w *fixture) rounds() (all []action) {
	for range 10 {
		w.look()
		if len(w.plan.Actions) == 0 {
			break
		}
		for _, a := range w.accept() {
			all = append(all, a)
			w.do(a)
		}
	}
	return all
}

func TestTakeoverTouchesNothingThatRuns(t *testing.T) {
	for _, p := range recordedPods(t) {
		t.Run(p.Name, func(t *testing.T) {
			w := takeover(t, &p)
			if w.look(); len(w.plan.Actions) == 0 {
				t.Error("the first plan is empty: the pod is not even admitted")
			}
			for _, a := range w.plan.Actions {
				if restless[a.Kind] && !over(&p) {
					t.Errorf("the first plan has %s (%v)", a, a.Because)
				}
			}
			for _, a := range w.rounds() {
				if restless[a.Kind] && !(over(&p) && releases[a.Kind]) {
					t.Errorf("taking over a pod that is as it has to be: %s (%v)", a, a.Because)
				}
			}
		})
	}
}

// over tells that a pod has ended; what it held is released, as by a kubelet.
func over(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded }

var releases = map[kind]bool{StopSandbox: true, Unmount: true, RemoveCgroup: true}

// Where a definition did change, its container must be started again: the hash is
// read, not passed over.
func TestTakeoverSeesAChangedImage(t *testing.T) {
	for _, p := range recordedPods(t) {
		if over(&p) || p.Name == "crash" { // nothing of them runs
			continue
		}
		p.Spec.Containers[0].Image += "-changed"
		w := takeover(t, &p)
		stopped := 0
		for _, a := range w.rounds() {
			if a.Kind == Stop && a.Container == p.Spec.Containers[0].Name {
				stopped++
			}
		}
		if stopped != 1 {
			t.Errorf("pod %s with another image: its container was stopped %d times", p.Name, stopped)
		}
	}
}

// A container that the API does not show running by this ID may not have had
// its hook: it runs, at least once.
func TestPostStartRunsUnlessTheStatusShowsItsContainer(t *testing.T) {
	for _, change := range []func(*v1.ContainerStatus){
		func(s *v1.ContainerStatus) { s.ContainerID = "containerd://another" },
		func(s *v1.ContainerStatus) {
			s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}
		},
	} {
		for _, p := range recordedPods(t) {
			if p.Name != "sidecar" {
				continue
			}
			change(&p.Status.ContainerStatuses[0])
			w := takeover(t, &p)
			hooks := 0
			for _, a := range w.rounds() {
				if a.Kind == PostStart {
					hooks++
				} else if restless[a.Kind] {
					t.Errorf("the pod is as it has to be: %s", a)
				}
			}
			if hooks != 1 {
				t.Errorf("the hook ran %d times", hooks)
			}
		}
	}
}

// Of a static pod nothing is known until its mirror was seen.
func TestPostStartOfAStaticPodIsNotRepeatedWithoutAMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, err := os.ReadFile("testdata/kubelet-1.36.2/cri.json")
		if err != nil {
			t.Fatal(err)
		}
		var ran, calls atomic.Int32
		a, stop := startAgent(t, func(c *Config, rt *fake.Runtime) {
			if err := rt.Load(text); err != nil {
				t.Fatal(err)
			}
			rt.Before = func(_ context.Context, call, _ string) error {
				if call == "StopContainer" || call == "CreateContainer" || call == "RunPodSandbox" {
					calls.Add(1)
				}
				return nil
			}
			c.Hooks = countedHooks{&ran}
		})
		defer stop()
		for _, p := range recordedPods(t) {
			if p.Name == "sidecar" {
				p.Annotations["kubernetes.io/config.source"], p.Status = "file", v1.PodStatus{}
				a.m.Set(&p, true)
			}
		}
		synctest.Wait()
		p, ok := a.m.GetByName("default", "sidecar")
		if !ok || p.Status.Phase != v1.PodRunning || p.Status.ContainerStatuses[0].State.Running == nil {
			t.Errorf("the static pod was not taken over: %+v", p)
		}
		if ran.Load() != 0 || calls.Load() != 0 {
			t.Errorf("the hook of a running container ran %d times, %d calls changed the runtime", ran.Load(), calls.Load())
		}
	})
}

type countedHooks struct{ ran *atomic.Int32 }

func (h countedHooks) Run(context.Context, Hook) error {
	h.ran.Add(1)
	return nil
}
