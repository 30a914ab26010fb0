// Package claims decides who may write which part of a ResourceClaim's status.
// The right to update resourceclaims/status opens the door; what is allocated
// and who has reserved it takes resourceclaims/binding as well, and what
// drivers tell of their devices takes resourceclaims/driver, driver by driver,
// so that no driver writes another's devices or those of another node
// (KEP-4817, gate DRAResourceClaimGranularStatusAuthorization).
package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	dra "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/registry"
)

// Status is the status endpoint of claims.
type Status struct {
	*registry.Subresource
	authorizer authorizer.Authorizer
}

// NewStatus asks a before each write through main that changes a guarded part.
func NewStatus(main *registry.Subresource, a authorizer.Authorizer) *Status { return &Status{main, a} }

// Update implements rest.Updater.
func (s *Status) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	guarded := func(ctx context.Context, obj, old runtime.Object) error {
		if err := s.authorize(ctx, obj, old); err != nil {
			return err
		}
		return update(ctx, obj, old)
	}
	return s.Subresource.Update(ctx, name, info, create, guarded, force, options)
}

func (s *Status) authorize(ctx context.Context, obj, old runtime.Object) error {
	changed, ok := obj.(*dra.ResourceClaim)
	before, same := old.(*dra.ResourceClaim)
	if !ok || !same {
		return apierrors.NewInternalError(fmt.Errorf("the status of a claim came as %T, was %T", obj, old))
	}
	asked := needs(changed, before)
	if len(asked) == 0 {
		return nil
	}
	request, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("reading what the request asks for: %w", err))
	}
	var all field.ErrorList
	for _, n := range asked {
		if !s.allowed(ctx, n, request) {
			all = append(all, field.Forbidden(n.path, n.refusal(request)))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return apierrors.NewInvalid(dra.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), changed.Name, all)
}

// need is a right that a change takes.
type need struct {
	path *field.Path
	// driver is empty for the binding; else the driver whose devices change, on
	// node (empty: not on one node alone).
	driver, node string
}

// needs lists the rights that a change of a claim's status takes.
func needs(changed, old *dra.ResourceClaim) []need {
	var all []need
	now, before, p := &changed.Status, &old.Status, field.NewPath("status")
	for _, part := range []struct {
		name    string
		changed bool
	}{{"allocation", !equality.Semantic.DeepEqual(now.Allocation, before.Allocation)},
		{"reservedFor", !equality.Semantic.DeepEqual(now.ReservedFor, before.ReservedFor)}} {
		if part.changed {
			all = append(all, need{path: p.Child(part.name)})
		}
	}
	for _, driver := range changedDrivers(now.Devices, before.Devices) {
		all = append(all, need{path: p.Child("devices"), driver: driver, node: allocatedNode(before.Allocation, now.Allocation)})
	}
	return all
}

// changedDrivers are the drivers whose devices differ, in order of name.
func changedDrivers(now, before []dra.AllocatedDeviceStatus) []string {
	byDriver := func(list []dra.AllocatedDeviceStatus) map[string][]dra.AllocatedDeviceStatus {
		out := map[string][]dra.AllocatedDeviceStatus{}
		for _, d := range list {
			out[d.Driver] = append(out[d.Driver], d)
		}
		return out
	}
	is, was := byDriver(now), byDriver(before)
	all := map[string]bool{}
	for _, m := range []map[string][]dra.AllocatedDeviceStatus{is, was} {
		for driver := range m {
			if !equality.Semantic.DeepEqual(is[driver], was[driver]) {
				all[driver] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// allocatedNode is the node that a claim is bound to, by the allocation that is
// stored before one that comes along; empty if devices of the allocation can be
// used from several.
func allocatedNode(stored, coming *dra.AllocationResult) string {
	if stored == nil {
		stored = coming
	}
	if stored == nil || stored.NodeSelector == nil || len(stored.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := stored.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchFields) != 1 || len(term.MatchExpressions) != 0 {
		return ""
	}
	f := term.MatchFields[0]
	if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// allowed asks for the right. A driver on the claim's own node may do with the
// narrower verb.
func (s *Status) allowed(ctx context.Context, n need, request authorizer.Attributes) bool {
	try := func(verb, subresource, name string) bool {
		decision, _, err := s.authorizer.Authorize(ctx, part{request, verb, subresource, name})
		return err == nil && decision == authorizer.DecisionAllow
	}
	if n.driver == "" {
		return try(request.GetVerb(), dra.SubresourceBinding, request.GetName())
	}
	if n.node != "" && n.node == nodeOf(request.GetUser()) &&
		try(dra.VerbPrefixAssociatedNode+request.GetVerb(), dra.SubresourceDriver, n.driver) {
		return true
	}
	return try(dra.VerbPrefixArbitraryNode+request.GetVerb(), dra.SubresourceDriver, n.driver)
}

func (n need) refusal(request authorizer.Attributes) string {
	if n.driver == "" {
		return fmt.Sprintf("changing status.allocation or status.reservedFor requires extra permission: the verb %s on %s/%s",
			request.GetVerb(), request.GetResource(), dra.SubresourceBinding)
	}
	return fmt.Sprintf("changing the devices of driver %s requires extra permission: the verb %s%s (of a service account on the claim's "+
		"node) or %s%s on %s/%s", n.driver, dra.VerbPrefixAssociatedNode, request.GetVerb(), dra.VerbPrefixArbitraryNode,
		request.GetVerb(), request.GetResource(), dra.SubresourceDriver)
}

// nodeOf is the node on which the pod runs whose token a service account used,
// empty for anyone else.
func nodeOf(u user.Info) string {
	if u == nil {
		return ""
	}
	if _, _, err := serviceaccount.SplitUsername(u.GetName()); err != nil {
		return ""
	}
	if names := u.GetExtra()[serviceaccount.NodeNameKey]; len(names) == 1 {
		return names[0]
	}
	return ""
}

// part is a request as if it asked for a part of the claim.
type part struct {
	authorizer.Attributes
	verb, subresource, name string
}

func (p part) GetVerb() string        { return p.verb }
func (p part) GetSubresource() string { return p.subresource }
func (p part) GetName() string        { return p.name }
