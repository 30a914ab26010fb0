package coordination

import (
	"context"
	"slices"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var lease = registry.Kind[*coordination.Lease]{
	GroupVersion: coordination.SchemeGroupVersion, Kind: "Lease",
	Resource:        "leases",
	NamespaceScoped: true, AllowCreateOnUpdate: true,
	Validate:         validate.Lease,
	PrepareForCreate: func(_ context.Context, l *coordination.Lease) { dropHeartbeatOwners(l) },
	PrepareForUpdate: func(_ context.Context, l, _ *coordination.Lease) { dropHeartbeatOwners(l) },
	Table:            table.Lease,
}

// A node's heartbeat is the object that is written most: by one writer, always
// the same fields. Who owns which of them is no one's question, but keeping that
// record up to date is a good part of each write and most of the object. So it
// is not kept for leases in kube-node-lease, as for an object whose record a
// client reset; from the first server-side apply on it is.

// dropHeartbeatOwners forgets the record of a node's lease.
func dropHeartbeatOwners(l *coordination.Lease) {
	if l.Namespace == v1.NamespaceNodeLease && !applied(l) {
		l.ManagedFields = nil
	}
}

// applied says whether someone owns fields of an object by server-side apply.
func applied(l *coordination.Lease) bool {
	return slices.ContainsFunc(l.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Operation == metav1.ManagedFieldsOperationApply
	})
}
