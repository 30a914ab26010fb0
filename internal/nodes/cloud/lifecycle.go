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

	"github.com/berth-dev/berth/internal/journal"
)

// batch is how many machines are asked for at once.
const batch = 200

// lifecycle is the controller behind RunLifecycle.
type lifecycle struct{ *base }

// RunLifecycle deletes silent nodes whose machine does not exist any more, and
// keeps the shutdown taint right, until ctx ends. A cloud tells nobody that a
// machine went: those of silent nodes are asked for again and again.
func RunLifecycle(ctx context.Context, cfg Config) error {
	c := &lifecycle{newBase(cfg, "cloud-node-lifecycle")}
	return c.run(ctx, func(n *v1.Node, _ bool) {
		if Silent(n) || Follow(n, Running) != Nothing {
			c.queue.Add(n.Name)
		}
	}, c.work)
}

// work looks at nodes in batches, where kube.Work would look at each alone.
func (c *lifecycle) work(ctx context.Context) {
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	for {
		names, closed := c.take()
		if closed {
			return
		}
		c.syncAll(ctx, names)
		for _, name := range names {
			c.queue.Done(name)
		}
	}
}

// take waits for a node to look at, and takes others that are due with it.
func (c *lifecycle) take() (names []string, closed bool) {
	for len(names) == 0 || len(names) < batch && c.queue.Len() > 0 {
		name, closed := c.queue.Get()
		if closed {
			return nil, true
		}
		names = append(names, name)
	}
	return names, false
}

func (c *lifecycle) syncAll(ctx context.Context, names []string) {
	var silent, ready []*v1.Node
	for _, name := range names {
		switch n := c.node(name); {
		case n == nil:
			c.queue.Forget(name)
		case Silent(n):
			silent = append(silent, n)
		default:
			ready = append(ready, n)
		}
	}
	for _, n := range ready {
		c.done(ctx, n, c.act(ctx, n, Follow(n, Running)))
	}
	if len(silent) == 0 {
		return
	}
	machines, err := c.Ask.Machines(ctx, silent)
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("asking for the machines of silent nodes", "error", err)
	}
	for _, n := range silent {
		m, known := machines[n.Name]
		if !known {
			c.queue.AddRateLimited(n.Name)
			continue
		}
		c.done(ctx, n, c.act(ctx, n, Follow(n, m)))
	}
}

// done sees to the next look at a node.
func (c *lifecycle) done(ctx context.Context, n *v1.Node, err error) {
	if err != nil && ctx.Err() == nil {
		if !apierrors.IsConflict(err) {
			c.Log.Warn("following a machine", "node", n.Name, "error", err)
		}
		c.queue.AddRateLimited(n.Name)
		return
	}
	c.queue.Forget(n.Name)
	if Silent(n) {
		c.queue.AddAfter(n.Name, c.Monitor)
	}
}

func (c *lifecycle) act(ctx context.Context, n *v1.Node, a Action) error {
	switch a {
	case Delete:
		return c.delete(ctx, n)
	case Taint:
		now := metav1.Now()
		t := shutdownTaint
		t.TimeAdded = &now
		_, err := c.patch(ctx, n, map[string]any{"spec": map[string]any{"taints": append(without(n, t.Key), t)}})
		if err == nil {
			c.note(n, "tainted "+t.Key+":"+string(t.Effect), journal.Fact{Name: "machine", Value: "is shut down"})
		}
		return ignoreGone(err)
	case Untaint:
		_, err := c.patch(ctx, n, map[string]any{"spec": map[string]any{"taints": without(n, cloudapi.TaintNodeShutdown)}})
		if err == nil {
			c.note(n, "freed from its shutdown taint", journal.Fact{Name: "node", Value: "is ready"})
		}
		return ignoreGone(err)
	}
	return nil
}

// delete looks at the node in the API once more: a cache may be late, and a
// node that became ready lives.
func (c *lifecycle) delete(ctx context.Context, n *v1.Node) error {
	nodes := c.Client.CoreV1().Nodes()
	live, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return ignoreGone(err)
	}
	if live.UID != n.UID || !Silent(live) {
		return nil
	}
	c.event(n, v1.EventTypeNormal, "DeletingNode", fmt.Sprintf("Deleting node %s because it does not exist in the cloud provider", n.Name))
	err = nodes.Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion}})
	if err == nil {
		c.note(n, "deleted", journal.Fact{Name: "machine", Value: "does not exist in the cloud provider"}, journal.Fact{Name: "provider ID", Value: n.Spec.ProviderID})
	}
	if err = ignoreGone(err); err != nil && !apierrors.IsConflict(err) && !errors.Is(err, context.Canceled) {
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
