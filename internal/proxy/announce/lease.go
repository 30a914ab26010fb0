package announce

import (
	"context"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// Namespace holds the Leases that are records and sessions. It is one of their
// own, since nodes may write them.
const Namespace = "berth-load-balancer"

// sessionKey is the annotation of a record that names the session under which
// it was written.
const sessionKey = "berth.dev/session"

// mostWait bounds one request: two of them fit into a term.
const mostWait = 600 * time.Millisecond

// entryOf reads a Lease.
func entryOf(l *coordinationv1.Lease, deleted bool) (entry, bool) {
	version, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil || version == 0 {
		return entry{}, false
	}
	return entry{name: l.Name, version: version, deleted: deleted, uid: string(l.UID), holder: ptr.Deref(l.Spec.HolderIdentity, ""),
		turn: ptr.Deref(l.Spec.LeaseTransitions, 0), session: l.Annotations[sessionKey]}, true
}

// leaseOf is the Lease that an action writes.
func leaseOf(a action, t timing) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: a.entry.name, UID: types.UID(a.entry.uid)}}
	if a.entry.version != 0 {
		l.ResourceVersion = strconv.FormatUint(a.entry.version, 10)
	}
	// A Lease's holder may not be an empty string; none is one that is free.
	if a.entry.holder != "" {
		l.Spec.HolderIdentity = &a.entry.holder
	}
	if a.entry.session != "" {
		l.Annotations = map[string]string{sessionKey: a.entry.session}
	}
	now := metav1.NowMicro()
	switch a.kind {
	case begin, renew, fence:
		l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = ptr.To(int32((t.wait+time.Second-1)/time.Second)), &now
	case take:
		l.Spec.AcquireTime = &now
	}
	if _, record := addressOf(a.entry.name); !record {
		l.Spec.LeaseTransitions = &a.entry.turn
	}
	return l
}

// perform does a write. is is the entry as it is now, if that is known; an error
// tells why it was not taken, unless another write came first.
func perform(ctx context.Context, api coordinationclient.LeaseInterface, a action, t timing) (is *entry, taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	var l *coordinationv1.Lease
	if a.entry.version == 0 {
		l, err = api.Create(ctx, leaseOf(a, t), metav1.CreateOptions{})
	} else {
		l, err = api.Update(ctx, leaseOf(a, t), metav1.UpdateOptions{})
	}
	if err == nil {
		if e, ok := entryOf(l, false); ok {
			return &e, true, nil
		}
		return nil, false, nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return nil, false, err
	}
	if l, err = api.Get(ctx, a.entry.name, metav1.GetOptions{}); apierrors.IsNotFound(err) && a.entry.version != 0 {
		// It was deleted after the version that is known.
		return &entry{name: a.entry.name, version: a.entry.version + 1, deleted: true}, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if e, ok := entryOf(l, false); ok {
		return &e, false, nil
	}
	return nil, false, nil
}
