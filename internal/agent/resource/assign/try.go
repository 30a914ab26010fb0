package assign

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/resource/cpus"
	"github.com/berth-dev/berth/internal/agent/resource/memory"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
	"github.com/berth-dev/berth/internal/journal"
)

// try is one pod's admission on a copy of the state.
type try struct {
	m                    *Manager
	pod                  *v1.Pod
	cpus                 cpus.State
	memory               memory.State
	tookCPUs, tookMemory bool
}

// run serves the containers in the order in which they start, so that what
// init containers leave can be used again.
func (t *try) run(ctx context.Context) *refusal {
	var whole topology.Hint
	if t.m.cfg.PodScope {
		hint, refusal := t.align(nil)
		if refusal != nil {
			return refusal
		}
		whole = hint
	}
	for _, list := range [][]v1.Container{t.pod.Spec.InitContainers, t.pod.Spec.Containers} {
		for i := range list {
			hint := whole
			if !t.m.cfg.PodScope {
				var refusal *refusal
				if hint, refusal = t.align(&list[i]); refusal != nil {
					return refusal
				}
			}
			if err := t.allocate(ctx, &list[i], hint); err != nil {
				return refusalOf(err)
			}
		}
	}
	return nil
}

// align asks everybody where a container (nil: the pod) could be served and
// lets the policy choose.
func (t *try) align(c *v1.Container) (topology.Hint, *refusal) {
	policy := t.m.cfg.Topology.Policy
	if policy == topology.None || policy == "" {
		return topology.Hint{}, nil
	}
	var wishes []topology.Wishes
	if d := t.m.cfg.Devices; d != nil {
		wishes = append(wishes, d.Hints(t.pod, c))
	}
	if t.m.cfg.CPUs != nil {
		wishes = append(wishes, t.m.cfg.CPUs.Hints(t.cpus, t.pod, c))
	}
	if t.m.cfg.Memory != nil {
		wishes = append(wishes, memory.Hints(t.memory, t.pod, c))
	}
	hint, ok := t.m.cfg.Topology.Merge(wishes)
	guaranteed := policy == topology.Restricted || policy == topology.SingleNUMA
	if !ok {
		t.m.metrics.errors.Inc()
		if guaranteed {
			t.m.metrics.misaligned.WithLabelValues(t.scope(), "numa_node").Inc()
		}
		return hint, &refusal{Reason: "TopologyAffinityError", Message: "Resources cannot be allocated with Topology locality"}
	}
	if policy == topology.SingleNUMA {
		t.m.metrics.aligned.WithLabelValues(t.scope(), "numa_node").Inc()
	}
	return hint, nil
}

func (t *try) scope() string {
	if t.m.cfg.PodScope {
		return "pod"
	}
	return "container"
}

// allocate serves one container from where was chosen.
func (t *try) allocate(ctx context.Context, c *v1.Container, hint topology.Hint) error {
	if d := t.m.cfg.Devices; d != nil {
		if err := d.Allocate(ctx, t.pod, c, hint.Mask); err != nil {
			return err
		}
	}
	if err := t.allocateCPUs(c, hint); err != nil {
		return err
	}
	return t.allocateMemory(c, hint)
}

func (t *try) allocateCPUs(c *v1.Container, hint topology.Hint) error {
	policy, uid := t.m.cfg.CPUs, string(t.pod.UID)
	if policy == nil || cpus.Count(t.pod, c) == 0 {
		return nil
	}
	if _, has := t.cpus.Owned[uid][c.Name]; has {
		return nil
	}
	t.m.metrics.cpuRequests.Inc()
	var err error
	if t.cpus, err = policy.Allocate(t.cpus, t.pod, c, hint.Mask); err != nil {
		t.m.metrics.cpuErrors.Inc()
		if policy.Options.FullCores {
			t.m.metrics.misaligned.WithLabelValues("container", "physical_cpu").Inc()
		}
		return err
	}
	t.tookCPUs = true
	if policy.Options.FullCores {
		t.m.metrics.aligned.WithLabelValues("container", "physical_cpu").Inc()
	}
	if t.m.cfg.Host.OneCache(t.cpus.Owned[uid][c.Name]) {
		t.m.metrics.aligned.WithLabelValues("container", "uncore_cache").Inc()
	}
	return nil
}

func (t *try) allocateMemory(c *v1.Container, hint topology.Hint) error {
	if t.m.cfg.Memory == nil || len(memory.Requests(t.pod, c)) == 0 {
		return nil
	}
	if _, has := t.memory.Owned[string(t.pod.UID)][c.Name]; has {
		return nil
	}
	t.m.metrics.memoryRequests.Inc()
	if err := memory.Allocate(t.m.cfg.Topology, t.memory, t.pod, c, hint); err != nil {
		t.m.metrics.memoryErrors.Inc()
		return err
	}
	t.tookMemory = true
	return nil
}

// explain writes down what the pod's containers were given.
func (t *try) explain(now time.Time) {
	if !t.tookCPUs && !t.tookMemory {
		return
	}
	uid := string(t.pod.UID)
	because := []journal.Fact{{Name: "topology policy", Value: string(t.m.cfg.Topology.Policy)}}
	for _, list := range [][]v1.Container{t.pod.Spec.InitContainers, t.pod.Spec.Containers} {
		for i := range list {
			name := list[i].Name
			if set, ok := t.cpus.Owned[uid][name]; ok {
				because = append(because, journal.Fact{Name: "processors of " + name, Value: set.String()})
			}
			if nodes := t.memory.NodesOf(uid, name); nodes != 0 {
				because = append(because, journal.Fact{Name: "memory nodes of " + name, Value: nodes.String()})
			}
		}
	}
	t.m.cfg.Journal.Append(journal.Record{Time: now, Part: "agent", Object: journal.Ref{Kind: "Pod", Namespace: t.pod.Namespace,
		Name: t.pod.Name, UID: uid},
		Decision: "gave it resources of its own", Because: because})
}

func refusalOf(err error) *refusal {
	var alignment *cpus.AlignmentError
	if errors.As(err, &alignment) {
		return &refusal{Reason: "SMTAlignmentError", Message: err.Error()}
	}
	return unexpected(err)
}

func unexpected(err error) *refusal {
	return &refusal{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}
