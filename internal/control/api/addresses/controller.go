package addresses

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// settleTime is how long a range stays after its deletion was asked for:
// allocations that began before must have become visible.
const settleTime = 10 * time.Second

// Verdict is what a range needs.
type Verdict struct {
	// Finalizers, if not nil, replace those of the range.
	Finalizers []string
	// Condition is the Ready condition the range should have.
	Condition metav1.Condition
	// WakeAt, if set, is when to judge again without an event.
	WakeAt time.Time
}

// Evaluate decides about one range. A live range is protected and ready. A
// range that is being deleted gives out no more addresses, and goes when no
// address in it is used that lies in no other live range.
func Evaluate(r *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, used []netip.Addr, now time.Time) Verdict {
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

// Controller declares what keeps ranges protected and their conditions true.
func Controller() controller.Controller {
	return controller.Controller{Name: "service-cidr-controller", Account: "service-cidrs-controller",
		Watches: "servicecidrs.networking.k8s.io ipaddresses.networking.k8s.io",
		Writes:  "patch servicecidrs.networking.k8s.io servicecidrs.networking.k8s.io/status", Run: run}
}

// all is the one key of the queue: ranges are judged together.
const all = "all"

// run keeps ranges protected and their conditions true, until ctx ends.
func run(ctx context.Context, e controller.Env) error {
	if err := e.Check(); err != nil {
		return err
	}
	q := controller.NewQueue()
	ranges, err := controller.On(ctx, e.Informers.Networking().V1().ServiceCIDRs().Informer(), func(_, _ *networkingv1.ServiceCIDR,
		_ bool) {
		q.Add(all)
	})
	if err != nil {
		return fmt.Errorf("watching service ranges: %w", err)
	}
	ips, err := controller.On(ctx, e.Informers.Networking().V1().IPAddresses().Informer(), func(_, _ *networkingv1.IPAddress, gone bool) {
		if gone { // only a released address can change a verdict
			q.Add(all)
		}
	})
	if err != nil {
		return fmt.Errorf("watching service addresses: %w", err)
	}
	if err := e.Synced(ctx, ranges, ips); err != nil {
		return nil
	}
	return e.Run(ctx, q, 1, func(ctx context.Context, _ string) (time.Duration, error) {
		now := time.Now()
		next, err := pass(ctx, e, now)
		if err != nil || next.IsZero() {
			return 0, err
		}
		return next.Sub(now), nil
	})
}

// pass judges all ranges and writes what they need. It returns when to look
// again without an event.
func pass(ctx context.Context, e controller.Env, now time.Time) (next time.Time, err error) {
	all, err := e.Informers.Networking().V1().ServiceCIDRs().Lister().List(labels.Everything())
	if err != nil {
		return next, err
	}
	addresses, err := e.Informers.Networking().V1().IPAddresses().Lister().List(labels.Everything())
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
		v := Evaluate(r, all, used, now)
		if !v.WakeAt.IsZero() && (next.IsZero() || v.WakeAt.Before(next)) {
			next = v.WakeAt
		}
		if err := apply(ctx, e, r, v); err != nil {
			return next, fmt.Errorf("service range %s: %w", r.Name, err)
		}
	}
	return next, nil
}

// apply writes a verdict. A lost race is no error: the winner's write is an event.
func apply(ctx context.Context, e controller.Env, r *networkingv1.ServiceCIDR, v Verdict) error {
	patch := func(c kube.Change) error {
		c.Manager = "service-ranges"
		_, err := kube.Patch(ctx, e.Client.NetworkingV1().ServiceCIDRs(), r, kube.Unchanged, c)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	conditions := slices.Clone(r.Status.Conditions)
	if r.Name != DefaultRange || r.DeletionTimestamp != nil { // the default range is judged by Publish while it lives
		if meta.SetStatusCondition(&conditions, v.Condition) {
			return patch(kube.Change{Status: kube.Conditions[metav1.Condition]{Conditions: conditions}, Subresource: "status"})
		}
	}
	if v.Finalizers == nil {
		return nil
	}
	return patch(kube.Change{Finalizers: &v.Finalizers})
}
