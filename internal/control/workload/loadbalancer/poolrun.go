package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// PoolCondition is the condition of a Service that says whether it has its
// addresses of a pool. Nodes announce addresses of Services where it is True,
// and no others.
const PoolCondition = "berth.dev/PoolAddress"

// poolsKey is the queue's key for the addresses of all pools, which are given by
// one decision.
const poolsKey = "pools"

// unseenFor is how long the address of a Service is kept that was read at the
// start, but that the shared cache does not show: it may lag behind.
const unseenFor = time.Minute

// given is what a Service has, as far as this controller knows: from its own
// writes, since the cache shows them later.
type given struct {
	addresses []netip.Addr
	// unseenUntil is set until the cache has shown the Service.
	unseenUntil time.Time
}

// wantsPool says whether a Service is one for the pools.
func (r *reconciler) wantsPool(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil && r.poolClass(s)
}

func (r *reconciler) poolClass(s *v1.Service) bool {
	if s.Spec.LoadBalancerClass == nil {
		return r.Classless == PoolClass
	}
	return *s.Spec.LoadBalancerClass == PoolClass
}

// poolEvent looks at the pools when a Service changed that wants one of their
// addresses or has one.
func (r *reconciler) poolEvent(s *v1.Service, gone bool) {
	if s != nil && (s.Spec.Type == v1.ServiceTypeLoadBalancer && r.poolClass(s) || hasPoolCondition(s)) {
		if gone {
			r.forget(s.UID)
			r.told.Delete(s.UID)
		}
		r.queue.Add(poolsKey)
	}
}

// nodeEvent looks at the pools when a node's addresses changed: no Service may
// have one of them.
func (r *reconciler) nodeEvent(old, n *v1.Node) {
	if len(r.Pools) > 0 && (old == nil || !slices.Equal(old.Status.Addresses, n.Status.Addresses)) {
		r.queue.Add(poolsKey)
	}
}

func (r *reconciler) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.has, uid)
}

func hasPoolCondition(s *v1.Service) bool {
	return meta.FindStatusCondition(s.Status.Conditions, PoolCondition) != nil
}

func poolAddresses(s *v1.Service) []netip.Addr {
	if !meta.IsStatusConditionTrue(s.Status.Conditions, PoolCondition) {
		return nil
	}
	var out []netip.Addr
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// readGiven learns what an earlier controller gave. It asks the API server: the
// cache may not show the last writes of another process yet.
func (r *reconciler) readGiven(ctx context.Context) error {
	list, err := r.Client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Services for the addresses they have: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.has = map[types.UID]given{}
	for i := range list.Items {
		if a := poolAddresses(&list.Items[i]); len(a) > 0 {
			r.has[list.Items[i].UID] = given{addresses: a, unseenUntil: time.Now().Add(unseenFor)}
		}
	}
	return nil
}

// syncPools gives, moves and takes back addresses of pools.
func (r *reconciler) syncPools(ctx context.Context) (time.Duration, error) {
	if r.has == nil {
		if err := r.readGiven(ctx); err != nil {
			return 0, err
		}
	}
	all, err := r.services.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	in, left, later := r.poolInput(all, nodes)
	plan := planPools(in)
	var errs []error
	again := false
	for _, s := range in.Services {
		res := plan[s.UID]
		lost, err := r.writePool(ctx, s, res, len(left) > 0)
		again = again || lost
		errs = append(errs, err)
	}
	for _, s := range left {
		lost, err := r.writePool(ctx, s, poolResult{}, true)
		again = again || lost
		errs = append(errs, err)
	}
	if again {
		r.queue.Add(poolsKey)
	}
	return later, errors.Join(errs...)
}

// poolInput gathers what decides: the Services for the pools, those that left
// them and keep their status until it is cleared, and when to look again.
func (r *reconciler) poolInput(all []*v1.Service, nodes []*v1.Node) (in poolInput, left []*v1.Service, later time.Duration) {
	in = poolInput{Pools: r.Pools, Given: map[types.UID][]netip.Addr{}, Nodes: map[netip.Addr]string{}}
	for _, n := range nodes {
		for _, na := range n.Status.Addresses {
			if a, err := netip.ParseAddr(na.Address); err == nil {
				in.Nodes[a.Unmap()] = n.Name
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range all {
		if !r.wantsPool(s) && !hasPoolCondition(s) {
			delete(r.has, s.UID) // its status is cleared
			continue
		}
		g, known := r.has[s.UID]
		if !known {
			g.addresses = poolAddresses(s)
		}
		switch {
		case s.DeletionTimestamp != nil:
		case r.wantsPool(s) && !r.othersStatus(s, nodes, known):
			in.Services = append(in.Services, s)
		case hasPoolCondition(s) && !mine(s, r.Classless):
			left = append(left, s)
		}
		if len(g.addresses) > 0 {
			g.unseenUntil = time.Time{}
			r.has[s.UID] = g
			in.Given[s.UID] = g.addresses
		}
	}
	now := time.Now()
	for uid, g := range r.has {
		if in.Given[uid] != nil {
			continue
		}
		if wait := g.unseenUntil.Sub(now); !g.unseenUntil.IsZero() && wait > 0 {
			in.Given[uid] = g.addresses
			later = max(later, wait)
			continue
		}
		delete(r.has, uid)
	}
	return in, left, later
}

// othersStatus says whether another controller answers for a Service without a
// class, as foreign does for the addresses of nodes.
func (r *reconciler) othersStatus(s *v1.Service, nodes []*v1.Node, known bool) bool {
	return !known && !hasPoolCondition(s) && foreign(s, nodes)
}

// writePool writes what a Service got. lost is true when it gave an address
// back, which others may wait for; quiet keeps problems untold that the next
// round may solve.
func (r *reconciler) writePool(ctx context.Context, s *v1.Service, res poolResult, quiet bool) (lost bool, err error) {
	status := s.Status.DeepCopy()
	status.LoadBalancer.Ingress = nil
	vip := v1.LoadBalancerIPModeVIP
	for _, a := range res.Addresses {
		status.LoadBalancer.Ingress = append(status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: a.String(), IPMode: &vip})
	}
	cond := metav1.Condition{Type: PoolCondition, Status: metav1.ConditionTrue, Reason: "Allocated", ObservedGeneration: s.Generation,
		Message: res.text(), LastTransitionTime: metav1.Now()}
	if len(res.Addresses) == 0 {
		cond.Status, cond.Reason, cond.Message = metav1.ConditionFalse, "Pending", res.Problem
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer && r.poolClass(s) {
		meta.SetStatusCondition(&status.Conditions, cond)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, PoolCondition)
	}
	r.mu.Lock()
	had := r.has[s.UID].addresses
	r.mu.Unlock()
	lost = slices.ContainsFunc(had, func(a netip.Addr) bool { return !slices.Contains(res.Addresses, a) })
	_, changed, err := kube.PatchStatus(ctx, r.Client.CoreV1().Services(s.Namespace), s, s.Status, status)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("writing the addresses of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	r.mu.Lock()
	if len(res.Addresses) > 0 && err == nil {
		r.has[s.UID] = given{addresses: res.Addresses}
	} else {
		delete(r.has, s.UID)
	}
	r.mu.Unlock()
	if err != nil || s.Spec.Type != v1.ServiceTypeLoadBalancer {
		return lost, nil
	}
	if last, told := r.told.Load(s.UID); !slices.Equal(had, res.Addresses) || changed && len(had) == 0 && res.Problem == "" ||
		res.Problem != "" && (!told || last != res.Problem) && !quiet && !lost {
		r.told.Store(s.UID, res.Problem)
		r.reportPool(s, res, had)
	}
	return lost, nil
}

// text is the form of conditions: 192.0.2.10 of pool lab.
func (r poolResult) text() string {
	var out []string
	for i, a := range r.Addresses {
		out = append(out, fmt.Sprintf("%s of pool %s", a, r.Pools[i]))
	}
	if r.Problem != "" {
		out = append(out, r.Problem)
	}
	return strings.Join(out, "; ")
}

// reportPool records one event and one journal entry.
func (r *reconciler) reportPool(s *v1.Service, res poolResult, had []netip.Addr) {
	event := controller.Event{To: r.Recorder("service-controller"), Reason: "EnsuredLoadBalancer",
		Message: "Ensured load balancer with " + res.text()}
	decision := "gave it an address of a pool"
	switch {
	case len(res.Addresses) == 0:
		event.Type, event.Reason, event.Message = v1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: "+res.Problem
		decision = "gave it no address"
	case res.Problem != "":
		event.Type, event.Reason, event.Message = v1.EventTypeWarning, "UpdatedLoadBalancer", "Updated load balancer with "+res.text()
	case len(had) > 0:
		event.Reason, event.Message = "UpdatedLoadBalancer", fmt.Sprintf("Updated load balancer with %s instead of %v", res.text(), had)
	}
	r.Tell(controller.Note{Kind: "Service", Object: s, Decision: decision, Event: event,
		Because: []journal.Fact{{Name: "addresses", Value: fmt.Sprint(res.Addresses)}, {Name: "why", Value: res.text()}}})
}
