package cloud

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Config is what both controllers need beside their environment.
type Config struct {
	Ask *Asker
	// Refresh is how often addresses are looked at; Monitor how often the
	// hosts of silent nodes are. A provider that tells of changes is asked
	// at each as well.
	Refresh, Monitor time.Duration
	// Workers initialise nodes at the same time.
	Workers int
}

const manager = "berth-cloud"

// base is what the two controllers share.
type base struct {
	controller.Env
	Config
	events record.EventRecorder
	queue  *controller.Queue
	nodes  cache.Indexer
}

func newBase(e controller.Env, cfg Config, name, component string) (*base, error) {
	if err := e.Check(); err != nil {
		return nil, err
	}
	return &base{Env: e, Config: cfg, events: e.Recorder(component), nodes: e.Informers.Core().V1().Nodes().Informer().GetIndexer(),
		queue: controller.NewMeasuredQueue(name, controller.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Minute})}, nil
}

// run feeds nodes to see and lets work work until ctx ends.
func (b *base) run(ctx context.Context, see func(n *v1.Node, first bool), work func(context.Context) error) error {
	seen, err := controller.On(ctx, b.Informers.Core().V1().Nodes().Informer(), func(old, n *v1.Node, gone bool) {
		if !gone {
			see(n, old == nil)
		}
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	if err := b.Synced(ctx, seen); err != nil {
		return err
	}
	defer b.Ask.notify(func() {
		for _, name := range b.nodes.ListKeys() {
			b.queue.Add(name)
		}
	})()
	return work(ctx)
}

func (b *base) node(name string) *v1.Node {
	if o, found, err := b.nodes.GetByKey(name); err == nil && found {
		return o.(*v1.Node)
	}
	return nil
}

// patch writes part of a node as it was looked at: anyone who wrote meanwhile wins.
func (b *base) patch(ctx context.Context, n *v1.Node, c kube.Change) (*v1.Node, error) {
	c.Manager = manager
	out, err := kube.Patch(ctx, b.Client.CoreV1().Nodes(), n, kube.Unchanged, c)
	if err != nil {
		return nil, fmt.Errorf("patching Node %s: %w", n.Name, err)
	}
	return out, nil
}

func (b *base) event(n *v1.Node, kind, reason, message string) {
	b.Tell(controller.Note{Kind: "Node", Object: n, Event: controller.Event{To: b.events, Type: kind, Reason: reason, Message: message}})
}

func (b *base) record(n *v1.Node, decision string, because ...journal.Fact) {
	b.Tell(controller.Note{Part: "cloud", Kind: "Node", Object: n, Decision: decision, Because: because})
}

// initialiser is the controller behind RunNodes.
type initialiser struct {
	*base
	synced, untainted prometheus.Histogram
}

// RunNodes initialises nodes that wait for their cloud, and keeps the addresses
// of the others as the cloud knows them, until ctx ends.
func RunNodes(ctx context.Context, e controller.Env, cfg Config) error {
	b, err := newBase(e, cfg, "cloud-node", "cloud-node-controller")
	if err != nil {
		return err
	}
	c := &initialiser{base: b}
	buckets := prometheus.ExponentialBuckets(1, 4, 6)
	if c.synced, err = kube.Registered(e.Registerer, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "node_controller_initial_node_sync_delay_seconds", Help: "Time from a node's creation to the end of its initialisation.",
		Buckets: buckets})); err != nil {
		return err
	}
	if c.untainted, err = kube.Registered(e.Registerer, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "node_controller_cloud_provider_taint_removal_delay_seconds",
		Help: "Time from a node's creation to the removal of its uninitialized taint.", Buckets: buckets})); err != nil {
		return err
	}
	return c.run(ctx, func(n *v1.Node, first bool) {
		switch {
		case uninitialized(n):
			c.queue.Add(n.Name)
		case first:
			c.queue.After(n.Name, rand.N(cfg.Refresh))
		}
	}, func(ctx context.Context) error { return e.Run(ctx, c.queue, cfg.Workers, c.sync) })
}

func (c *initialiser) sync(ctx context.Context, name string) (time.Duration, error) {
	n := c.node(name)
	if n == nil {
		return 0, nil
	}
	m, err := c.Ask.Metadata(ctx, n)
	if err != nil {
		return 0, err
	}
	// addresses come first: once the taint is off, pods may come.
	addresses, changed, err := addresses(n, m.NodeAddresses)
	if err != nil {
		return 0, fmt.Errorf("addresses of Node %s: %w", name, err)
	}
	waits := uninitialized(n)
	var id identity
	if waits {
		if id, err = initialise(n, m); err != nil {
			return 0, fmt.Errorf("initialising Node %s: %w", name, err)
		}
	}
	if changed {
		if n, err = c.patch(ctx, n, kube.Change{Status: map[string]any{"addresses": addresses}, Subresource: "status"}); err != nil {
			return 0, kube.IgnoreNotFound(err)
		}
	}
	if waits {
		if err := c.initialise(ctx, n, id); err != nil {
			return 0, kube.IgnoreNotFound(err)
		}
	}
	// At random around the period: nodes seen together are not asked for together.
	return c.Refresh/2 + rand.N(c.Refresh), nil
}

func (c *initialiser) initialise(ctx context.Context, n *v1.Node, id identity) error {
	_, err := c.patch(ctx, n, kube.Change{Labels: kube.Texts(id.Labels), Spec: map[string]any{"providerID": id.ProviderID,
		"taints": id.Taints}})
	if err != nil {
		return err
	}
	age := time.Since(n.CreationTimestamp.Time).Seconds()
	c.synced.Observe(age)
	c.untainted.Observe(age)
	c.event(n, v1.EventTypeNormal, "Synced", "Node synced successfully")
	c.record(n, "initialised for its cloud", journal.Fact{Name: "provider ID", Value: id.ProviderID})
	return nil
}
