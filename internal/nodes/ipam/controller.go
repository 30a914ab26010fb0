package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/journal"
)

// Config is what the controller needs. Pools are one per address family, in
// the order their ranges shall have in spec.podCIDRs.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Pools     []*Pool
	Events    record.EventRecorder
	Log       *slog.Logger
	Journal   journal.Sink
	Metrics   prometheus.Registerer
}

type controller struct {
	Config
	queue workqueue.TypedRateLimitingInterface[string]
	// owned are the ranges each node holds in the pools. Only run's goroutine
	// touches pools and owned.
	owned map[string][]netip.Prefix
	// waiting are nodes that found the pools empty.
	waiting map[string]bool
	// taken is the use of each pool as metrics show it.
	taken []atomic.Int64
}

// Run allocates until ctx ends. Before the first allocation it learns every
// range that a node has already, so a restart never gives one out twice.
func Run(ctx context.Context, cfg Config) error {
	c := &controller{Config: cfg, owned: map[string][]netip.Prefix{}, waiting: map[string]bool{}, taken: make([]atomic.Int64, len(cfg.Pools)),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "node-ipam"})}
	defer c.queue.ShutDown()
	c.measure()
	nodes := cfg.Informers.Core().V1().Nodes()
	enqueue := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			c.queue.Add(key)
		}
	}
	reg, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer nodes.Informer().RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), reg.HasSynced) {
		return ctx.Err()
	}
	all, err := nodes.Lister().List(labelsEverything)
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, n := range all {
		if err := c.learn(n); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	for {
		c.publish()
		key, shutdown := c.queue.Get()
		if shutdown {
			return ctx.Err()
		}
		node, err := nodes.Lister().Get(key)
		switch {
		case apierrors.IsNotFound(err):
			c.release(key)
		case err == nil:
			err = c.sync(ctx, node)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			c.Log.Warn("allocating pod CIDRs", "node", key, "error", err)
			c.queue.AddRateLimited(key)
		} else {
			c.queue.Forget(key)
		}
		c.queue.Done(key)
	}
}

// learn occupies what a node has. A range outside the cluster's is an error
// at start: the flags and the cluster contradict each other.
func (c *controller) learn(n *v1.Node) error {
	for _, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("Node %s: spec.podCIDRs %q: %w", n.Name, text, err)
		}
		if slices.Contains(c.owned[n.Name], p) {
			continue
		}
		if err := c.occupy(p); err != nil {
			return fmt.Errorf("Node %s: spec.podCIDRs: %w: give a --cluster-cidr that holds it, or remove the node", n.Name, err)
		}
		c.owned[n.Name] = append(c.owned[n.Name], p)
	}
	return nil
}

func (c *controller) occupy(p netip.Prefix) error {
	err := errors.New("no cluster CIDR is configured")
	for _, pool := range c.Pools {
		if err = pool.Occupy(p); err == nil {
			return nil
		}
	}
	return err
}

func (c *controller) free(ps []netip.Prefix) {
	for _, p := range ps {
		for _, pool := range c.Pools {
			if pool.Release(p) == nil {
				break
			}
		}
	}
}

// release gives back what a deleted node had and wakes those that wait.
func (c *controller) release(name string) {
	had := c.owned[name]
	delete(c.owned, name)
	delete(c.waiting, name)
	if len(had) == 0 {
		return
	}
	c.free(had)
	c.note(name, "", "released its pod CIDRs", "node", "deleted", had)
	for waiting := range c.waiting {
		c.queue.Add(waiting)
	}
}

func (c *controller) sync(ctx context.Context, n *v1.Node) error {
	if len(n.Spec.PodCIDRs) > 0 {
		delete(c.waiting, n.Name)
		return c.learn(n)
	}
	// A range allocated before but not seen in the cache yet stays ours: the
	// patch below is idempotent.
	got := c.owned[n.Name]
	if len(got) == 0 {
		for _, pool := range c.Pools {
			p, err := pool.Allocate()
			if err != nil {
				c.free(got)
				if !c.waiting[n.Name] {
					c.waiting[n.Name] = true
					c.event(n, "CIDRNotAvailable")
					c.note(n.Name, string(n.UID), "got no pod CIDR", "cause", err.Error(), nil)
				}
				return nil
			}
			got = append(got, p)
		}
	}
	if len(got) == 0 {
		return nil
	}
	c.owned[n.Name] = got
	if err := c.patch(ctx, n, got); err != nil {
		if apierrors.IsInvalid(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			// Somebody else set it, or the node went: the event that brings
			// the truth is on its way.
			delete(c.owned, n.Name)
			c.free(got)
			return nil
		}
		c.event(n, "CIDRAssignmentFailed")
		return fmt.Errorf("writing spec.podCIDRs of Node %s: %w", n.Name, err)
	}
	delete(c.waiting, n.Name)
	c.note(n.Name, string(n.UID), "got its pod CIDRs", "cause", "spec.podCIDRs was empty", got)
	return nil
}

// patch writes the ranges, only to the very node they were allocated for.
func (c *controller) patch(ctx context.Context, n *v1.Node, got []netip.Prefix) error {
	texts := make([]string, len(got))
	for i, p := range got {
		texts[i] = p.String()
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: "berth-ipam"})
	return err
}

func (c *controller) event(n *v1.Node, reason string) {
	if c.Events != nil {
		c.Events.Eventf(&v1.ObjectReference{Kind: "Node", Name: n.Name, UID: types.UID(n.Name)}, v1.EventTypeNormal, reason, "Node %s status is now: %s", n.Name, reason)
	}
}

func (c *controller) note(name, uid, decision, fact, value string, got []netip.Prefix) {
	if c.Journal == nil {
		return
	}
	because := []journal.Fact{{Name: fact, Value: value}}
	for _, p := range got {
		because = append(because, journal.Fact{Name: "range", Value: p.String()})
	}
	for _, pool := range c.Pools {
		because = append(because, journal.Fact{Name: "taken of " + pool.cluster.String(), Value: fmt.Sprintf("%d of %d", pool.Taken(), pool.Total())})
	}
	c.Journal.Append(journal.Record{Time: time.Now(), Part: "ipam", Object: journal.Ref{Kind: "Node", Name: name, UID: uid}, Decision: decision, Because: because})
}
