// Package proxy makes Services reachable: it watches Services, EndpointSlices
// and its own Node, and keeps nftables equal to them.
//
// The model decides (internal/proxy/model), the nft package writes; here is
// the loop between them, which sleeps until an event arrives.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	kubeproxyconfigv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// Config is what a proxy is started with.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	// Informers is shared with other roles; Run starts what it asks for.
	Informers informers.SharedInformerFactory
	// Nodes, if set, is used instead of the one in Informers: an informer
	// that sees its own Node only.
	Nodes cache.SharedIndexInformer
	// Instance names the nftables tables, "berth" if empty. Every cluster
	// on one host needs its own.
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
	// Synced, if set, is called once all families are in the kernel.
	Synced func()
	// Tracer, if set, can be asked about packets while Run runs.
	Tracer *Tracer
	// Flags are the command line's, by name, for /flagz.
	Flags map[string]string
}

// writeRetry are the pauses before a failed write is made again.
var writeRetry = controller.Backoff{First: time.Second, Most: 10 * time.Second}

// defaultSyncPeriod is kube-proxy's: half the age at which an event that is
// not in the kernel makes the proxy unhealthy.
const defaultSyncPeriod = 30 * time.Second

// podCIDRWait is how long a start waits for the Node's pod CIDRs where local
// traffic is told by them.
const podCIDRWait = 5 * time.Minute

// event is something to tell the Model, and what kind of thing it is.
type event struct {
	kind   string
	change func(*writer)
}

// Kinds of events that are counted.
const (
	serviceChange  = "service"
	endpointChange = "endpoint"
	otherChange    = ""
)

// Run keeps the kernel equal to the cluster until ctx ends. The rules stay
// when it returns: a restart adopts them, Cleanup removes them.
func Run(ctx context.Context, cfg Config) error {
	cfg.defaults()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	r := &runner{cfg: cfg, kernel: k, wake: make(chan struct{}, 1), metrics: newMetrics(cfg.Metrics), fail: cancel,
		nodeSeen: make(chan struct{}), everywhere: map[model.Family]bool{}, oldest: map[model.Family]time.Time{}}
	base, err := cfg.layouts()
	if err != nil {
		return err
	}
	if err := CheckKernel(cfg.Log); err != nil {
		return err
	}
	if err := forward(cfg); err != nil {
		return err
	}
	for _, l := range base {
		r.does, r.everywhere[l.Family] = append(r.does, l.Family), l.AllNodePorts
	}
	if r.events, err = newEvents(ctx, cfg); err != nil {
		return err
	}
	defer r.events.stop()
	r.checks = newHealthChecks(r)
	defer r.checks.stop()
	synced, stop, err := r.watch(ctx)
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
	if !cache.WaitFor(ctx, "", synced...) {
		return ended(ctx)
	}
	if base, err = r.podCIDRs(ctx, base); err != nil {
		return err
	}
	for _, l := range base {
		m := model.New(model.Config{Family: l.Family, NodeName: cfg.NodeName, IgnoreExternalIPs: cfg.ignoreExternalIPs()})
		r.families = append(r.families, &writer{kernel: k, layout: l, table: cfg.Instance, model: m})
	}
	r.events.started()
	if cfg.Tracer != nil {
		defer cfg.Tracer.attach(r)()
	}
	drift := make(chan struct{})
	go func() { defer close(drift); r.watchDrift(ctx) }()
	defer func() { <-drift }()
	defer cancel(nil)
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

func (cfg *Config) ignoreExternalIPs() bool {
	on, set := cfg.Config.FeatureGates["AllowServiceExternalIPs"]
	return set && !on
}

func (cfg *Config) syncPeriod() time.Duration {
	if d := cfg.Config.NFTables.SyncPeriod.Duration; d > 0 {
		return d
	}
	return defaultSyncPeriod
}

type runner struct {
	cfg      Config
	kernel   *nft.Netlink
	families []*writer
	does     []model.Family // the families there will be
	// everywhere are the families in which node ports answer on every address.
	everywhere map[model.Family]bool
	metrics    *metrics
	events     *events
	checks     *healthChecks
	wake       chan struct{}
	fail       context.CancelCauseFunc

	mu    sync.Mutex
	queue []event
	// began: the loop runs; until then nothing can be late.
	began bool
	// asked are questions that only the loop may answer, since it owns the Models.
	asked []func()
	// oldest is when the oldest event came that is not in a family's table yet.
	oldest   map[model.Family]time.Time
	node     *corev1.Node
	nodeSeen chan struct{} // closed once the Node has pod CIDRs
	cidrs    []string      // those local traffic was told by at the start
	recheck  bool          // the drift check found something
	others   others        // owned by the drift check
}

func (r *runner) push(kind string, change func(*writer)) {
	now := time.Now()
	r.mu.Lock()
	r.queue = append(r.queue, event{kind, change})
	r.late(now)
	r.mu.Unlock()
	r.metrics.queued(kind, now)
	r.trigger()
}

// late remembers since when families lack something; r.mu is held.
func (r *runner) late(now time.Time) {
	for _, f := range r.does {
		if r.oldest[f].IsZero() {
			r.oldest[f] = now
		}
	}
}

func (r *runner) trigger() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// loop moves events into the models and the difference into the kernel.
// Events that come while a write runs are taken together by the next.
func (r *runner) loop(ctx context.Context) error {
	r.mu.Lock()
	r.began = true
	clear(r.oldest)
	r.late(time.Now())
	r.mu.Unlock()
	next := time.NewTimer(0)
	defer next.Stop()
	retry := controller.Retry{Backoff: writeRetry}
	var last time.Time
	synced := r.cfg.Synced
	for {
		select {
		case <-ctx.Done():
			return ended(ctx)
		case <-r.wake:
		case <-next.C:
		}
		r.answer()
		if gap := r.cfg.Config.NFTables.MinSyncPeriod.Duration - time.Since(last); gap > 0 {
			next.Reset(gap)
			continue
		}
		if err := r.step(); err != nil {
			wait := retry.Failed()
			r.metrics.failures.Inc()
			r.cfg.Log.Error("writing service rules failed, trying again", "after", wait, "err", err)
			next.Reset(wait)
		} else {
			retry.Succeeded()
			if synced != nil {
				synced()
				synced = nil
			}
		}
		last = time.Now()
	}
}

// ended is why a proxy that was started ends: nil if it was asked to.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// answer runs the questions asked meanwhile.
func (r *runner) answer() {
	r.mu.Lock()
	asked := r.asked
	r.asked = nil
	r.mu.Unlock()
	for _, f := range asked {
		f()
	}
}

func (r *runner) step() error {
	r.mu.Lock()
	queue, recheck := r.queue, r.recheck
	r.queue, r.recheck = nil, false
	r.mu.Unlock()
	var errs []error
	var right []model.Family
	for _, w := range r.families {
		for _, e := range queue {
			e.change(w)
		}
		w.synced = w.synced && !recheck
		if err := r.sync(w); err != nil {
			errs = append(errs, err)
			continue
		}
		right = append(right, w.layout.Family)
	}
	r.metrics.taken(queue)
	r.mu.Lock()
	for _, f := range right {
		delete(r.oldest, f)
	}
	if len(r.queue) > 0 {
		r.late(time.Now())
	}
	r.mu.Unlock()
	return errors.Join(errs...)
}

// sync brings one family up to date and does what follows from the change.
func (r *runner) sync(w *writer) error {
	start, was := time.Now(), w.synced
	res, err := w.sync()
	if err != nil {
		return err
	}
	took := time.Since(start)
	r.metrics.observe(w, !was, took, res.changes)
	r.forget(w, res.changes.Stale)
	r.checks.update(w.layout.Family, res.changes.Health)
	r.report(w, res, !was, took)
	return nil
}

func (r *runner) report(w *writer, res result, first bool, took time.Duration) {
	if first {
		how := "wrote the service rules"
		if res.adopted {
			how = "adopted the service rules"
		}
		if w.layout.Family == model.V4 {
			warnOfSCTP(r.cfg.Log, sctpSetting)
		}
		r.cfg.Log.Info(how, "family", w.layout.Family, "table", w.table, "added", res.added, "deleted", res.deleted, "took", took)
	}
	if res.added+res.deleted == 0 {
		return
	}
	r.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "proxy", Object: journal.Ref{Kind: "Node", Name: r.cfg.NodeName},
		Routine: true, Decision: "changed service rules", Because: []journal.Fact{{Name: "family", Value: w.layout.Family.String()},
			{Name: "rows added", Value: fmt.Sprint(res.added)}, {Name: "rows deleted", Value: fmt.Sprint(res.deleted)}}})
}

// podCIDRs completes the layouts where local traffic is told by the Node's
// pod CIDRs, which may not be there yet.
func (r *runner) podCIDRs(ctx context.Context, ls []rules.Layout) ([]rules.Layout, error) {
	if r.cfg.Config.DetectLocalMode != "NodeCIDR" {
		return ls, nil
	}
	wait := time.NewTimer(podCIDRWait)
	defer wait.Stop()
	select {
	case <-r.nodeSeen:
	case <-wait.C:
		return nil, fmt.Errorf("detectLocalMode is NodeCIDR, but node %s got no spec.podCIDRs within %s", r.cfg.NodeName, podCIDRWait)
	case <-ctx.Done():
		return ls, nil
	}
	r.mu.Lock()
	cidrs := r.cidrs
	r.mu.Unlock()
	for i := range ls {
		for _, s := range cidrs {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, fmt.Errorf("reading spec.podCIDRs of node %s: %w", r.cfg.NodeName, err)
			}
			if ls[i].Family.Has(p.Addr()) {
				ls[i].LocalCIDRs = []netip.Prefix{p}
			}
		}
	}
	return ls, nil
}

// ask has the loop run f.
func (r *runner) ask(f func()) {
	r.mu.Lock()
	r.asked = append(r.asked, f)
	r.mu.Unlock()
	r.trigger()
}
