package cloud

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudapi "k8s.io/cloud-provider/api"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// batch is how many hosts are asked for at once.
const batch = 200

// lifecycle is the controller behind RunLifecycle.
type lifecycle struct{ *base }

// RunLifecycle deletes silent nodes whose machine does not exist any more, and
// keeps the shutdown taint right, until ctx ends. A cloud tells no one that a
// machine went: those of silent nodes are asked for again and again.
func RunLifecycle(ctx context.Context, e controller.Env, cfg Config) error {
	b, err := newBase(e, cfg, "cloud-node-lifecycle", "cloud-node-lifecycle-controller")
	if err != nil {
		return err
	}
	c := &lifecycle{b}
	return c.run(ctx, func(n *v1.Node, _ bool) {
		if mustAsk(n) || follow(n, Running) != Nothing {
			c.queue.Add(n.Name)
		}
	}, func(ctx context.Context) error { return e.RunBatches(ctx, c.queue, batch, c.syncAll) })
}

// syncAll looks at nodes together, because a cloud tells of many hosts as
// cheaply as of one.
func (c *lifecycle) syncAll(ctx context.Context, names []string) map[string]controller.Outcome {
	out := map[string]controller.Outcome{}
	var silent []*v1.Node
	for _, name := range names {
		switch n := c.node(name); {
		case n == nil:
		case mustAsk(n):
			silent = append(silent, n)
		default:
			out[name] = c.outcome(n, c.act(ctx, n, follow(n, Running)))
		}
	}
	if len(silent) == 0 {
		return out
	}
	machines, err := c.Ask.InstanceStates(ctx, silent)
	for _, n := range silent {
		switch m, known := machines[n.Name]; {
		case known:
			out[n.Name] = c.outcome(n, c.act(ctx, n, follow(n, m)))
		case err != nil:
			out[n.Name] = controller.Outcome{Err: fmt.Errorf("asking for the machine of a silent node: %w", err)}
		default:
			out[n.Name] = controller.Outcome{Err: errors.New("asking for the machine of a silent node: no answer about it")}
		}
	}
	return out
}

// outcome sees to the next look at a node.
func (c *lifecycle) outcome(n *v1.Node, err error) controller.Outcome {
	o := controller.Outcome{Err: err}
	if mustAsk(n) {
		o.Again = c.Monitor
	}
	return o
}

func (c *lifecycle) act(ctx context.Context, n *v1.Node, a action) error {
	switch a {
	case Delete:
		return c.delete(ctx, n)
	case Taint:
		now := metav1.Now()
		t := shutdownTaint
		t.TimeAdded = &now
		_, err := c.patch(ctx, n, kube.Change{Spec: map[string]any{"taints": append(without(n, t.Key), t)}})
		if err == nil {
			c.record(n, "tainted "+t.Key+":"+string(t.Effect), journal.Fact{Name: "machine", Value: "is shut down"})
		}
		return kube.IgnoreNotFound(err)
	case Untaint:
		_, err := c.patch(ctx, n, kube.Change{Spec: map[string]any{"taints": without(n, cloudapi.TaintNodeShutdown)}})
		if err == nil {
			c.record(n, "freed from its shutdown taint", journal.Fact{Name: "node", Value: "is ready"})
		}
		return kube.IgnoreNotFound(err)
	}
	return nil
}

// delete looks at the node in the API once more: a cache may be late, and a
// node that became ready lives.
func (c *lifecycle) delete(ctx context.Context, n *v1.Node) error {
	nodes := c.Client.CoreV1().Nodes()
	live, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return kube.IgnoreNotFound(err)
	}
	if live.UID != n.UID || !mustAsk(live) {
		return nil
	}
	c.event(n, v1.EventTypeNormal, "DeletingNode", fmt.Sprintf("Deleting node %s because it does not exist in the cloud provider", n.Name))
	err = nodes.Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID,
		ResourceVersion: &live.ResourceVersion}})
	if err == nil {
		c.record(n, "deleted", journal.Fact{Name: "machine", Value: "does not exist in the cloud provider"},
			journal.Fact{Name: "provider ID",
				Value: n.Spec.ProviderID})
	}
	if err = kube.IgnoreNotFound(err); err != nil && !apierrors.IsConflict(err) && !errors.Is(err, context.Canceled) {
		c.event(n, v1.EventTypeWarning, "DeletingNodeFailed", fmt.Sprintf("Deleting node %s failed: %v", n.Name, err))
	}
	return err
}

// Defaults of upstream's flags, and limits of ours.
const (
	DefaultRefresh = 5 * time.Minute
	DefaultMonitor = 5 * time.Second
)

// DefaultLimits is what clouds bear.
var DefaultLimits = Limits{Rate: 10, Burst: 20, AtOnce: 10}
