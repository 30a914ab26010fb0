package admit

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apiserver/pkg/admission"
)

// announceNamespace holds the claims of pool addresses (internal/proxy/announce).
const announceNamespace = "berth-load-balancer"

// judgeAnnouncing keeps a node to claims in its own name: what it writes has itself
// as holder, or nobody. It may end the claims of others, since that is how an
// address leaves a lost node; it could as well answer for the address without a
// claim. It may delete nothing: an address whose claim is deleted waits.
func judgeAnnouncing(node string, a admission.Attributes) error {
	if op := a.GetOperation(); op != admission.Create && op != admission.Update {
		return fmt.Errorf("nodes may create and update the leases of namespace %q, and nothing else", announceNamespace)
	}
	lease, ok := a.GetObject().(*coordinationv1.Lease)
	if !ok {
		return wrongObject(a)
	}
	if h := lease.Spec.HolderIdentity; h != nil && *h != "" && *h != node {
		return fmt.Errorf("holderIdentity %q: a node can claim addresses for itself only", *h)
	}
	return nil
}
