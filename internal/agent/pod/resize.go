package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// resources are what a pod's containers get, by container name; what the pod as
// a whole gets has the name "".
type resources map[string]v1.ResourceRequirements

// allocation is what the node promised a pod. It outlives the agent: until a
// change of the spec is accepted, the pod goes on with what it has.
type allocation struct {
	Resources resources `json:"resources"`
	// Actuating: the promise is newer than what the runtime enforces.
	Actuating bool `json:"actuating,omitempty"`
	// Restart names containers, with the instance to end, that must be
	// restarted for the change.
	Restart map[string]string `json:"restart,omitempty"`
}

func resourcesOf(pod *v1.Pod) resources {
	out := resources{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out[list[i].Name] = list[i].Resources
		}
	}
	if r := pod.Spec.Resources; r != nil {
		out[""] = *r
	}
	return out
}

func sameResources(a, b resources) bool { return apiequality.Semantic.DeepEqual(a, b) }

// withResources is the pod as it was promised: the same object where nothing
// differs.
func withResources(pod *v1.Pod, r resources) *v1.Pod {
	if sameResources(resourcesOf(pod), r) {
		return pod
	}
	out := pod.DeepCopy()
	for _, list := range [][]v1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range list {
			if have, ok := r[list[i].Name]; ok {
				list[i].Resources = have
			}
		}
	}
	if whole, ok := r[""]; ok {
		out.Spec.Resources = &whole
	}
	return out
}

// view is the spec as the planner sees it: the pod with what it was promised,
// and beside it what its owner wants now.
func (m *memory) view(spec spec) spec {
	if spec.Static || spec.Orphan {
		return spec
	}
	if m.Allocation.Resources == nil {
		m.Allocation.Resources = resourcesOf(spec.Pod)
	}
	if m.seen != spec.Pod {
		if want := resourcesOf(spec.Pod); !sameResources(want, m.asked) {
			m.asked = want
			delete(m.Failed, actionKey{Kind: Allocate}) // the refusal was of something else
		}
		m.seen, m.promised = spec.Pod, withResources(spec.Pod, m.Allocation.Resources)
	}
	spec.Desired, spec.Pod = spec.Pod, m.promised
	return spec
}

// allocated takes in a promise that was made.
func (m *memory) allocated(a allocation) {
	m.Allocation = a
	m.seen = nil
}

// resize asks for what the owner wants again, and brings what runs to what was
// promised.
func (p *planner) resize() bool {
	if p.wantsResize() {
		p.emit(action{Kind: Allocate}, fact("resources", "changed in the spec"))
		p.reportPending()
	}
	if !p.obs.Allocation.Actuating {
		return true
	}
	for name, id := range p.obs.Allocation.Restart {
		if m := p.containerNamed(name); m != nil && alive(m.cur) && m.cur.ID == id {
			p.stop(m.cur, p.ownGrace(), fmt.Sprintf("Container %s resize requires restart", name), fact("resize", "requires a restart"))
			return true
		}
	}
	if !p.busy(Start, Stop) {
		p.emit(action{Kind: Resize}, fact("resources", "promised, not enforced yet"))
	}
	return true
}

// reportPending reports, once for each cause, that a change has to wait.
func (p *planner) reportPending() {
	f, ok := p.obs.Failed[actionKey{Kind: Allocate}]
	if !ok {
		return
	}
	p.plan.Events = append(p.plan.Events, event{
		Warning: true, Reason: "Resize" + f.Reason, Key: fmt.Sprintf("resize/%d/%s/%s", p.pod.Generation, f.Reason, f.Message),
		Message: fmt.Sprintf("Pod resize %s: %s", f.Reason, resizeText(p.spec.Desired, f.Message)),
	})
}

func (p *planner) wantsResize() bool {
	return p.spec.Desired != nil && p.spec.Desired != p.pod && !sameResources(resourcesOf(p.spec.Desired), resourcesOf(p.pod))
}

// resizeConditions report a change that was not accepted or not finished.
func (p *planner) resizeConditions(s *v1.PodStatus) {
	if p.end != nil {
		return
	}
	if f, ok := p.obs.Failed[actionKey{Kind: Allocate}]; ok && p.wantsResize() {
		p.set(s, v1.PodResizePending, true, f.Reason, f.Message)
	}
	if !p.obs.Allocation.Actuating {
		return
	}
	if f, ok := p.obs.Failed[actionKey{Kind: Resize}]; ok {
		p.set(s, v1.PodResizeInProgress, true, v1.PodReasonError, f.Message)
		return
	}
	p.set(s, v1.PodResizeInProgress, true, "", "")
}

// restarts lists the instances that a change from a pod's resources to others
// must restart.
func restarts(from *v1.Pod, to resources, held *runtime.Pod) map[string]string {
	out := map[string]string{}
	for _, m := range allContainers(from, held, currentSandbox(from, held)) {
		next, ok := to[m.c.Name]
		if !ok || !alive(m.cur) {
			continue
		}
		for _, policy := range m.c.ResizePolicy {
			changed := !quantityEqual(m.c.Resources.Limits, next.Limits, policy.ResourceName) || !quantityEqual(m.c.Resources.Requests,
				next.Requests, policy.ResourceName)
			if changed && policy.RestartPolicy == v1.RestartContainer {
				out[m.c.Name] = m.cur.ID
			}
		}
	}
	return out
}

func quantityEqual(a, b v1.ResourceList, name v1.ResourceName) bool {
	x, y := a[name], b[name]
	return x.Cmp(y) == 0
}

// allocate asks for room and writes down the promise before anybody acts on it.
func (m *Manager) allocate(ctx context.Context, spec spec) (*allocation, *actionFailure) {
	if spec.Desired == nil {
		return nil, &actionFailure{Reason: v1.PodReasonInfeasible, Message: "In-place resize of static-pods is not supported"}
	}
	if r := m.cfg.Admitter.Resize(ctx, spec.Desired); r != nil {
		if err := m.saveAllocation(spec.Pod.UID, allocation{Resources: resourcesOf(spec.Pod)}); err != nil {
			return nil, failure(err, "Deferred")
		}
		if r.Reason != v1.PodReasonInfeasible {
			r.Reason = v1.PodReasonDeferred // the room may come
		}
		return nil, &actionFailure{Reason: r.Reason, Message: r.Message}
	}
	to := resourcesOf(spec.Desired)
	a := allocation{Resources: to, Actuating: true, Restart: restarts(spec.Pod, to, m.cfg.Runtime.Pod(spec.Pod.UID))}
	if err := m.saveAllocation(spec.Pod.UID, a); err != nil {
		return nil, failure(err, "Deferred")
	}
	m.event(spec.Pod, event{Reason: "ResizeStarted", Message: "Pod resize started: " + resizeText(spec.Desired, "")})
	return &a, nil
}

// actuate brings what runs to the pod's promised resources.
func (m *Manager) actuate(ctx context.Context, pod *v1.Pod) *actionFailure {
	running := map[string]string{}
	held := m.cfg.Runtime.Pod(pod.UID)
	for _, mem := range allContainers(pod, held, currentSandbox(pod, held)) {
		if mem.role != ephemeralContainer && mem.cur != nil && mem.cur.State == runtime.Running {
			running[mem.c.Name] = mem.cur.ID
		}
	}
	began := m.cfg.Now()
	err := m.cfg.Resizer.Resize(ctx, pod, running)
	m.metrics.resizes.WithLabelValues(strconv.FormatBool(err == nil)).Observe(float64(m.cfg.Now().Sub(began)) / float64(time.Millisecond))
	if err == nil {
		for _, id := range running {
			_, rerr := m.cfg.Runtime.RefreshContainer(ctx, "", id)
			err = errors.Join(err, rerr)
		}
	}
	if err == nil {
		err = m.saveAllocation(pod.UID, allocation{Resources: resourcesOf(pod)})
	}
	if err != nil {
		m.event(pod, event{Warning: true, Reason: "ResizeError", Message: "Pod resize error: " + resizeText(pod, err.Error())})
		return failure(err, v1.PodReasonError)
	}
	m.event(pod, event{Reason: "ResizeCompleted", Message: "Pod resize completed: " + resizeText(pod, "")})
	return nil
}

// resizeText is the JSON that resize events carry.
func resizeText(pod *v1.Pod, problem string) string {
	type named struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources"`
	}
	text := struct {
		InitContainers []named                  `json:"initContainers,omitempty"`
		Containers     []named                  `json:"containers"`
		Pod            *v1.ResourceRequirements `json:"pod,omitempty"`
		Generation     int64                    `json:"generation"`
		Error          string                   `json:"error,omitempty"`
	}{Pod: pod.Spec.Resources, Generation: pod.Generation, Error: problem}
	for i := range pod.Spec.InitContainers {
		text.InitContainers = append(text.InitContainers, named{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		text.Containers = append(text.Containers, named{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	b, err := json.Marshal(text)
	if err != nil {
		return problem
	}
	return string(b)
}

func (m *Manager) allocationFile(uid types.UID) string {
	return filepath.Join(m.cfg.Dirs.Root, "pods", string(uid), "allocation.json")
}

// saveAllocation replaces the promise on disk as a whole.
func (m *Manager) saveAllocation(uid types.UID, a allocation) error {
	b, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("marshalling the allocation of pod %s: %w", uid, err)
	}
	path := m.allocationFile(uid)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("making the directory of pod %s: %w", uid, err)
	}
	if err := os.WriteFile(path+".tmp", b, 0o640); err != nil {
		return fmt.Errorf("writing the allocation of pod %s: %w", uid, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("writing the allocation of pod %s: %w", uid, err)
	}
	return nil
}

// loadAllocation reads the promise back; pods that were never resized have
// none on disk.
func (m *Manager) loadAllocation(uid types.UID) (a allocation) {
	b, err := os.ReadFile(m.allocationFile(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return allocation{}
	}
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	if err != nil {
		m.cfg.Log.Error("reading what a pod was promised, taking its spec instead", "uid", uid, "err", err)
		return allocation{}
	}
	return a
}
