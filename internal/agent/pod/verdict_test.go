package pod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/runtime/fake"
)

const lowOnDisk = "The node was low on resource: ephemeral-storage. "

func evict() Kill {
	return Kill{Phase: v1.PodFailed, Reason: "Evicted", Message: lowOnDisk, Condition: Disrupted(lowOnDisk)}
}

// TestEvictionOutlivesTheAgent: the API is away while a pod is evicted, and the
// agent's process dies after any number of steps of that. The next agent ends
// the pod, starts nothing of it and tells the API why; then nothing is kept.
func TestEvictionOutlivesTheAgent(t *testing.T) {
	for steps := 0; ; steps++ {
		w := newFixture(t)
		w.begin(testPod(v1.RestartPolicyAlways, "app"))
		w.settle()
		if w.api.Phase != v1.PodRunning {
			t.Fatal(w.summary())
		}
		kill := evict()
		w.unheard, w.spec.Kill = true, &kill
		done := 0
		for w.look(); done < steps && len(w.plan.Actions) > 0; w.look() {
			for _, a := range w.accept() {
				if done++; done <= steps {
					w.do(a)
				}
			}
		}
		// A torn write leaves a file beside the one that counts.
		if err := os.WriteFile(w.m.verdictFile("u1")+".tmp", []byte(`{"kill":{"Pha`), 0o600); err != nil {
			t.Fatal(err)
		}
		w.crash()
		w.log, w.unheard = nil, false
		w.settle()
		if did := strings.Join(w.log, "\n"); strings.Contains(did, "start app") || strings.Contains(did, "create-sandbox") {
			t.Errorf("dead after %d steps: the next agent starts the pod again:\n%s", steps, did)
		}
		if w.api.Phase != v1.PodFailed || w.api.Reason != "Evicted" || w.api.Message != lowOnDisk || !disrupted(&w.api) {
			t.Errorf("dead after %d steps: the API holds %s %s %q %v", steps, w.api.Phase, w.api.Reason, w.api.Message, w.api.Conditions)
		}
		w.look()
		if _, err := os.Stat(w.m.verdictFile("u1")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("dead after %d steps: the verdict is kept though the API knows it: %v", steps, err)
		}
		if done < steps {
			if done < 3 {
				t.Fatalf("an eviction of %d steps proves nothing", done)
			}
			return
		}
	}
}

func disrupted(s *v1.PodStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue {
			return true
		}
	}
	return false
}

// TestEndOutlivesTheAgent: how a pod ended that the API does not take stands,
// also where the node would decide otherwise now.
func TestEndOutlivesTheAgent(t *testing.T) {
	w := newFixture(t)
	w.reject, w.unheard = &Rejection{Reason: "OutOfcpu", Message: "Node didn't have enough resource: cpu"}, true
	w.begin(testPod(v1.RestartPolicyAlways, "app"))
	w.settle()
	w.crash()
	w.reject, w.unheard = nil, false
	w.settle()
	if w.api.Phase != v1.PodFailed || w.api.Reason != "OutOfcpu" || !strings.Contains(w.api.Message, "enough resource: cpu") {
		t.Errorf("the API holds %s %s %q", w.api.Phase, w.api.Reason, w.api.Message)
	}
	if w.mounted || w.watcher.Pod("u1") != nil {
		t.Errorf("the rejected pod was begun")
	}
}

// TestStaticPodRunsAgain: what ended a static pod ends with the agent's life: its
// file asks for the same pod at the next boot.
func TestStaticPodRunsAgain(t *testing.T) {
	w := newFixture(t)
	w.begin(testPod(v1.RestartPolicyAlways, "app"))
	w.spec.Static, w.unheard = true, true
	w.settle()
	w.spec.Kill = &Kill{Phase: v1.PodFailed, Reason: "Terminated", Message: "Pod was terminated in response to imminent node shutdown."}
	w.settle()
	if !terminal(w.plan.Status.Phase) {
		t.Fatal(w.summary())
	}
	w.crash()
	w.settle()
	if w.plan.Status.Phase != v1.PodRunning {
		t.Error(w.summary())
	}
}

// TestVerdictThatCannotBeReadOrKept: a broken file holds up no pod, a disk that
// takes no file no eviction, and texts without end fill no disk.
func TestVerdictThatCannotBeReadOrKept(t *testing.T) {
	w := newFixture(t)
	path := w.m.verdictFile("u1")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := w.m.loadVerdict("u1"); v != (verdict{}) {
		t.Errorf("a broken file says %+v", v)
	}
	if err := os.Mkdir(path+".tmp", 0o700); err != nil { // where the file is to be written
		t.Fatal(err)
	}
	w.begin(testPod(v1.RestartPolicyAlways, "app"))
	w.settle()
	kill := evict()
	w.spec.Kill = &kill
	if w.settle(); w.api.Reason != "Evicted" {
		t.Errorf("the API holds %s %s", w.api.Phase, w.api.Reason)
	}
	long := evict()
	long.Message = strings.Repeat("container ", 1<<20)
	v := verdictOf(spec{Kill: &long}, &v1.PodStatus{}, v1.PodRunning, true)
	if len(v.Kill.Message) > maxVerdictText || long.Condition.Message != lowOnDisk || len(long.Message) != 10<<20 {
		t.Errorf("%d bytes are kept, the pod's own text has %d", len(v.Kill.Message), len(long.Message))
	}
}

// TestEvictedThenStartedAgain: the same with the real workers: the agent stops
// while the API is away, and one that follows it on the same node tells.
func TestEvictedThenStartedAgain(t *testing.T) {
	var away atomic.Bool
	gone := func(ktesting.Action) (bool, apiruntime.Object, error) {
		if away.Load() {
			return true, nil, errors.New("the API is away")
		}
		return false, nil, nil
	}
	var cfg Config
	first, stop := startAgent(t, func(c *Config, _ *fake.Runtime) { cfg = *c })
	first.api.PrependReactor("*", "*", gone)
	p := first.create("web")
	running := first.await("web", isRunning)
	away.Store(true)
	<-first.m.Kill(p.UID, evict())
	stop()
	away.Store(false)

	second, stop := startAgent(t, func(c *Config, _ *fake.Runtime) { c.Dirs, c.Client = cfg.Dirs, first.api })
	defer stop()
	second.api = first.api
	second.m.Set(running, false)
	second.await("web", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	got := second.await("web", func(p *v1.Pod) bool { return p != nil })
	if got.Status.Reason != "Evicted" || got.Status.Message != lowOnDisk || !disrupted(&got.Status) {
		t.Errorf("the API holds %s %q %v", got.Status.Reason, got.Status.Message, got.Status.Conditions)
	}
	if held := cfg.Runtime.Pod(p.UID); held.Newest("app").State == runtime.Running {
		t.Error("the evicted pod's container runs")
	}
}
