package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const manager = "berth-node-health"

// work carries verdicts out until the queue closes.
func (s *shell) work(ctx context.Context) {
	for {
		name, closed := s.queue.Get()
		if closed {
			return
		}
		if err := s.write(ctx, name); err != nil && ctx.Err() == nil {
			if !apierrors.IsConflict(err) {
				s.Log.Warn("writing what is known of a node", "node", name, "error", err)
			}
			s.queue.AddRateLimited(name)
		} else {
			s.queue.Forget(name)
		}
		s.queue.Done(name)
	}
}

// write makes one node fit its verdict of this moment. Each patch carries the
// version it was computed from: whoever wrote meanwhile wins, and the next
// look starts from what they wrote.
func (s *shell) write(ctx context.Context, name string) error {
	began := time.Now()
	defer func() { s.meter.update.Observe(time.Since(began).Seconds()) }()
	obj, found, err := s.nodes.GetByKey(name)
	if err != nil || !found {
		return err
	}
	n := obj.(*v1.Node)
	s.mu.Lock()
	v := s.monitor.Verdict(name)
	s.mu.Unlock()
	if !v.Known || v.UID != string(n.UID) {
		return nil
	}
	if v.Unknown {
		if n, err = s.writeConditions(ctx, n); err != nil {
			return ignoreGone(err)
		}
	}
	if err := s.writeTaints(ctx, n, v.NoExecute); err != nil {
		return ignoreGone(err)
	}
	if v.PodsNotReady {
		return s.markPods(ctx, name)
	}
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (s *shell) writeConditions(ctx context.Context, n *v1.Node) (*v1.Node, error) {
	set := UnknownConditions(n, metav1.Now())
	if len(set) == 0 {
		return n, nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"status":   map[string]any{"conditions": set},
	})
	if err != nil {
		return nil, err
	}
	out, err := s.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: manager}, "status")
	if err != nil {
		return nil, fmt.Errorf("patching conditions of Node %s: %w", n.Name, err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
			s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "NodeNotReady", "Node "+n.Name+" status is now: NodeNotReady")
		}
	}
	return out, nil
}

func (s *shell) writeTaints(ctx context.Context, n *v1.Node, key string) error {
	now := metav1.Now()
	taints, changed := NoSchedule(n, now)
	taints, more := NoExecute(taints, key, now)
	if !changed && !more {
		return nil
	}
	if taints == nil {
		taints = []v1.Taint{}
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	if _, err := s.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("patching taints of Node %s: %w", n.Name, err)
	}
	return nil
}

// markPods makes the ready pods of a node not ready, so that no traffic goes
// to a place nobody vouches for.
func (s *shell) markPods(ctx context.Context, node string) error {
	pods, err := s.pods.ByIndex(byNode, node)
	if err != nil {
		return err
	}
	var errs []error
	for _, obj := range pods {
		p := obj.(*v1.Pod)
		if readyAt(p) < 0 {
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
		_, err = s.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: manager}, "status")
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("marking Pod %s/%s not ready: %w", p.Namespace, p.Name, err))
		default:
			s.event(&v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, v1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		}
	}
	return errors.Join(errs...)
}

// readyAt is the place of the pod's true Ready condition, -1 if there is none.
func readyAt(p *v1.Pod) int {
	for i, c := range p.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return i
		}
	}
	return -1
}

func nodeRef(name string, uid types.UID) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: uid}
}

func (s *shell) event(ref *v1.ObjectReference, kind, reason, message string) {
	if s.Events != nil {
		s.Events.Event(ref, kind, reason, message)
	}
}

// meter holds the metrics under upstream's names.
type meter struct {
	health, size, unhealthy *prometheus.GaugeVec
	evictions               *prometheus.CounterVec
	update                  prometheus.Histogram
}

func newMeter() *meter {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_collector_" + name, Help: help}, []string{"zone"})
	}
	return &meter{
		health:    gauge("zone_health", "Percentage of ready nodes in the zone."),
		size:      gauge("zone_size", "Nodes in the zone."),
		unhealthy: gauge("unhealthy_nodes_in_zone", "Nodes of the zone that are not ready."),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "node_collector_evictions_total", Help: "Nodes that got a NoExecute taint."}, []string{"zone"}),
		update:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "node_collector_update_node_health_duration_seconds", Help: "Time to write what is known of one node.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
	}
}

func (m *meter) register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.health, m.size, m.unhealthy, m.evictions, m.update} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *meter) zones(zs []ZoneView) {
	for _, g := range []*prometheus.GaugeVec{m.health, m.size, m.unhealthy} {
		g.Reset() // zones come and go
	}
	for _, z := range zs {
		all := z.Ready + z.NotReady
		m.size.WithLabelValues(z.Name).Set(float64(all))
		m.unhealthy.WithLabelValues(z.Name).Set(float64(z.NotReady))
		if all > 0 {
			m.health.WithLabelValues(z.Name).Set(100 * float64(z.Ready) / float64(all))
		}
	}
}
