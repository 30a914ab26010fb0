package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Config is what an announcer is started with. All is required but Journal.
type Config struct {
	NodeName string
	// Client acts as the node.
	Client kubernetes.Interface
	// Informers show Services, EndpointSlices and Nodes.
	Informers informers.SharedInformerFactory
	// Condition is that of Services with addresses of pools.
	Condition string
	Log       *slog.Logger
	Journal   journal.Sink
}

// Run announces this node's share of the pool addresses until ctx ends; then it
// hands them over. Without a Service that has one it watches nothing of its own
// and writes nothing.
func Run(ctx context.Context, cfg Config) error {
	return run(ctx, cfg, nil)
}

// speech is a speaker, or what tests have in its place.
type speech interface {
	set(addrs []netip.Addr, until time.Duration)
	run(ctx context.Context)
	look()
}

type runner struct {
	Config
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	nodes    corelisters.NodeLister
	core     *core
	speech   speech
	events   record.EventRecorder
	wake     chan struct{}
	results  chan outcome

	mu    sync.Mutex
	news  []entry
	dirty bool
	// holders are the Services of each address.
	holders map[netip.Addr][]*v1.Service
	// told is when a conflict over an address was told last.
	told map[netip.Addr]time.Duration
}

// outcome is how a write ended.
type outcome struct {
	action action
	is     *entry
	taken  bool
}

func run(ctx context.Context, cfg Config, speech speech) error {
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	core, discovery := cfg.Informers.Core().V1(), cfg.Informers.Discovery().V1()
	r := &runner{Config: cfg, services: core.Services().Lister(), slices: discovery.EndpointSlices().Lister(), nodes: core.Nodes().Lister(),
		core: newCore(cfg.NodeName, usual), speech: speech, wake: make(chan struct{}, 1), results: make(chan outcome),
		told: map[netip.Addr]time.Duration{}}
	synced, stop, err := r.watch()
	defer stop()
	if err != nil {
		return err
	}
	cfg.Informers.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		if r.refresh(); len(r.core.wants) > 0 {
			if err := r.serve(ctx); err != nil {
				return err
			}
		}
	}
}

// watch follows what decides who may announce.
func (r *runner) watch() (synced []cache.DoneChecker, stop func(), err error) {
	var regs []func()
	add := func(inf cache.SharedIndexInformer, changed func(old, obj any) bool) {
		tell := func(old, obj any) {
			if changed(old, obj) {
				r.again()
			}
		}
		reg, e := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { tell(nil, o) }, UpdateFunc: tell,
			DeleteFunc: func(o any) {
				if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = t.Obj
				}
				tell(o, nil)
			}})
		if e != nil {
			err = errors.Join(err, fmt.Errorf("watching for the announcer: %w", e))
			return
		}
		regs = append(regs, func() { _ = inf.RemoveEventHandler(reg) })
		synced = append(synced, reg.HasSyncedChecker())
	}
	add(r.Informers.Core().V1().Services().Informer(), func(old, obj any) bool {
		return slices.ContainsFunc([]any{old, obj}, func(o any) bool {
			s, ok := o.(*v1.Service)
			return ok && len(addresses(s, r.Condition)) > 0
		})
	})
	add(r.Informers.Core().V1().Nodes().Informer(), func(old, obj any) bool {
		a, _ := old.(*v1.Node)
		b, _ := obj.(*v1.Node)
		return (a != nil && fit(a)) != (b != nil && fit(b))
	})
	add(r.Informers.Discovery().V1().EndpointSlices().Informer(), func(old, obj any) bool {
		return slices.ContainsFunc([]any{old, obj}, func(o any) bool {
			s, ok := o.(*discoveryv1.EndpointSlice)
			return ok && r.local(s)
		})
	})
	return synced, func() {
		for _, f := range regs {
			f()
		}
	}, err
}

// local says whether a slice is of a Service whose endpoints decide.
func (r *runner) local(s *discoveryv1.EndpointSlice) bool {
	svc, err := r.services.Services(s.Namespace).Get(s.Labels[discoveryv1.LabelServiceName])
	return err == nil && isLocal(svc) && len(addresses(svc, r.Condition)) > 0
}

func isLocal(s *v1.Service) bool {
	return s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
}

// again has the loop look at Services and nodes.
func (r *runner) again() {
	r.mu.Lock()
	r.dirty = true
	r.mu.Unlock()
	r.rouse()
}

func (r *runner) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// refresh tells the core what is wanted now.
func (r *runner) refresh() {
	r.mu.Lock()
	dirty := r.dirty
	r.dirty = false
	r.mu.Unlock()
	if !dirty {
		return
	}
	all, err1 := r.services.List(labels.Everything())
	nodes, err2 := r.nodes.List(labels.Everything())
	if err := errors.Join(err1, err2); err != nil {
		r.Log.Error("reading the caches", "err", err)
		return
	}
	var list []balanced
	holders := map[netip.Addr][]*v1.Service{}
	for _, s := range all {
		b := balanced{addresses: addresses(s, r.Condition)}
		if len(b.addresses) == 0 {
			continue
		}
		if isLocal(s) {
			sel := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name})
			found, err := r.slices.EndpointSlices(s.Namespace).List(sel)
			if err != nil {
				r.Log.Error("reading the caches", "err", err)
				return
			}
			b.local = ready(found)
		}
		list = append(list, b)
		for _, a := range b.addresses {
			holders[a] = append(holders[a], s)
		}
	}
	r.mu.Lock()
	r.holders = holders
	r.mu.Unlock()
	r.core.setWants(boot(), wanted(r.NodeName, list, nodes))
}

// serve claims addresses until there are none.
func (r *runner) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	// What was known of claims is as old as the last watch.
	wants := r.core.wants
	r.core = newCore(r.NodeName, usual)
	r.core.setWants(boot(), wants)
	r.events = kube.Events(ctx, r.Client)("berth-announcer")
	speech := r.speech
	if speech == nil {
		speech = newSpeaker(r.Log, r.conflict)
		updates, err := hostChanges(ctx)
		if err != nil {
			return err
		}
		parts.Go(func() {
			for range updates {
				speech.look()
			}
		})
	}
	parts.Go(func() { speech.run(ctx) })
	inf := coordinationinformers.NewLeaseInformer(r.Client, Namespace, 0, cache.Indexers{})
	tell := func(o any, deleted bool) {
		if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		if l, ok := o.(*coordinationv1.Lease); ok {
			r.hear(l, deleted)
		}
	}
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { tell(o, false) },
		UpdateFunc: func(_, o any) { tell(o, false) }, DeleteFunc: func(o any) { tell(o, true) }})
	if err != nil {
		return fmt.Errorf("watching claims of addresses: %w", err)
	}
	parts.Go(func() { inf.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		return nil
	}
	return r.loop(ctx, speech)
}

func (r *runner) hear(l *coordinationv1.Lease, deleted bool) {
	if e, ok := entryOf(l, deleted); ok {
		r.mu.Lock()
		r.news = append(r.news, e)
		r.mu.Unlock()
		r.rouse()
	}
}

// loop does what the core says. What the host answers for changes before a
// write that gives an address back is sent.
func (r *runner) loop(ctx context.Context, speech speech) error {
	var writes sync.WaitGroup
	defer writes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var held []netip.Addr
	for {
		r.refresh()
		r.mu.Lock()
		news := r.news
		r.news = nil
		r.mu.Unlock()
		now := boot()
		for _, e := range news {
			r.core.observe(now, e)
		}
		do, wake := r.core.step(now)
		addrs, until := r.core.announced()
		speech.set(addrs, until)
		r.report(held, addrs)
		held = addrs
		for _, a := range do {
			writes.Go(func() { r.write(ctx, a) })
		}
		if len(r.core.wants) == 0 && r.core.session == "" && len(r.core.busy) == 0 {
			return nil
		}
		timer.Reset(wake - now)
		select {
		case <-ctx.Done():
			r.stop(held, speech)
			return nil
		case o := <-r.results:
			r.core.done(boot(), o.action, o.is, o.taken)
		case <-r.wake:
		case <-timer.C:
		}
	}
}

func (r *runner) write(ctx context.Context, a action) {
	is, taken, err := perform(ctx, r.Client.CoordinationV1().Leases(Namespace), a, usual)
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("a claim was not written", "what", a.kind, "lease", a.entry.name, "err", err)
	}
	select {
	case r.results <- outcome{a, is, taken}:
	case <-ctx.Done():
	}
}

// stop hands everything over: other nodes take it once the session has ended.
func (r *runner) stop(held []netip.Addr, speech speech) {
	a, ok := r.core.stop(boot())
	speech.set(nil, 0)
	r.report(held, nil)
	if !ok {
		return
	}
	if _, taken, err := perform(context.Background(), r.Client.CoordinationV1().Leases(Namespace), a, usual); !taken {
		r.Log.Warn("the addresses of this node move only when its session is over", "after", usual.wait, "err", err)
	}
}

// report tells of addresses that came and went.
func (r *runner) report(had, have []netip.Addr) {
	for _, a := range had {
		if !slices.Contains(have, a) {
			r.tell(a, "stopped announcing an address")
		}
	}
	for _, a := range have {
		if slices.Contains(had, a) {
			continue
		}
		for _, s := range r.tell(a, "announces an address") {
			r.events.Eventf(refOf(s), v1.EventTypeNormal, "Announced", "Node %s answers for %s", r.NodeName, a)
		}
	}
}

func (r *runner) tell(a netip.Addr, decision string) []*v1.Service {
	r.mu.Lock()
	holders := r.holders[a]
	r.mu.Unlock()
	var names []string
	for _, s := range holders {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	r.Log.Info(decision, "address", a, "services", strings.Join(names, ","))
	r.Journal.Append(journal.Record{Time: time.Now(), Part: "announcer", Object: journal.Ref{Kind: "Node", Name: r.NodeName},
		Decision: decision, Because: []journal.Fact{{Name: "address", Value: a.String()},
			{Name: "services", Value: strings.Join(names, ",")}}})
	return holders
}

func refOf(s *v1.Service) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: s.Namespace, Name: s.Name, UID: s.UID}
}

// conflictsEvery bounds how often a conflict over one address is told.
const conflictsEvery = time.Minute

// conflict tells that another host says it has an address of ours.
func (r *runner) conflict(a netip.Addr, mac net.HardwareAddr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, told := r.told[a]; told && boot() < last+conflictsEvery {
		return
	}
	r.told[a] = boot()
	r.Log.Warn("another host claims an address of the load balancer", "address", a, "mac", mac)
	for _, s := range r.holders[a] {
		r.events.Eventf(refOf(s), v1.EventTypeWarning, "AddressConflict",
			"%s claims address %s, which Node %s announces; take the address from that host, or out of the pool", mac, a, r.NodeName)
	}
}

// hostChanges tells of changed interfaces and routes until ctx ends.
func hostChanges(ctx context.Context) (<-chan struct{}, error) {
	routes, links, out := make(chan netlink.RouteUpdate), make(chan netlink.LinkUpdate), make(chan struct{}, 1)
	err1, err2 := netlink.RouteSubscribe(routes, ctx.Done()), netlink.LinkSubscribe(links, ctx.Done())
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("watching this host's routes and interfaces: %w", err)
	}
	go func() {
		defer close(out)
		for routes != nil || links != nil {
			select {
			case _, ok := <-routes:
				if !ok {
					routes = nil
				}
			case _, ok := <-links:
				if !ok {
					links = nil
				}
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, nil
}
