package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	renewShare  = 0.25 // of the lease's duration passes between renewals
	renewJitter = 0.04
)

// desiredLease is the Lease to write: held, when it exists, with only our
// fields changed.
func desiredLease(held *coordinationv1.Lease, name string, uid types.UID, seconds int32, now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.NamespaceNodeLease}}
	if held != nil {
		lease = held.DeepCopy()
	}
	renewed := metav1.NewMicroTime(now)
	lease.Spec.HolderIdentity = &name
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &renewed
	for _, owner := range lease.OwnerReferences {
		if owner.Kind == "Node" && owner.UID == uid {
			return lease
		}
	}
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}}
	return lease
}

// renewDelay is the time until the next renewal. The first one falls anywhere
// in the interval, so that nodes that started together do not beat together.
func renewDelay(seconds int32, first bool, random float64) time.Duration {
	interval := time.Duration(float64(seconds) * renewShare * float64(time.Second))
	if first {
		return time.Duration(random * float64(interval))
	}
	return interval + time.Duration(random*renewJitter*float64(interval))
}

// heart renews the Lease. It owns its client, waits for nothing but the Node's
// UID, and therefore renewals whatever else hangs.
type leaseRenewer struct {
	name    string
	seconds int32
	leases  coordination.LeaseInterface
	log     *slog.Logger
	metrics *metrics
	// uid is the Node's, or empty while there is none.
	uid func() types.UID
	// woken is signalled when uid changed.
	woken <-chan struct{}

	held        *coordinationv1.Lease
	renewedOnce bool // it was renewed at least once
	failures    int
}

func (h *leaseRenewer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.woken:
		case <-timer.C:
		}
		if wait, ok := h.step(ctx); ok {
			timer.Reset(wait)
		} // else until woken by the registration
	}
}

// step renews the lease if there is a Node to renew it for, and says how long
// to wait before the next; ok is false for as long as there is none.
func (h *leaseRenewer) step(ctx context.Context) (wait time.Duration, ok bool) {
	uid := h.uid()
	if uid == "" {
		h.held = nil // the garbage collector takes the Lease with the Node
		return 0, false
	}
	err := h.renew(ctx, uid)
	switch {
	case err == nil:
		wait = renewDelay(h.seconds, !h.renewedOnce, rand.Float64())
		h.failures, h.renewedOnce = 0, true
		return wait, true
	case ctx.Err() != nil:
		return 0, false
	}
	h.metrics.leaseErrors.Inc()
	h.log.Warn("renewing the node lease", "node", h.name, "err", err)
	// Never wait longer than a renewal: the lease is running out.
	wait = min(backoff(h.failures+1, rand.Float64()), renewDelay(h.seconds, false, 0))
	h.failures++
	return wait, true
}

// beat writes the Lease once. The lease's own resourceVersion guards the
// write; after a conflict it is read again.
func (h *leaseRenewer) renew(ctx context.Context, uid types.UID) error {
	interval := renewDelay(h.seconds, false, 0)
	for range 2 {
		asking, cancel := context.WithTimeout(ctx, interval)
		lease := desiredLease(h.held, h.name, uid, h.seconds, time.Now())
		var written *coordinationv1.Lease
		var err error
		if h.held == nil {
			written, err = h.leases.Create(asking, lease, metav1.CreateOptions{})
		} else {
			written, err = h.leases.Update(asking, lease, metav1.UpdateOptions{})
		}
		if err == nil {
			cancel()
			written.ManagedFields = nil // most of the object, and the server's own business
			h.held = written
			return nil
		}
		switch {
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
			h.held, err = h.leases.Get(asking, h.name, metav1.GetOptions{})
			cancel()
			if err != nil {
				h.held = nil
				return err
			}
			continue
		case apierrors.IsNotFound(err) && h.held != nil:
			h.held = nil
			cancel()
			continue
		}
		cancel()
		return err
	}
	return apierrors.NewConflict(coordinationv1.Resource("leases"), h.name, errLeaseContended)
}
