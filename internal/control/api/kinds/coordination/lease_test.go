package coordination

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHeartbeatsHaveNoRecordOfOwners: but other leases do, and so does one that
// someone applied.
func TestHeartbeatsHaveNoRecordOfOwners(t *testing.T) {
	for _, c := range []struct {
		namespace string
		operation metav1.ManagedFieldsOperationType
		kept      bool
	}{
		{"kube-node-lease", metav1.ManagedFieldsOperationUpdate, false},
		{"kube-node-lease", metav1.ManagedFieldsOperationApply, true},
		{"kube-system", metav1.ManagedFieldsOperationUpdate, true},
	} {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "n",
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "agent", Operation: c.operation}}}}
		lease.PrepareForUpdate(t.Context(), l, nil)
		if kept := len(l.ManagedFields) > 0; kept != c.kept {
			t.Errorf("%s in %s: kept %t, want %t", c.operation, c.namespace, kept, c.kept)
		}
	}
}
