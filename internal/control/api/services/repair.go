package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// leakAge is how old a record without a service must be before it counts as
// left over by a crash: longer than any request may take between taking an
// address and storing the service.
const leakAge = 2 * time.Minute

// repairPeriod is the distance of the safety-net passes; in a healthy cluster
// they find nothing.
const repairPeriod = 3 * time.Minute

// fix is one repair of a ledger. Exactly one of claim and release is set.
type fix[T comparable] struct {
	item    T
	claim   *owner
	release *owner
}

// conflict is an item that two services believe to have.
type conflict[T comparable] struct {
	item   T
	keeper owner
	other  owner
}

// use is one service's hold on an item, oldest service first.
type use[T comparable] struct {
	item T
	who  owner
}

// reconcile compares a ledger, read first, with the services, read after it. An
// item that a service has and the ledger lacks is claimed; a record whose owner
// does not have the item is released once it is old enough, or at once if
// another service has the item.
func reconcile[T comparable](book map[T]entry, uses []use[T], now time.Time) (fixes []fix[T], conflicts []conflict[T]) {
	holder := map[T]owner{}
	for _, u := range uses {
		if first, ok := holder[u.item]; ok {
			if first != u.who {
				conflicts = append(conflicts, conflict[T]{u.item, first, u.who})
			}
			continue
		}
		holder[u.item] = u.who
	}
	for item, e := range book {
		who, used := holder[item]
		owned := e.Owner
		switch {
		case owned == (owner{}): // not recorded by us
		case used && who == owned:
		case used && !slices.Contains(uses, use[T]{item, owned}):
			fixes = append(fixes, fix[T]{item: item, release: &owned}, fix[T]{item: item, claim: &who})
		case !used && now.Sub(e.Created) >= leakAge:
			fixes = append(fixes, fix[T]{item: item, release: &owned})
		}
	}
	for item, who := range holder {
		if _, recorded := book[item]; !recorded {
			fixes = append(fixes, fix[T]{item: item, claim: &who})
		}
	}
	return fixes, conflicts
}

// Repairs counts what a pass changed, and the conflicts it saw and cannot mend.
type Repairs struct{ Claimed, Released, Conflicts int }

// repairCounter registers the counter of repairs, or finds the one that an
// earlier server of this process registered.
func repairCounter(r prometheus.Registerer) (*prometheus.CounterVec, error) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_service_allocation_repairs_total",
		Help: "Records of cluster IPs and node ports that did not agree with the services, by what was done about them.",
	}, []string{"action"})
	if r == nil {
		return c, nil
	}
	err := r.Register(c)
	var had prometheus.AlreadyRegisteredError
	if errors.As(err, &had) {
		if same, ok := had.ExistingCollector.(*prometheus.CounterVec); ok {
			return same, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("registering metrics of service allocation: %w", err)
	}
	return c, nil
}

// findings are what one look at the records and the services shows.
type findings struct {
	ips           []fix[netip.Addr]
	ports         []fix[uint16]
	ipConflicts   []conflict[netip.Addr]
	portConflicts []conflict[uint16]
}

// findMismatches compares the allocation records, read first, with the services.
func (r *REST) findMismatches(ctx context.Context) (f findings, err error) {
	ips, err := r.alloc.ips.book.Taken(ctx)
	if err != nil {
		return f, err
	}
	ports, err := r.alloc.ports.book.Taken(ctx)
	if err != nil {
		return f, err
	}
	obj, err := r.List(ctx, &metainternalversion.ListOptions{})
	if err != nil {
		return f, fmt.Errorf("listing services: %w", err)
	}
	ipUses, portUses := usesOf(obj.(*v1.ServiceList).Items)
	now := r.deps.Now()
	f.ips, f.ipConflicts = reconcile(ips, ipUses, now)
	f.ports, f.portConflicts = reconcile(ports, portUses, now)
	return f, nil
}

// Repair makes the records of addresses and ports agree with the services.
// Requests go on meanwhile, so a single look may see a service without the
// record it has just made or given back: only what two looks agree on is fixed.
func (r *REST) Repair(ctx context.Context) (Repairs, error) {
	ctx = genericapirequest.WithNamespace(ctx, "")
	f, err := r.findMismatches(ctx)
	if err != nil {
		return Repairs{}, err
	}
	if len(f.ips)+len(f.ports) > 0 {
		again, err := r.findMismatches(ctx)
		if err != nil {
			return Repairs{}, err
		}
		f.ips, f.ports = both(f.ips, again.ips), both(f.ports, again.ports)
	}
	for _, c := range f.ipConflicts {
		r.deps.Log.Error("two services have one cluster IP; delete and recreate one", "ip", c.item, "keeps", c.keeper.String(), "other",
			c.other.String())
	}
	for _, c := range f.portConflicts {
		r.deps.Log.Error("two services have one node port; change one", "port", c.item, "keeps", c.keeper.String(), "other",
			c.other.String())
	}
	total := Repairs{Conflicts: len(f.ipConflicts) + len(f.portConflicts)}
	err = errors.Join(apply(ctx, r.alloc.ips, f.ips, &total), apply(ctx, r.alloc.ports, f.ports, &total))
	for action, n := range map[string]int{"claimed": total.Claimed, "released": total.Released, "conflict": total.Conflicts} {
		r.repairs.WithLabelValues(action).Add(float64(n))
	}
	return total, err
}

// both keeps the fixes of a that b also has, in a's order.
func both[T comparable](a, b []fix[T]) []fix[T] {
	return slices.DeleteFunc(slices.Clone(a), func(x fix[T]) bool {
		return !slices.ContainsFunc(b, func(y fix[T]) bool {
			return x.item == y.item && equal(x.claim, y.claim) && equal(x.release, y.release)
		})
	})
}

func apply[T comparable](ctx context.Context, p *pool[T], fixes []fix[T], total *Repairs) error {
	var errs []error
	for _, f := range fixes {
		switch {
		case f.claim != nil:
			switch err := p.exact(ctx, f.item, *f.claim, false); {
			case errors.Is(err, errTaken): // recorded between the two readings: nothing was wrong
			case err != nil:
				errs = append(errs, err)
			default:
				total.Claimed++
			}
		case f.release != nil:
			if err := p.release(ctx, f.item, *f.release); err != nil {
				errs = append(errs, err)
				continue
			}
			total.Released++
		}
	}
	return errors.Join(errs...)
}

// usesOf lists what the services have, oldest service first, so that of two
// holders the older keeps.
func usesOf(services []v1.Service) (ips []use[netip.Addr], ports []use[uint16]) {
	slices.SortStableFunc(services, func(a, b v1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range services {
		s := &services[i]
		who := owner{s.Namespace, s.Name}
		if hasClusterIP(s) && !headless(s) {
			for _, text := range s.Spec.ClusterIPs {
				if ip, err := netip.ParseAddr(text); err == nil {
					ips = append(ips, use[netip.Addr]{ip, who})
				}
			}
		}
		for _, port := range nodePortsOf(s) {
			ports = append(ports, use[uint16]{port, who})
		}
	}
	return ips, ports
}

// Run repairs once, and then now and then until the context ends. Errors are
// logged and the next pass tries again.
func (r *REST) Run(ctx context.Context) {
	for {
		repairs, err := r.Repair(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.deps.Log.Warn("repairing service allocations", "err", err)
		case repairs != (Repairs{}):
			r.deps.Log.Info("repaired service allocations", "claimed", repairs.Claimed, "released", repairs.Released, "conflicts",
				repairs.Conflicts)
		}
		pause := time.NewTimer(repairPeriod + rand.N(repairPeriod/10))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}
