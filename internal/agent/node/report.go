package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/journal"
)

const (
	// startupHold is how long a restarted agent leaves a Ready node Ready
	// while it has not heard from the runtime yet.
	startupHold    = 10 * time.Second
	requestTimeout = 10 * time.Second
)

// reporter registers the Node and keeps its status true. It is the only writer
// of both.
type reporter struct {
	cfg     Config
	facts   *facts
	seen    *seen
	metrics *metrics
	cadence cadence

	started      time.Time
	startup      startup
	registered   bool
	reconciled   types.UID // the Node whose metadata was compared already
	schedulable  *bool
	wasReady     bool
	tries        int
	registerNext time.Time
}

func (r *reporter) run(ctx context.Context) {
	r.started = time.Now()
	r.startup = startup{booted: bootTime(r.started), began: r.started}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.facts.changed:
		case <-r.cfg.Board.statusCh:
		case <-r.seen.statusCh:
		}
		wake := r.pass(ctx)
		timer.Reset(max(time.Until(wake), time.Millisecond))
	}
}

// pass does what is due and returns when to look again at the latest.
func (r *reporter) pass(ctx context.Context) time.Time {
	now := time.Now()
	node := r.seen.get()
	if node == nil {
		if r.registered {
			r.registered = false
			r.note("saw its Node object deleted; registering again", journal.Fact{Name: "registerNode", Value: fmt.Sprint(r.cfg.Register)})
		}
		if now.Before(r.registerNext) {
			return r.registerNext
		}
		if err := r.register(ctx); err != nil {
			if ctx.Err() == nil {
				r.cfg.Log.Warn("registering the node", "node", r.cfg.Settings.Identity.Name, "try", r.tries+1, "err", err)
			}
			r.registerNext = time.Now().Add(backoff(r.tries, rand.Float64()))
			r.tries++
			return r.registerNext
		}
		r.tries = 0
		node = r.seen.get()
		if node == nil {
			return time.Now().Add(time.Millisecond)
		}
	}
	r.registered = true
	compare := reconcileHost
	if r.reconciled != node.UID {
		compare = reconcile
	}
	if change := compare(r.cfg.Settings.Identity, node); r.reconciled != node.UID || !change.Empty() {
		if err := r.reconcile(ctx, node, change); err != nil {
			r.cfg.Log.Warn("correcting the node's labels and annotations", "err", err)
			r.cadence.Failed(now, rand.Float64())
			return r.cadence.Wake(UrgentChange)
		}
		r.reconciled = node.UID
	}
	r.watchSchedulable(node)
	return r.post(ctx, node)
}

// post sends the status if it is due.
func (r *reporter) post(ctx context.Context, node *v1.Node) time.Time {
	now := time.Now()
	in := r.facts.snapshot()
	status, transitions := status(node.Status, r.cfg.Settings, in, now)
	change := compare(node.Status, status)
	if until, hold := r.hold(node, status, in, now); hold {
		return until
	}
	if !r.cadence.Due(now, change) {
		return earliest(r.cadence.Wake(change), runtimeDeadline(in, now))
	}
	patch, err := statusPatch(node.Status, status)
	if err == nil {
		asking, cancel := context.WithTimeout(ctx, requestTimeout)
		var written *v1.Node
		written, err = r.cfg.Client.CoreV1().Nodes().Patch(asking, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
			"status")
		cancel()
		if err == nil {
			r.posted(node, written, transitions, change != NoChange)
			return earliest(r.cadence.Wake(NoChange), runtimeDeadline(in, now))
		}
	}
	if apierrors.IsNotFound(err) {
		r.seen.forget(node.UID)
		return time.Now()
	}
	if ctx.Err() == nil {
		r.cfg.Log.Warn("posting the node status", "node", node.Name, "err", err)
		r.metrics.statusErrors.Inc()
	}
	r.cadence.Failed(time.Now(), rand.Float64())
	return r.cadence.Wake(change)
}

// hold tells whether a restarted agent should keep quiet because all it could
// say against a Ready node is that it does not know yet.
func (r *reporter) hold(node *v1.Node, status v1.NodeStatus, in Inputs, now time.Time) (time.Time, bool) {
	until := r.started.Add(startupHold)
	if !now.Before(until) || in.ShuttingDown {
		return until, false
	}
	rebooted := in.Host != nil && node.Status.NodeInfo.BootID != in.Host.BootID
	was, is := findCondition(node.Status.Conditions, v1.NodeReady), findCondition(status.Conditions, v1.NodeReady)
	if rebooted || was == nil || was.Status != v1.ConditionTrue || is.Status == v1.ConditionTrue {
		return until, false
	}
	return until, !r.wasReady
}

func (r *reporter) posted(before, written *v1.Node, transitions []transition, changed bool) {
	now := time.Now()
	r.cadence.Posted(now, changed, rand.Float64())
	r.seen.learn(written)
	ready := findCondition(written.Status.Conditions, v1.NodeReady)
	if ready != nil && ready.Status == v1.ConditionTrue && !r.wasReady {
		r.wasReady = true
		r.metrics.ready.Set(now.Sub(r.started).Seconds())
		r.startup.ready = now
		r.metrics.show(r.startup)
		r.cfg.Log.Info("node is ready", "node", written.Name, "after", now.Sub(r.started).Round(time.Millisecond))
	}
	for _, transition := range transitions {
		r.cfg.Events.Event(nodeRef(written.Name), transition.Type, transition.Reason, transition.Text)
	}
	for _, condition := range written.Status.Conditions {
		was := findCondition(before.Status.Conditions, condition.Type)
		if was != nil && was.Status == condition.Status && was.Reason == condition.Reason && was.Message == condition.Message {
			continue
		}
		r.note("posted condition "+string(condition.Type)+"="+string(condition.Status),
			journal.Fact{Name: "reason", Value: condition.Reason}, journal.Fact{Name: "message", Value: condition.Message})
	}
}

// register makes sure that the Node exists and learns its state. The object is
// created with the status as far as it is known.
func (r *reporter) register(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if r.startup.asked.IsZero() {
		r.startup.asked = time.Now()
	}
	id := r.cfg.Settings.Identity
	nodes := r.cfg.Client.CoreV1().Nodes()
	existing, err := nodes.Get(asking, id.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		r.note("found its Node object registered",
			journal.Fact{Name: "created", Value: existing.CreationTimestamp.UTC().Format(time.RFC3339)})
		r.seen.learn(existing)
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading node %q: %w", id.Name, err)
	case !r.cfg.Register:
		return fmt.Errorf("reading node %q: it does not exist and registerNode is false: create it", id.Name)
	}
	node := initial(id)
	in := r.facts.snapshot()
	var transitions []transition
	node.Status, transitions = status(node.Status, r.cfg.Settings, in, time.Now())
	created, err := nodes.Create(asking, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating node %q: %w", id.Name, err)
	}
	r.reconciled = created.UID
	if r.startup.ready.IsZero() {
		r.startup.registered = time.Now()
	}
	r.cfg.Log.Info("registered the node", "node", created.Name, "after", time.Since(r.started).Round(time.Millisecond))
	r.note("registered", journal.Fact{Name: "uid", Value: string(created.UID)})
	r.posted(&v1.Node{}, created, transitions, true)
	return nil
}

func (r *reporter) reconcile(ctx context.Context, node *v1.Node, change metaChange) error {
	if change.Empty() {
		return nil
	}
	patch, err := metaPatch(change)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	written, err := r.cfg.Client.CoreV1().Nodes().Patch(asking, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patching node %q: %w", node.Name, err)
	}
	r.seen.learn(written)
	r.note("corrected labels or annotations", journal.Fact{Name: "patch", Value: string(patch)})
	return nil
}

// watchSchedulable records cordon and uncordon as events of the node.
func (r *reporter) watchSchedulable(node *v1.Node) {
	schedulable := !node.Spec.Unschedulable
	if r.schedulable != nil && *r.schedulable != schedulable {
		reason := "NodeNotSchedulable"
		if schedulable {
			reason = "NodeSchedulable"
		}
		event := statusEvent(node.Name, reason)
		r.cfg.Events.Event(nodeRef(node.Name), event.Type, event.Reason, event.Text)
	}
	r.schedulable = &schedulable
}

func (r *reporter) note(decision string, because ...journal.Fact) {
	r.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "agent",
		Object: journal.Ref{Kind: "Node", Name: r.cfg.Settings.Identity.Name}, Decision: decision, Because: because})
}

// runtimeDeadline is when the runtime's silence becomes a cause of its own;
// zero if that has happened already.
func runtimeDeadline(in Inputs, now time.Time) time.Time {
	since := in.Runtime.LastAnswer
	if since.IsZero() {
		since = in.Runtime.Asked
	}
	deadline := since.Add(runtimeTimeout)
	if since.IsZero() || deadline.Before(now) {
		return time.Time{}
	}
	return deadline
}

// earliest ignores zero times in b.
func earliest(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
