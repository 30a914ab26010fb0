package fleet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/agent/node"
)

// How many requests are made at a time: for leases, and for everything else.
const (
	leaseWorkers = 32
	restWorkers  = 32
)

// fleet is a number of hollow nodes that share clients, watches, workers and
// one timing wheel.
type fleet struct {
	cfg    Config
	client kubernetes.Interface
	agents *node.Hollows
	host   node.Inputs
	// well and unwell are the boards of agents that are ready and that say
	// they are not.
	well, unwell *node.StatusInputs
	clock        *clock
	leases, rest *pool
	nodes        []*hollow
	byName       map[string]*hollow
	podIPs       atomic.Uint32
	stats        stats
}

// clients makes one client for leases, so that nothing delays a heartbeat, and
// one for the rest.
func clients(base *rest.Config) (all, leases kubernetes.Interface, err error) {
	make := func(agent string) (kubernetes.Interface, error) {
		c := rest.CopyConfig(base)
		c.QPS, c.UserAgent = -1, agent
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
		// A transport of its own means a connection of its own.
		h, err := rest.HTTPClientFor(c)
		if err != nil {
			return nil, fmt.Errorf("making a client: %w", err)
		}
		return kubernetes.NewForConfigAndClient(c, h)
	}
	if all, err = make("berth-fleet"); err != nil {
		return nil, nil, err
	}
	leases, err = make("berth-fleet-leases")
	return all, leases, err
}

func newFleet(cfg Config) (*fleet, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	f := &fleet{cfg: cfg, clock: newClock(), byName: map[string]*hollow{}, well: node.NewStatusInputs(), unwell: node.NewStatusInputs(),
		host: hostOf(&cfg)}
	f.unwell.SetNotReady("fleet", "the fleet's script says so")
	f.leases, f.rest = newPool(f.clock), newPool(f.clock)
	var err error
	var leases kubernetes.Interface
	if f.client, leases, err = clients(cfg.Client); err != nil {
		return nil, err
	}
	f.agents, err = node.NewHollows(node.Config{Log: cfg.Log, Client: f.client, Leases: leases.CoordinationV1(), Events: cfg.Events,
		ReportEvery: cfg.ReportEvery, LeaseSeconds: cfg.LeaseSeconds,
		Settings: node.Settings{Limits: node.Limits{MaxPods: cfg.MaxPods}, Port: 10250, Version: cfg.Version, MaxImages: 50}})
	if err != nil {
		return nil, err
	}
	for i := range cfg.Nodes {
		h := f.newHollow(i)
		f.nodes = append(f.nodes, h)
		f.byName[h.name] = h
	}
	return f, nil
}

// Run runs a fleet until its duration is over or ctx ends, and cleans up.
func Run(ctx context.Context, cfg Config) error {
	f, err := newFleet(cfg)
	if err != nil {
		return err
	}
	err = f.run(ctx)
	f.summary()
	if !cfg.Keep {
		if cerr := f.cleanup(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
	}
	return err
}

func (f *fleet) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	if f.cfg.Duration > 0 {
		ctx, cancel = context.WithTimeout(ctx, f.cfg.Duration)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	f.stats.began = time.Now()
	listed := make(chan struct{})
	wg.Go(func() { f.watchNodes(ctx, sync.OnceFunc(func() { close(listed) })) })
	select {
	case <-listed:
	case <-ctx.Done():
		return nil
	}
	wg.Go(func() { f.watchPods(ctx) })
	wg.Go(func() { f.clock.run(ctx) })
	wg.Go(func() { f.leases.run(ctx, leaseWorkers) })
	wg.Go(func() { f.rest.run(ctx, restWorkers) })
	wg.Go(func() { f.progress(ctx) })
	start := time.Now()
	for i, h := range f.nodes {
		h.agent.Start()
		f.clock.set(&h.report, start.Add(time.Duration(float64(i)/f.cfg.RegisterRate*float64(time.Second))))
	}
	wg.Go(func() { f.play(ctx) })
	<-ctx.Done()
	return nil
}

// play carries out the script.
func (f *fleet) play(ctx context.Context) {
	for i := range f.cfg.Script {
		a := &f.cfg.Script[i]
		t := time.NewTimer(time.Until(f.stats.began.Add(a.At.D())))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		verb, sel, _ := a.what()
		nodes := f.choose(sel)
		f.say("script: %s %s: %d nodes", verb, sel, len(nodes))
		for _, h := range nodes {
			f.act(h, verb)
		}
	}
}

func (f *fleet) act(h *hollow, verb string) {
	switch verb {
	case "stop":
		h.silence()
		h.powerOff()
	case "cut":
		h.silence()
	case "notReady":
		h.unwell.Store(true)
		f.rest.trigger(&h.report)
	case "resume":
		h.resume()
	}
}

// podNamespace is where a fleet's own pods live.
const podNamespace = metav1.NamespaceDefault

// each calls do for every node, several at a time, and returns the first error.
func (f *fleet) each(ctx context.Context, do func(*hollow) error) error {
	work := make(chan *hollow)
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for range restWorkers {
		wg.Go(func() {
			for h := range work {
				if err := do(h); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	for _, h := range f.nodes {
		if ctx.Err() != nil {
			break
		}
		work <- h
	}
	close(work)
	wg.Wait()
	return first
}

// cleanupTimeout bounds how long a fleet that ends holds its user up.
const cleanupTimeout = 2 * time.Minute

// cleanup deletes what the fleet made: pods at once, since no agent is left to
// agree, then Nodes and leases.
func (f *fleet) cleanup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	f.say("deleting %d Nodes, their leases and pods", len(f.nodes))
	now := int64(0)
	ours := metav1.ListOptions{LabelSelector: Label + "=" + f.cfg.Prefix}
	if err := f.client.CoreV1().Pods(podNamespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, ours); err != nil {
		return fmt.Errorf("deleting the fleet's pods: %w", err)
	}
	return f.each(ctx, func(h *hollow) error {
		if err := f.client.CoreV1().Nodes().Delete(ctx, h.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting Node %s: %w", h.name, err)
		}
		if err := f.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Delete(ctx, h.name, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the lease of node %s: %w", h.name, err)
		}
		return nil
	})
}
