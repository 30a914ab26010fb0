// Package policy enforces NetworkPolicy on one node: it watches pods,
// namespaces and policies, and keeps the node's nftables as they say.
//
// The model decides (internal/policy/model), the kernel package writes; here
// is the loop between them, which sleeps until an event arrives.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/policy/kernel"
	"github.com/berth-dev/berth/internal/policy/model"
)

const (
	// lookEvery is how often the kernel is compared with what was written: a
	// safety net, for no one else should touch the tables.
	lookEvery = 5 * time.Minute
)

// writeRetry are the pauses before all is written again after a failed write.
var writeRetry = controller.Backoff{First: time.Second, Most: 10 * time.Second}

// Config is what an Enforcer is made with.
type Config struct {
	// NodeName is the node whose pods are guarded.
	NodeName string
	// Informers is shared with other roles; Run starts what it asks for.
	Informers informers.SharedInformerFactory
	// Instance names the tables: "<Instance>-policy". Every cluster on one
	// machine needs its own.
	Instance string
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	Journal  journal.Sink
	// Bridge says that pods hang on one bridge: policies hold between them only
	// where the kernel passes bridged packets to netfilter.
	Bridge bool

	// kernel opens another kernel than the host's, in tests.
	kernel kernel.Open
	// settings is another directory than the kernel's of bridges, in tests.
	settings string
}

// tableName is the name of an instance's tables.
func tableName(instance string) string { return instance + "-policy" }

// Enforcer keeps the kernel equal to the policies while Run runs.
type Enforcer struct {
	cfg     Config
	writer  *kernel.Writer
	metrics *metrics
	wake    chan struct{}

	mu    sync.Mutex
	queue []event
	// early are addresses of this node's pods as the node itself knows them.
	early map[model.Key]early

	model  *model.Model
	synced bool
}

// event changes the model; done, if set, is told when the kernel has it: whether
// a policy selects the pod of key. It has room for that.
type event struct {
	change func(*model.Model)
	key    model.Key
	done   chan<- bool
}

// New prepares an Enforcer; the kernel is not touched before Run.
func New(cfg Config) (*Enforcer, error) {
	if cfg.NodeName == "" || cfg.Informers == nil || cfg.Instance == "" {
		return nil, errors.New("configuring network policies: NodeName, Informers and Instance are needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	if cfg.Metrics == nil {
		cfg.Metrics = prometheus.NewRegistry()
	}
	if cfg.settings == "" {
		cfg.settings = bridgeSettings
	}
	if cfg.kernel == nil {
		cfg.kernel = kernel.Host
	}
	w, err := kernel.New(tableName(cfg.Instance), cfg.kernel)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of network policies: %w", err)
	}
	return &Enforcer{cfg: cfg, writer: w, metrics: m, wake: make(chan struct{}, 1), early: map[model.Key]early{}}, nil
}

// Run enforces until ctx ends. The rules stay when it returns; a later Run
// replaces them without a gap, Cleanup removes them.
func (e *Enforcer) Run(ctx context.Context) error {
	e.model, e.synced = model.New(), false
	if err := seeBridges(e.cfg.settings, true, true); err != nil && e.cfg.Bridge {
		e.cfg.Log.Warn("network policies do not hold between pods on one bridge of this node: pods that one selects do not start", "err",
			err)
	}
	synced, stop, err := e.watch()
	if err != nil {
		return err
	}
	defer stop()
	e.cfg.Informers.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	e.loop(ctx)
	return e.writer.Close()
}

func (e *Enforcer) push(ev event) {
	e.mu.Lock()
	e.queue = append(e.queue, ev)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// loop moves events into the model and the difference into the kernel. What
// comes while a write runs is taken together by the next.
func (e *Enforcer) loop(ctx context.Context) {
	retry := controller.Retry{Backoff: writeRetry}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-next.C:
			e.look()
		}
		after := lookEvery + rand.N(lookEvery/5)
		if err := e.step(); err != nil {
			e.metrics.failures.Inc()
			e.synced = false
			after = retry.Failed()
			e.cfg.Log.Error("writing network policies failed, writing all of them again", "after", after, "err", err)
		} else {
			retry.Succeeded()
		}
		next.Reset(after)
	}
}

// look finds out whether another party changed the tables.
func (e *Enforcer) look() {
	if !e.synced {
		return
	}
	// The kernel's list of a hash table can miss rows while the table is
	// resized: one look that finds too few is no proof.
	ok := false
	for try := 0; try < 2 && !ok; try++ {
		var err error
		if ok, err = e.writer.Stands(e.model.Snapshot()); err != nil {
			e.cfg.Log.Error("comparing network policies with the kernel", "err", err)
			return
		}
	}
	if !ok {
		e.metrics.repairs.Inc()
		e.synced = false
		e.cfg.Log.Warn("another party changed the tables of network policies: writing them again", "table", tableName(e.cfg.Instance))
	}
}

func (e *Enforcer) step() error {
	e.mu.Lock()
	queue := e.queue
	e.queue = nil
	e.mu.Unlock()
	for _, ev := range queue {
		ev.change(e.model)
	}
	began := time.Now()
	c := e.model.Commit()
	for _, err := range c.Problems {
		e.cfg.Log.Warn("a network policy has a part that allows nothing, since it cannot be understood", "err", err)
	}
	var err error
	switch {
	case !e.synced:
		c = e.model.Snapshot()
		err = e.writer.Replace(c)
	case !c.Empty():
		err = e.writer.Apply(c)
	}
	if err != nil {
		// Those who wait for an event go on waiting for it.
		e.mu.Lock()
		for _, ev := range queue {
			if ev.done != nil {
				e.queue = append(e.queue, event{func(*model.Model) {}, ev.key, ev.done})
			}
		}
		e.mu.Unlock()
		return err
	}
	if !e.synced {
		e.synced = true
		e.cfg.Log.Info("network policies are in force", "table", tableName(e.cfg.Instance), "chains", len(c.Chains), "rows", len(c.Add),
			"took", time.Since(began))
	}
	for _, ev := range queue {
		if ev.done != nil {
			ev.done <- e.model.Selected(ev.key)
		}
	}
	e.metrics.observe(c, time.Since(began))
	e.report(c)
	return nil
}

// report keeps the decisions that pods feel: who is guarded by what.
func (e *Enforcer) report(c *model.Changes) {
	if len(c.Guard)+len(c.Unguard)+len(c.Chains) == 0 {
		return
	}
	e.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "network policy", Object: journal.Ref{Kind: "Node", Name: e.cfg.NodeName},
		Decision: "changed network policy rules", Because: []journal.Fact{
			{Name: "pod addresses guarded", Value: fmt.Sprint(len(c.Guard))},
			{Name: "pod addresses let go", Value: fmt.Sprint(len(c.Unguard))},
			{Name: "chains written", Value: fmt.Sprint(len(c.Chains))}, {Name: "rows", Value: fmt.Sprint(len(c.Add) + len(c.Del))}}})
}

// Cleanup removes the tables of an instance, and nothing else. It is no error
// when there are none.
func Cleanup(instance string) error {
	if instance == "" {
		return errors.New("removing the tables of network policies: the instance has no name")
	}
	w, err := kernel.New(tableName(instance), kernel.Host)
	if err != nil {
		return err
	}
	return errors.Join(w.Remove(), w.Close())
}
