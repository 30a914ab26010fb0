package api

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A node's heartbeat is the object that is written most: by one writer, always
// the same fields. Who owns which of them is nobody's question, but keeping that
// record up to date is a good part of each write and most of the object. So it
// is not kept for leases in kube-node-lease, as for an object whose record a
// client reset; from the first server-side apply on it is.

// prepareHeartbeat starts without a record.
func prepareHeartbeat(_ context.Context, obj runtime.Object) {
	if lease := accessor(obj); lease.GetNamespace() == corev1.NamespaceNodeLease && !applied(lease) {
		lease.SetManagedFields(nil)
	}
}

// prepareHeartbeatUpdate drops the record of a lease that has one from before.
func prepareHeartbeatUpdate(ctx context.Context, obj, _ runtime.Object) { prepareHeartbeat(ctx, obj) }

// applied says whether somebody owns fields of an object by server-side apply.
func applied(obj metav1.Object) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Operation == metav1.ManagedFieldsOperationApply })
}
