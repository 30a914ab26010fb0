package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

const manager = "berth-node-health"

// write makes one node fit its verdict of this moment. Each patch carries the
// version it was computed from: any client that wrote meanwhile wins, and the next
// look starts from what they wrote.
func (s *shell) write(ctx context.Context, name string, do func(context.Context, *v1.Node, Verdict) error) error {
	obj, found, err := s.nodes.GetByKey(name)
	if err != nil || !found {
		return err
	}
	n, v := s.fresh.newest(obj.(*v1.Node)), s.verdict(name)
	if !v.Known || v.UID != string(n.UID) {
		return nil
	}
	began := time.Now()
	if err = do(ctx, n, v); apierrors.IsConflict(err) {
		// The cache is behind, by a moment or because its watch is stuck: what
		// the API says is taken in and decided on.
		if n, err = s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil {
			s.read(n)
			if v = s.verdict(name); v.Known && v.UID == string(n.UID) {
				err = do(ctx, n, v)
			}
		}
	}
	s.meter.update.Observe(time.Since(began).Seconds())
	return ignoreGone(err)
}

// mark makes the conditions of a silent node Unknown. What follows is done then.
func (s *shell) mark(ctx context.Context, n *v1.Node, v Verdict) error {
	if set := v.Conditions(n, metav1.Now()); len(set) > 0 {
		if err := s.writeConditions(ctx, n, set); err != nil {
			return err
		}
	}
	s.enqueueFollowUps(n.Name)
	return nil
}

// enqueueFollowUps enqueues what follows when a node is marked: its taints and its pods.
func (s *shell) enqueueFollowUps(node string) {
	s.rest.Add(node)
	s.unready.Add(node)
}

// unmarked hands a silent node back to those who mark it first.
func (s *shell) unmarked(n *v1.Node, v Verdict) bool {
	if len(v.Conditions(n, metav1.Now())) == 0 {
		return false
	}
	s.urgent.Add(n.Name)
	return true
}

// follow makes a node's taints and old labels fit its verdict.
func (s *shell) follow(ctx context.Context, n *v1.Node, v Verdict) error {
	if s.unmarked(n, v) {
		return nil
	}
	errs := []error{ignoreGone(s.writeTaints(ctx, n, v))}
	if set := labels(n); set != nil {
		errs = append(errs, ignoreGone(s.patch(ctx, n, "labels", types.MergePatchType,
			map[string]any{"metadata": map[string]any{"uid": n.UID, "labels": set}})))
	}
	return errors.Join(errs...)
}

// ignoreGone drops what is said of a node that is no more. A conflict may mean
// that the node has changed only.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || kube.Replaced(err) && !apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (s *shell) writeConditions(ctx context.Context, n *v1.Node, set []v1.NodeCondition) error {
	err := s.patch(ctx, n, "conditions", types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"status":   map[string]any{"conditions": set},
	}, "status")
	if err != nil {
		return err
	}
	if ViewOf(n).Ready == True {
		s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "NodeNotReady", "Node "+n.Name+" status is now: NodeNotReady")
	}
	return nil
}

func (s *shell) writeTaints(ctx context.Context, n *v1.Node, v Verdict) error {
	w := v.Taints(n, metav1.Now(), func() bool { return s.acquireToken(n) })
	if !w.Changed {
		return nil
	}
	err := s.patch(ctx, n, "taints", types.MergePatchType, map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"taints": w.Taints},
	})
	if w.Adds {
		s.tried(n, err)
	}
	return err
}

// acquireToken acquires the zone's rate-limiter token for writing a NoExecute taint
// to a node that has none.
func (s *shell) acquireToken(n *v1.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.monitor.ReserveTaint(time.Now(), n.Name, n.ResourceVersion)
	if !ok {
		signal(s.wake) // it may have lost its turn
	}
	return ok
}

// tried tells how that write ended.
func (s *shell) tried(n *v1.Node, err error) {
	e := Event{Kind: Tried, Node: n.Name, Outcome: Unsure}
	switch {
	case err == nil:
		e.Outcome = Done
		s.meter.evictions.WithLabelValues(ZoneName(zoneOf(n.Labels))).Inc()
	case apierrors.IsConflict(err):
		e.Outcome = NotDone
	}
	s.observe(e)
}

// read takes in a node as the API answered with it, which must not change any
// more.
func (s *shell) read(n *v1.Node) {
	s.fresh.put(n)
	s.observe(Event{Kind: NodeRead, Node: n.Name, View: ViewOf(n), Version: version(n.ResourceVersion)})
}

func (s *shell) patch(ctx context.Context, n *v1.Node, what string, kind types.PatchType, body any, sub ...string) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	now, err := s.Client.CoreV1().Nodes().Patch(ctx, n.Name, kind, data, metav1.PatchOptions{FieldManager: manager}, sub...)
	if err != nil {
		return fmt.Errorf("patching %s of Node %s: %w", what, n.Name, err)
	}
	s.read(now)
	return nil
}

// markPods makes the ready pods of a node not ready, so that no traffic goes to
// a node that is not.
func (s *shell) markPods(ctx context.Context, n *v1.Node, v Verdict) error {
	if !v.PodsNotReady || s.unmarked(n, v) {
		return nil
	}
	pods, err := s.pods.ByIndex(kube.ByNode, n.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, obj := range pods {
		p := obj.(*v1.Pod)
		if !podutil.Ready(p) {
			continue
		}
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion},
			"status": map[string]any{"conditions": []map[string]any{
				{"type": v1.PodReady, "status": v1.ConditionFalse, "lastTransitionTime": metav1.Now()}}},
		})
		if err != nil {
			return err
		}
		_, err = s.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{FieldManager: manager}, "status")
		switch {
		case apierrors.IsNotFound(err), kube.Replaced(err) && !apierrors.IsConflict(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("marking Pod %s/%s not ready: %w", p.Namespace, p.Name, err))
		default:
			ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
			s.event(ref, v1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		}
	}
	return errors.Join(errs...)
}

func nodeRef(name string, uid types.UID) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: uid}
}

func (s *shell) event(ref *v1.ObjectReference, kind, reason, message string) {
	if s.Events != nil {
		s.Events.Event(ref, kind, reason, message)
	}
}
