// Package proxy makes Services reachable: it watches Services, EndpointSlices
// and the own Node, and keeps nftables equal to them.
//
// The model decides (internal/proxy/model), the nft package writes; here is
// the loop between them, which sleeps until an event arrives.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	kubeproxyconfigv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

// Config is what a proxy is started with.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	// Informers is shared with other roles; Run starts what it asks for.
	Informers informers.SharedInformerFactory
	// Instance names the nftables tables, "berth" if empty. Every cluster
	// on one machine needs its own.
	Instance string
	// ClusterCIDR holds the pods' addresses, one CIDR a family, separated
	// by a comma. It overrides the one in Config.
	ClusterCIDR string
	// BridgeName is the bridge this node's pods hang on, if there is one.
	BridgeName string
	// HealthzBind and MetricsBind are addresses to listen on; "" is off.
	HealthzBind, MetricsBind string
	// Config may be nil: then the defaults of kube-proxy's nftables mode.
	Config  *kubeproxyconfigv1alpha1.KubeProxyConfiguration
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Journal journal.Sink
}

// retryAfter is how long a failed write rests before the next look.
const retryAfter = time.Second

type event func(*model.Model)

// Run keeps the kernel equal to the cluster until ctx ends. The rules stay
// when it returns: a restart adopts them, Cleanup removes them.
func Run(ctx context.Context, cfg Config) error {
	cfg.defaults()
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	r := &runner{cfg: cfg, wake: make(chan struct{}, 1), metrics: newMetrics(cfg.Metrics)}
	layouts, err := cfg.layouts()
	if err != nil {
		return err
	}
	for _, l := range layouts {
		m := model.New(model.Config{Family: l.Family, NodeName: cfg.NodeName})
		r.families = append(r.families, &writer{kernel: k, layout: l, table: cfg.Instance, model: m})
	}
	if err := forward(cfg); err != nil {
		return err
	}
	synced, stop, err := r.watch()
	if err != nil {
		return err
	}
	defer stop()
	cfg.Informers.Start(ctx.Done())
	health, err := r.serve(ctx)
	if err != nil {
		return err
	}
	defer health()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	return r.loop(ctx)
}

func (cfg *Config) defaults() {
	if cfg.Instance == "" {
		cfg.Instance = "berth"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	if cfg.Config == nil {
		cfg.Config = &kubeproxyconfigv1alpha1.KubeProxyConfiguration{}
	}
}

type runner struct {
	cfg      Config
	families []*writer
	metrics  *metrics
	wake     chan struct{}

	mu     sync.Mutex
	queue  []event
	oldest time.Time // when the oldest event not yet in the kernel came
	node   *corev1.Node
}

func (r *runner) push(e event) {
	r.mu.Lock()
	r.queue = append(r.queue, e)
	if r.oldest.IsZero() {
		r.oldest = time.Now()
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// loop moves events into the models and the difference into the kernel.
// Events that come while a write runs are taken together by the next.
func (r *runner) loop(ctx context.Context) error {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-retry.C:
		}
		if err := r.step(); err != nil {
			r.metrics.failures.Inc()
			r.cfg.Log.Error("writing service rules failed, trying again", "after", retryAfter, "err", err)
			retry.Reset(retryAfter)
		}
	}
}

func (r *runner) step() error {
	r.mu.Lock()
	queue, oldest := r.queue, r.oldest
	r.queue = nil
	r.mu.Unlock()
	for _, e := range queue {
		for _, w := range r.families {
			e(w.model)
		}
	}
	var errs []error
	for _, w := range r.families {
		start := time.Now()
		was := w.synced
		res, err := w.sync()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.metrics.observe(w.layout.Family.String(), !was, time.Since(start), res.changes)
		r.forget(w, res.changes)
		r.report(w, res, !was, time.Since(start))
	}
	err := errors.Join(errs...)
	if err == nil {
		r.mu.Lock()
		if r.oldest.Equal(oldest) {
			r.oldest = time.Time{}
			if len(r.queue) > 0 {
				r.oldest = time.Now()
			}
		}
		r.mu.Unlock()
	}
	return err
}

func (r *runner) report(w *writer, res result, first bool, took time.Duration) {
	if first {
		how := "wrote the service rules"
		if res.adopted {
			how = "adopted the service rules"
		}
		r.cfg.Log.Info(how, "family", w.layout.Family, "table", w.table, "added", res.added, "deleted", res.deleted, "took", took)
	}
	if res.added+res.deleted == 0 {
		return
	}
	r.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "proxy", Object: journal.Ref{Kind: "Node", Name: r.cfg.NodeName},
		Decision: "changed service rules", Because: []journal.Fact{{Name: "family", Value: w.layout.Family.String()},
			{Name: "rows added", Value: fmt.Sprint(res.added)}, {Name: "rows deleted", Value: fmt.Sprint(res.deleted)}}})
}

// watch registers the handlers; stop takes them away again.
func (r *runner) watch() (synced []cache.InformerSynced, stop func(), err error) {
	var regs []func()
	stop = func() {
		for _, f := range regs {
			f()
		}
	}
	add := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandlerFuncs) {
		reg, e := inf.AddEventHandler(h)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("watching for the proxy: %w", e))
			return
		}
		regs = append(regs, func() { _ = inf.RemoveEventHandler(reg) })
		synced = append(synced, reg.HasSynced)
	}
	setService := func(o any) {
		if s, ok := o.(*corev1.Service); ok {
			r.push(func(m *model.Model) { m.SetService(s) })
		}
	}
	add(r.cfg.Informers.Core().V1().Services().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: setService, UpdateFunc: func(_, o any) { setService(o) },
		DeleteFunc: func(o any) {
			if s, ok := gone(o).(*corev1.Service); ok {
				r.push(func(m *model.Model) { m.DeleteService(model.Name{Namespace: s.Namespace, Name: s.Name}) })
			}
		}})
	setSlice := func(old, o any) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		was, _ := old.(*discoveryv1.EndpointSlice)
		if !ok || was != nil && was.ResourceVersion == s.ResourceVersion {
			return
		}
		r.push(func(m *model.Model) {
			if was != nil {
				m.DeleteSlice(was)
			}
			m.SetSlice(s)
		})
	}
	add(r.cfg.Informers.Discovery().V1().EndpointSlices().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { setSlice(nil, o) }, UpdateFunc: setSlice,
		DeleteFunc: func(o any) {
			if s, ok := gone(o).(*discoveryv1.EndpointSlice); ok {
				r.push(func(m *model.Model) { m.DeleteSlice(s) })
			}
		}})
	add(r.cfg.Informers.Core().V1().Nodes().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: r.setNode, UpdateFunc: func(_, o any) { r.setNode(o) },
		DeleteFunc: func(o any) {
			if n, ok := gone(o).(*corev1.Node); ok && n.Name == r.cfg.NodeName {
				r.mu.Lock()
				r.node = nil
				r.mu.Unlock()
			}
		}})
	return synced, stop, err
}

func (r *runner) setNode(o any) {
	n, ok := o.(*corev1.Node)
	if !ok || n.Name != r.cfg.NodeName {
		return
	}
	r.mu.Lock()
	r.node = n
	r.mu.Unlock()
	var ips []netip.Addr
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			ips = append(ips, ip.Unmap())
		}
	}
	zone := n.Labels[corev1.LabelTopologyZone]
	ports := r.nodePortAddrs(ips)
	r.push(func(m *model.Model) {
		m.SetNode(zone, ips)
		m.SetNodePortAddrs(ports)
	})
}

// nodePortAddrs are the addresses node ports answer on: the node's own, or
// those of this machine within the configured CIDRs.
func (r *runner) nodePortAddrs(nodeIPs []netip.Addr) []netip.Addr {
	cidrs := r.cfg.Config.NodePortAddresses
	if len(cidrs) == 0 || slices.Equal(cidrs, []string{"primary"}) {
		return nodeIPs
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		r.cfg.Log.Error("reading this machine's addresses for node ports", "err", err)
		return nodeIPs
	}
	var out []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		for _, c := range cidrs {
			if n, err := netip.ParsePrefix(c); err == nil && n.Contains(p.Addr().Unmap()) {
				out = append(out, p.Addr().Unmap())
				break
			}
		}
	}
	return out
}

func gone(o any) any {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return t.Obj
	}
	return o
}
