package cloud

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Config is what both controllers need. Events and Metrics may be nil.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Events    record.EventRecorder // component cloud-node-controller, or cloud-node-lifecycle-controller
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	Ask       *Asker
	// Refresh is how often addresses are looked at; Monitor how often the
	// machines of silent nodes are. A provider that tells of changes is asked
	// at each as well.
	Refresh, Monitor time.Duration
	// Workers initialise nodes at the same time.
	Workers int
}

const manager = "berth-cloud"

// base is what the two controllers share.
type base struct {
	Config
	queue kube.Queue[string]
	nodes cache.Indexer
}

func newBase(cfg Config, name string) *base {
	return &base{Config: cfg, nodes: cfg.Informers.Core().V1().Nodes().Informer().GetIndexer(),
		queue: kube.NewQueue[string](name, 100*time.Millisecond, 5*time.Minute)}
}

// run feeds nodes to see and lets work work until ctx ends.
func (b *base) run(ctx context.Context, see func(n *v1.Node, first bool), work func(context.Context)) error {
	defer b.queue.ShutDown()
	inf := b.Informers.Core().V1().Nodes().Informer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { see(o.(*v1.Node), true) },
		UpdateFunc: func(_, o any) { see(o.(*v1.Node), false) },
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	b.Informers.Start(ctx.Done())
	if !kube.Synced(ctx, reg) {
		return ctx.Err()
	}
	defer b.Ask.notify(func() {
		for _, name := range b.nodes.ListKeys() {
			b.queue.Add(name)
		}
	})()
	work(ctx)
	return ctx.Err()
}

func (b *base) node(name string) *v1.Node {
	if o, found, err := b.nodes.GetByKey(name); err == nil && found {
		return o.(*v1.Node)
	}
	return nil
}

// patch writes part of a node as it was looked at: whoever wrote meanwhile wins.
func (b *base) patch(ctx context.Context, n *v1.Node, body map[string]any, sub ...string) (*v1.Node, error) {
	meta, _ := body["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		body["metadata"] = meta
	}
	meta["uid"], meta["resourceVersion"] = n.UID, n.ResourceVersion
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	out, err := b.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: manager}, sub...)
	if err != nil {
		return nil, fmt.Errorf("patching Node %s: %w", n.Name, err)
	}
	return out, nil
}

func (b *base) event(n *v1.Node, kind, reason, message string) {
	if b.Events != nil {
		b.Events.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}, kind, reason, message)
	}
}

func (b *base) note(n *v1.Node, decision string, because ...journal.Fact) {
	b.Log.Info(decision, "node", n.Name)
	b.Journal.Append(journal.Record{Time: time.Now(), Part: "cloud", Object: journal.Ref{Kind: "Node", Name: n.Name, UID: string(n.UID)}, Decision: decision, Because: because})
}

// initialiser is the controller behind RunNodes.
type initialiser struct {
	*base
	synced, untainted prometheus.Histogram
}

// RunNodes initialises nodes that wait for their cloud, and keeps the addresses
// of the others as the cloud knows them, until ctx ends.
func RunNodes(ctx context.Context, cfg Config) error {
	c := &initialiser{base: newBase(cfg, "cloud-node")}
	buckets := prometheus.ExponentialBuckets(1, 4, 6)
	var err error
	if c.synced, err = kube.Registered(cfg.Metrics, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "node_controller_initial_node_sync_delay_seconds", Help: "Time from a node's creation to the end of its initialisation.", Buckets: buckets})); err != nil {
		return err
	}
	if c.untainted, err = kube.Registered(cfg.Metrics, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "node_controller_cloud_provider_taint_removal_delay_seconds", Help: "Time from a node's creation to the removal of its uninitialized taint.", Buckets: buckets})); err != nil {
		return err
	}
	return c.run(ctx, func(n *v1.Node, first bool) {
		switch {
		case Uninitialized(n):
			c.queue.Add(n.Name)
		case first:
			c.queue.AddAfter(n.Name, rand.N(cfg.Refresh))
		}
	}, func(ctx context.Context) {
		kube.Work(ctx, c.queue, cfg.Workers, c.Log, "making a node agree with its machine", c.sync)
	})
}

func (c *initialiser) sync(ctx context.Context, name string) error {
	n := c.node(name)
	if n == nil {
		return nil
	}
	m, err := c.Ask.Metadata(ctx, n)
	if err != nil {
		return err
	}
	// Addresses come first: once the taint is off, pods may come.
	addresses, changed, err := Addresses(n, m.NodeAddresses)
	if err != nil {
		return fmt.Errorf("addresses of Node %s: %w", name, err)
	}
	waits := Uninitialized(n)
	var id Identity
	if waits {
		if id, err = Initialise(n, m); err != nil {
			return fmt.Errorf("initialising Node %s: %w", name, err)
		}
	}
	if changed {
		if n, err = c.patch(ctx, n, map[string]any{"status": map[string]any{"addresses": addresses}}, "status"); err != nil {
			return ignoreGone(err)
		}
	}
	if waits {
		if err := c.initialise(ctx, n, id); err != nil {
			return ignoreGone(err)
		}
	}
	// At random around the period: nodes seen together are not asked for together.
	c.queue.AddAfter(name, c.Refresh/2+rand.N(c.Refresh))
	return nil
}

func (c *initialiser) initialise(ctx context.Context, n *v1.Node, id Identity) error {
	_, err := c.patch(ctx, n, map[string]any{
		"metadata": map[string]any{"labels": id.Labels},
		"spec":     map[string]any{"providerID": id.ProviderID, "taints": id.Taints},
	})
	if err != nil {
		return err
	}
	age := time.Since(n.CreationTimestamp.Time).Seconds()
	c.synced.Observe(age)
	c.untainted.Observe(age)
	c.event(n, v1.EventTypeNormal, "Synced", "Node synced successfully")
	c.note(n, "initialised for its cloud", journal.Fact{Name: "provider ID", Value: id.ProviderID})
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
