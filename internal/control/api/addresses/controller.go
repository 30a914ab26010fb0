package addresses

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// settleTime is how long a range stays after its deletion was asked for: allocations that began before must have
// become visible.
const settleTime = 10 * time.Second

// retry bounds the pause before ranges are looked at again after a failed write; it doubles from one to the other.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Verdict is what a range needs.
type Verdict struct {
	// Finalizers, if not nil, replace those of the range.
	Finalizers []string
	// Condition is the Ready condition the range should have.
	Condition metav1.Condition
	// WakeAt, if set, is when to judge again without an event.
	WakeAt time.Time
}

// Judge decides about one range. A live range is protected and ready. A range that is being deleted gives out no more
// addresses, and goes when no address in it is used that lies in no other live range.
func Judge(r *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, used []netip.Addr, now time.Time) Verdict {
	protected := slices.Contains(r.Finalizers, protection)
	if r.DeletionTimestamp == nil {
		v := Verdict{Condition: metav1.Condition{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Ready",
			Message: "Kubernetes Service CIDR is ready",
		}}
		if !protected {
			v.Finalizers = append(slices.Clone(r.Finalizers), protection)
		}
		return v
	}
	v := Verdict{Condition: metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
		Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
	}}
	if !protected || orphans(r, all, used) {
		return v
	}
	if settled := r.DeletionTimestamp.Add(settleTime); now.Before(settled) {
		v.WakeAt = settled
		return v
	}
	v.Finalizers = slices.DeleteFunc(slices.Clone(r.Finalizers), func(f string) bool { return f == protection })
	if v.Finalizers == nil {
		v.Finalizers = []string{}
	}
	return v
}

// orphans says whether an address in use would lie in no range without r.
func orphans(r *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, used []netip.Addr) bool {
	mine := prefixes(r)
	var others []netip.Prefix
	for _, o := range all {
		if o.Name != r.Name && o.DeletionTimestamp == nil {
			others = append(others, prefixes(o)...)
		}
	}
	return slices.ContainsFunc(used, func(a netip.Addr) bool {
		holds := func(p netip.Prefix) bool { return p.Contains(a) }
		return slices.ContainsFunc(mine, holds) && !slices.ContainsFunc(others, holds)
	})
}

func prefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range r.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// Config is what the range controller needs. The caller starts the informer factory after Run has been called, or
// before and again after.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Run keeps ranges protected and their conditions true, until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ranges, ips := cfg.Informers.Networking().V1().ServiceCIDRs(), cfg.Informers.Networking().V1().IPAddresses()
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	onAny := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(_, _ any) { poke() }, DeleteFunc: func(any) { poke() },
	}
	watched := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{ranges.Informer(), onAny},
		// Only a released address can change a verdict.
		{ips.Informer(), cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { poke() }}},
	}
	var synced []cache.DoneChecker
	for _, w := range watched {
		handle, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return fmt.Errorf("watching service ranges: %w", err)
		}
		defer w.informer.RemoveEventHandler(handle) //nolint:errcheck // the informer is going away too
		synced = append(synced, w.informer.HasSyncedChecker())
	}
	cfg.Informers.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	poke()
	pause := firstRetry
	for {
		next, err := cfg.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			cfg.Log.Warn("keeping service ranges", "error", err, "retry", pause)
			next = cfg.Now().Add(pause + rand.N(pause/2))
			pause = min(2*pause, lastRetry)
		default:
			pause = firstRetry
		}
		if !sleep(ctx, wake, next, cfg.Now()) {
			return nil
		}
	}
}

// sleep waits for an event or the deadline, and reports whether ctx goes on.
func sleep(ctx context.Context, wake <-chan struct{}, deadline, now time.Time) bool {
	var due <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(deadline.Sub(now))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-due:
	}
	return true
}

// pass judges all ranges and writes what they need. It returns when to look again without an event.
func (c Config) pass(ctx context.Context) (next time.Time, err error) {
	all, err := c.Informers.Networking().V1().ServiceCIDRs().Lister().List(labels.Everything())
	if err != nil {
		return next, err
	}
	addresses, err := c.Informers.Networking().V1().IPAddresses().Lister().List(labels.Everything())
	if err != nil {
		return next, err
	}
	used := make([]netip.Addr, 0, len(addresses))
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a.Name); err == nil {
			used = append(used, ip)
		}
	}
	for _, r := range all {
		v := Judge(r, all, used, c.Now())
		if !v.WakeAt.IsZero() && (next.IsZero() || v.WakeAt.Before(next)) {
			next = v.WakeAt
		}
		if err := c.apply(ctx, r, v); err != nil {
			return next, fmt.Errorf("service range %s: %w", r.Name, err)
		}
	}
	return next, nil
}

// apply writes a verdict. A lost race is no error: the winner's write is an event.
func (c Config) apply(ctx context.Context, r *networkingv1.ServiceCIDR, v Verdict) error {
	client := c.Client.NetworkingV1().ServiceCIDRs()
	patch := func(body map[string]any, sub ...string) error {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, r.Name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: "service-ranges"}, sub...)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	conditions := slices.Clone(r.Status.Conditions)
	if r.Name != DefaultRange || r.DeletionTimestamp != nil { // the default range is judged by Publish while it lives
		if meta.SetStatusCondition(&conditions, v.Condition) {
			return patch(map[string]any{
				"metadata": map[string]any{"resourceVersion": r.ResourceVersion},
				"status":   map[string]any{"conditions": conditions},
			}, "status")
		}
	}
	if v.Finalizers == nil {
		return nil
	}
	return patch(map[string]any{"metadata": map[string]any{"resourceVersion": r.ResourceVersion, "finalizers": v.Finalizers}})
}
