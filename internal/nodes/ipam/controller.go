package ipam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applyv1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Config is what the controller needs beside its environment. Ranges are at most
// one per address family, in the order their parts shall have in spec.podCIDRs;
// nothing is given out that overlaps Reserved.
type Config struct {
	Ranges   []Range
	Reserved []netip.Prefix
}

// workers write nodes at the same time.
const workers = 8

type reconciler struct {
	controller.Env
	events record.EventRecorder
	queue  *controller.Queue
	nodes  cache.Indexer
	meter  *meter

	// mu guards what follows. No API call is made while it is held.
	mu    sync.Mutex
	pools []*Pool
	// owned are the ranges each node holds in the pools.
	owned map[string][]netip.Prefix
	// waiting are nodes that found the pools empty.
	waiting map[string]bool
}

// Run allocates until ctx ends. Before the first allocation it learns every
// range that a node has already, so a restart never gives one out twice.
func Run(ctx context.Context, e controller.Env, cfg Config) error {
	if err := e.Check(); err != nil {
		return err
	}
	c := &reconciler{Env: e, events: e.Recorder("cidrAllocator"), owned: map[string][]netip.Prefix{}, waiting: map[string]bool{},
		queue: controller.NewMeasuredQueue("node-ipam", controller.Backoff{First: 50 * time.Millisecond, Most: time.Minute})}
	var err error
	if c.pools, err = Pools(cfg.Ranges, cfg.Reserved); err != nil {
		return err
	}
	if c.meter, err = newMeter(e.Registerer); err != nil {
		return err
	}
	inf := e.Informers.Core().V1().Nodes().Informer()
	c.nodes = inf.GetIndexer()
	seen, err := controller.On(ctx, inf, func(_, n *v1.Node, _ bool) { c.queue.Add(n.Name) })
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	if err := e.Synced(ctx, seen); err != nil {
		return err
	}
	for _, obj := range c.nodes.List() {
		if err := c.learn(obj.(*v1.Node)); err != nil {
			return err
		}
	}
	c.measure()
	return e.Run(ctx, c.queue, workers, c.syncKey)
}

// syncKey brings the pools in line with a cached node, or with its deletion.
func (c *reconciler) syncKey(ctx context.Context, name string) (time.Duration, error) {
	obj, found, err := c.nodes.GetByKey(name)
	if err != nil {
		return 0, err
	}
	if !found {
		c.release(name)
		return 0, nil
	}
	return 0, c.sync(ctx, obj.(*v1.Node))
}

// learn makes the pools agree with what a node has, which no one can change
// any more. A range outside the cluster's is an error at start: the flags and
// the cluster contradict each other.
func (c *reconciler) learn(n *v1.Node) error {
	var has []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("Node %s: spec.podCIDRs %q: %w", n.Name, text, err)
		}
		has = append(has, p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.owned[n.Name], has) {
		return nil
	}
	c.free(c.owned[n.Name]) // those of a node of this name that is no more
	delete(c.owned, n.Name)
	for _, p := range has {
		if err := c.occupy(p); err != nil {
			return fmt.Errorf("Node %s: spec.podCIDRs: %w: give a --cluster-cidr that holds it, or remove the node", n.Name, err)
		}
		c.owned[n.Name] = append(c.owned[n.Name], p)
	}
	return nil
}

func (c *reconciler) occupy(p netip.Prefix) error {
	err := errors.New("no cluster CIDR is configured")
	for _, pool := range c.pools {
		if err = pool.Occupy(p); err == nil {
			return nil
		}
	}
	return err
}

func (c *reconciler) free(ps []netip.Prefix) {
	for _, p := range ps {
		for _, pool := range c.pools {
			if pool.Release(p) == nil {
				c.meter.released(pool)
				break
			}
		}
	}
}

// release gives back what a deleted node had and wakes those that wait.
func (c *reconciler) release(name string) {
	c.mu.Lock()
	had := c.owned[name]
	delete(c.owned, name)
	delete(c.waiting, name)
	c.free(had)
	var wake []string
	if len(had) > 0 {
		for name := range c.waiting {
			wake = append(wake, name)
		}
	}
	c.mu.Unlock()
	if len(had) == 0 {
		return
	}
	c.record(name, "", "released its pod CIDRs", "node", "deleted", had)
	for _, name := range wake {
		c.queue.Add(name)
	}
}

func (c *reconciler) sync(ctx context.Context, n *v1.Node) error {
	if len(n.Spec.PodCIDRs) > 0 {
		c.mu.Lock()
		delete(c.waiting, n.Name)
		c.mu.Unlock()
		return c.learn(n)
	}
	got, first, err := c.allocate(n.Name)
	if err != nil {
		if first {
			c.event(n, "CIDRNotAvailable")
			c.record(n.Name, n.UID, "got no pod CIDR", "cause", err.Error(), nil)
		}
		return nil // the release of a range asks again
	}
	if err := c.patch(ctx, n, got); err != nil {
		if apierrors.IsInvalid(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			// Someone else set it, or the node went: the event that brings
			// the truth is on its way.
			c.release(n.Name)
			return nil
		}
		c.event(n, "CIDRAssignmentFailed")
		return fmt.Errorf("writing spec.podCIDRs of Node %s: %w", n.Name, err)
	}
	c.record(n.Name, n.UID, "got its pod CIDRs", "cause", "spec.podCIDRs was empty", got)
	return nil
}

// allocate takes one range of each pool for a node. A range taken before but
// not seen in the cache yet stays its own: writing it again changes nothing.
// first says that this is the first time the node finds a pool empty.
func (c *reconciler) allocate(name string) (got []netip.Prefix, first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if got = c.owned[name]; len(got) > 0 {
		return got, false, nil
	}
	for _, pool := range c.pools {
		p, err := pool.Allocate()
		if err != nil {
			c.free(got)
			first = !c.waiting[name]
			c.waiting[name] = true
			return nil, first, err
		}
		c.meter.allocated(pool)
		got = append(got, p)
	}
	delete(c.waiting, name)
	c.owned[name] = got
	return got, false, nil
}

// patch writes the ranges, only to the very node they were allocated for.
func (c *reconciler) patch(ctx context.Context, n *v1.Node, got []netip.Prefix) error {
	texts := make([]string, len(got))
	for i, p := range got {
		texts[i] = p.String()
	}
	_, err := kube.Patch(ctx, c.Client.CoreV1().Nodes(), n, kube.SameObject,
		kube.Change{Spec: applyv1.NodeSpec().WithPodCIDR(texts[0]).WithPodCIDRs(texts...), Strategic: true, Manager: "berth-ipam"})
	return err
}

func (c *reconciler) event(n *v1.Node, reason string) {
	c.Tell(controller.Note{Kind: "Node", Object: n, Event: controller.Event{To: c.events, Reason: reason,
		Message: fmt.Sprintf("Node %s status is now: %s", n.Name, reason)}})
}

func (c *reconciler) record(name string, uid types.UID, decision, fact, value string, got []netip.Prefix) {
	because := []journal.Fact{{Name: fact, Value: value}}
	for _, p := range got {
		because = append(because, journal.Fact{Name: "range", Value: p.String()})
	}
	c.mu.Lock()
	for _, pool := range c.pools {
		because = append(because, journal.Fact{Name: "taken of " + pool.cluster.String(), Value: fmt.Sprintf("%d of %d", pool.Used(),
			pool.Total())})
	}
	c.mu.Unlock()
	c.Tell(controller.Note{Part: "ipam", Kind: "Node", Object: &metav1.ObjectMeta{Name: name, UID: uid}, Decision: decision,
		Because: because, Level: slog.LevelDebug})
}
