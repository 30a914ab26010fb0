package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

// publishRetries are the pauses before a pod's status is written again.
var publishRetries = controller.Backoff{First: 200 * time.Millisecond, Most: 10 * time.Second}

// patient is how long a change that no one acts on (a step on the way to
// Running, say) waits for others to share its PATCH. On a busy host a start
// takes about as long.
const patient = time.Second

// publisher keeps the API's status of one pod equal to the planned one. One
// PATCH is under way at a time and each is made against what the API answered
// last, so the stream is ordered and nothing is written that has not changed.
type publisher struct {
	// base is the newest status the API is known to hold, at version.
	base    v1.PodStatus
	version uint64
	target  types.UID // the object written to: the pod, or a static pod's mirror
	busy    bool
	gone    bool // the API no longer holds the object

	since    time.Time // when the present difference was first seen
	began    time.Time // when the difference that is being patched was first seen
	failures int
	retryAt  time.Time
}

// patched is how one PATCH ended.
type patched struct {
	target types.UID
	pod    *v1.Pod
	err    error
}

// take learns what the API holds.
func (p *publisher) take(spec spec, mirror *v1.Pod, done []patched, now time.Time) {
	held := spec.Pod
	if spec.Static {
		held = mirror
	}
	if spec.Orphan {
		held = nil
	}
	if held != nil && held.UID != p.target {
		*p = publisher{target: held.UID, busy: p.busy}
	}
	if held != nil {
		p.see(held)
	} else {
		p.target = ""
	}
	for _, d := range done {
		p.busy = false
		switch {
		case d.target != p.target:
		case d.err == nil:
			p.failures, p.retryAt = 0, time.Time{}
			p.see(d.pod)
		case kube.Gone(d.err):
			// Gone, or another pod by the same name: not ours to write to.
			p.gone = !spec.Static
			p.target = ""
		default:
			p.failures++
			p.retryAt = now.Add(publishRetries.Jittered(p.failures))
		}
	}
}

func (p *publisher) see(pod *v1.Pod) {
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil || version >= p.version {
		p.base, p.version = pod.Status, version
	}
}

// next is the PATCH that is due for a planned status, or when to look again;
// neither if there is nothing to write. A PATCH that it returns is under way.
func (p *publisher) next(want v1.PodStatus, now time.Time) (body []byte, again time.Time, err error) {
	if p.busy || p.gone || p.target == "" {
		return nil, time.Time{}, nil
	}
	if body, err = statusPatch(p.target, p.base, want); err != nil {
		return nil, time.Time{}, err
	}
	if body == nil {
		p.since = time.Time{}
		return nil, time.Time{}, nil
	}
	if p.since.IsZero() || p.since.After(now) {
		p.since = now
	}
	due := p.since.Add(patient)
	if urgent(p.base, want) {
		due = now
	}
	if due.Before(p.retryAt) {
		due = p.retryAt
	}
	if now.Before(due) {
		return nil, due, nil
	}
	p.busy, p.began, p.since = true, p.since, time.Time{}
	return body, time.Time{}, nil
}

// publish begins a PATCH if one is due and returns when to look again.
func (w *worker) publish(ctx context.Context, spec spec, plan plan, now time.Time) (again time.Time) {
	if w.m.cfg.Client == nil {
		return time.Time{}
	}
	body, again, err := w.pub.next(heed(w.pub.base, plan.Status, w.obs.Node), now)
	if err != nil {
		w.m.cfg.Log.Error("making a status patch", "pod", spec.Pod.Name, "err", err)
	}
	if body == nil {
		return again
	}
	target, changed := w.pub.target, w.pub.began
	pods := w.m.cfg.Client.CoreV1().Pods(spec.Pod.Namespace)
	w.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		defer func() { w.m.metrics.statusSync.WithLabelValues().Observe(w.m.cfg.Now().Sub(changed).Seconds()) }()
		got, err := pods.Patch(ctx, spec.Pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		if err != nil && ctx.Err() == nil {
			level := slog.LevelDebug // an API that is away is reported elsewhere
			if !kube.Gone(err) && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)) {
				level = slog.LevelWarn
			}
			w.m.cfg.Log.Log(ctx, level, "patching a pod's status", "pod", spec.Pod.Name, "namespace", spec.Pod.Namespace, "err", err)
		}
		w.mu.Lock()
		w.patches = append(w.patches, patched{target: target, pod: got, err: err})
		w.mu.Unlock()
		w.enqueue()
	})
	return time.Time{}
}

// urgent tells whether someone acts on the difference: endpoints, owners and
// people wait for phase and readiness.
func urgent(base, want v1.PodStatus) bool {
	from := base.Phase
	if from == "" {
		from = v1.PodPending
	}
	return from != want.Phase || ready(&base) != ready(&want)
}

func ready(s *v1.PodStatus) bool { return podutil.Ready(&v1.Pod{Status: *s}) }

// heed leaves a pod out of service while its node is not ready, if another party
// took it out: anyone who watches nodes marks the pods of one that says it is not
// ready, and what probes found before that counts no more. The agent gives a
// reason each time it calls a pod not ready itself; a mark has none.
func heed(base, want v1.PodStatus, node Node) v1.PodStatus {
	if !node.NotReady {
		return want
	}
	marked := slices.IndexFunc(base.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionFalse && c.Reason == ""
	})
	mine := slices.IndexFunc(want.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady })
	if marked < 0 || mine < 0 || want.Conditions[mine].Status != v1.ConditionTrue {
		return want
	}
	want.Conditions = slices.Clone(want.Conditions)
	want.Conditions[mine] = base.Conditions[marked]
	return want
}

// owned are the conditions that the agent writes; all others are kept.
var owned = map[v1.PodConditionType]bool{
	v1.PodScheduled: true, v1.PodReadyToStartContainers: true, v1.PodInitialized: true, v1.ContainersReady: true, v1.PodReady: true,
	v1.PodResizePending: true, v1.PodResizeInProgress: true, v1.AllContainersRestarting: true,
}

// mergedStatus is the planned status together with what others own in base.
func mergedStatus(base, want v1.PodStatus) v1.PodStatus {
	have := map[v1.PodConditionType]bool{}
	for _, c := range want.Conditions {
		have[c.Type] = true
	}
	merged := want
	merged.Conditions = append([]v1.PodCondition(nil), want.Conditions...)
	for _, c := range base.Conditions {
		if !owned[c.Type] && !have[c.Type] {
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	merged.ResourceClaimStatuses = base.ResourceClaimStatuses
	merged.ExtendedResourceClaimStatus = base.ExtendedResourceClaimStatus
	merged.NominatedNodeName = base.NominatedNodeName
	return merged
}

// statusPatch is the strategic merge patch that takes base to want, guarded by
// the pod's UID; nil when there is nothing to write.
func statusPatch(uid types.UID, base, want v1.PodStatus) ([]byte, error) {
	want = mergedStatus(base, want)
	if apiequality.Semantic.DeepEqual(base, want) {
		return nil, nil
	}
	from, err := json.Marshal(v1.Pod{Status: base})
	if err != nil {
		return nil, fmt.Errorf("marshalling the status held: %w", err)
	}
	to, err := json.Marshal(v1.Pod{Status: want})
	if err != nil {
		return nil, fmt.Errorf("marshalling the status planned: %w", err)
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(from, to, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("comparing statuses: %w", err)
	}
	var patch map[string]json.RawMessage
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, fmt.Errorf("reading back a patch: %w", err)
	}
	if len(patch) == 0 {
		return nil, nil
	}
	patch["metadata"], err = json.Marshal(map[string]types.UID{"uid": uid})
	if err != nil {
		return nil, fmt.Errorf("marshalling a UID: %w", err)
	}
	return json.Marshal(patch)
}
