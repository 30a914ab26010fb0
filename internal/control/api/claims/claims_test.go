package claims

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	dra "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// rights are "VERB RESOURCE/SUBRESOURCE NAME" that a user has.
type rights []string

func (r rights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(r, a.GetVerb()+" "+a.GetResource()+"/"+a.GetSubresource()+" "+a.GetName()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func on(node string) *dra.AllocationResult {
	return &dra.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{node}}}}}}}
}

func TestWhoMayWriteWhat(t *testing.T) {
	device := func(driver string) dra.AllocatedDeviceStatus {
		return dra.AllocatedDeviceStatus{Driver: driver, Pool: "p", Device: "d"}
	}
	bound := dra.ResourceClaimStatus{Allocation: on("n1")}
	told := dra.ResourceClaimStatus{Allocation: on("n1"), Devices: []dra.AllocatedDeviceStatus{device("a.example.com")}}
	account := &user.DefaultInfo{Name: "system:serviceaccount:ns:driver",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}}
	elsewhere := &user.DefaultInfo{Name: account.Name, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n2"}}}
	claimed := &user.DefaultInfo{Name: "someone", Extra: account.Extra}
	associated, arbitrary := "associated-node:update resourceclaims/driver a.example.com",
		"arbitrary-node:update resourceclaims/driver a.example.com"
	for name, c := range map[string]struct {
		user    user.Info
		rights  rights
		now, is dra.ResourceClaimStatus
		refused string
	}{
		"nothing changes":   {claimed, nil, told, told, ""},
		"a scheduler binds": {claimed, rights{"update resourceclaims/binding c"}, bound, dra.ResourceClaimStatus{}, ""},
		"a driver binds":    {account, rights{associated, arbitrary}, bound, dra.ResourceClaimStatus{}, "status.allocation"},
		"a driver unbinds":  {account, rights{associated, arbitrary}, dra.ResourceClaimStatus{}, bound, "status.allocation"},
		"a reservation without the right": {claimed, rights{arbitrary}, dra.ResourceClaimStatus{Allocation: on("n1"),
			ReservedFor: []dra.ResourceClaimConsumerReference{{Name: "p"}}}, bound, "status.reservedFor"},
		"a driver on the node":         {account, rights{associated}, told, bound, ""},
		"a driver on another node":     {elsewhere, rights{associated}, told, bound, "a.example.com"},
		"a user that says it is on it": {claimed, rights{associated}, told, bound, "a.example.com"},
		"a controller for all nodes":   {elsewhere, rights{arbitrary}, told, bound, ""},
		"another driver's devices": {account, rights{"associated-node:update resourceclaims/driver b.example.com"}, told, bound,
			"a.example.com"},
		"another driver's devices go": {account, rights{"associated-node:update resourceclaims/driver b.example.com"}, bound, told,
			"a.example.com"},
		"a scheduler tells of devices": {claimed, rights{"update resourceclaims/binding c"}, told, bound, "a.example.com"},
		"a binding right for another one": {claimed, rights{"update resourceclaims/binding d"}, bound, dra.ResourceClaimStatus{},
			"status.allocation"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := request.WithUser(request.WithRequestInfo(t.Context(), &request.RequestInfo{IsResourceRequest: true, Verb: "update",
				APIGroup: "resource.k8s.io", Resource: "resourceclaims", Subresource: "status", Namespace: "ns", Name: "c"}), c.user)
			now, old := &dra.ResourceClaim{Status: c.now}, &dra.ResourceClaim{Status: c.is}
			err := (&Status{authorizer: authorizer.AuthorizerFunc(c.rights.Authorize)}).authorize(ctx, now, old)
			if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("%v, want %q refused", err, c.refused)
			}
		})
	}
}

// An allocation that reaches further than one node belongs to none.
func TestAllocatedNode(t *testing.T) {
	if got := allocatedNode(on("n1"), on("n2")); got != "n1" {
		t.Errorf("the stored allocation: %q", got)
	}
	if got := allocatedNode(nil, on("n2")); got != "n2" {
		t.Errorf("the first allocation: %q", got)
	}
	for name, a := range map[string]*dra.AllocationResult{
		"no selector": {}, "two nodes": func() *dra.AllocationResult {
			a := on("n1")
			a.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values = []string{"n1", "n2"}
			return a
		}(),
	} {
		if got := allocatedNode(a, nil); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
