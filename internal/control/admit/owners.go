package admit

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/ptr"
)

// OwnerReferencesPermissionEnforcement asks for the right to delete an object
// from who changes its owners, since its owners' end is its own, and for the
// right to set finalizers on an owner from who lets the object block its end.
const OwnerReferencesPermissionEnforcement = "OwnerReferencesPermissionEnforcement"

// wantsRESTMapper is how a plugin asks for the mapper of kinds to resources.
type wantsRESTMapper interface{ setRESTMapper(meta.RESTMapper) }

type ownerRights struct {
	*admission.Handler
	authorizer authorizer.UnconditionalAuthorizer
	mapper     meta.RESTMapper
}

func newOwnerReferencesPermissionEnforcement(io.Reader) (admission.Interface, error) {
	return &ownerRights{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (o *ownerRights) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	o.authorizer = a
}
func (o *ownerRights) setRESTMapper(m meta.RESTMapper) { o.mapper = m }

func (o *ownerRights) ValidateInitialization() error {
	if o.authorizer == nil || o.mapper == nil {
		return errors.New(OwnerReferencesPermissionEnforcement + " needs an authorizer and a REST mapper")
	}
	return nil
}

func (o *ownerRights) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	// The status of a pod leaves its owners alone.
	if a.GetResource().GroupResource() == podsResource && a.GetSubresource() == "status" {
		return nil
	}
	now, had := ownersOf(a.GetObject()), ownersOf(a.GetOldObject())
	if equality.Semantic.DeepEqual(now, had) {
		return nil
	}
	// Who creates an object may give it any owner: it could delete it as well.
	if a.GetOperation() != admission.Create {
		allowed, reason := o.may(ctx, a, "delete", a.GetResource(), a.GetSubresource(), a.GetName(), a.GetNamespace())
		if !allowed {
			return admission.NewForbidden(a, fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %s", reason))
		}
	}
	for _, owner := range newBlocks(now, had) {
		if err := o.mayBlock(ctx, a, owner); err != nil {
			return admission.NewForbidden(a,
				fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %w", err))
		}
	}
	return nil
}

func (o *ownerRights) mayBlock(ctx context.Context, a admission.Attributes, owner metav1.OwnerReference) error {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return err
	}
	mapping, err := o.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: owner.Kind}, gv.Version)
	if err != nil {
		return fmt.Errorf("finding the resource of kind %s of %s: %w", owner.Kind, owner.APIVersion, err)
	}
	namespace := ""
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace = a.GetNamespace()
	}
	if allowed, reason := o.may(ctx, a, "update", mapping.Resource, "finalizers", owner.Name, namespace); !allowed {
		if reason != "" {
			reason = ": " + reason
		}
		return fmt.Errorf("%s %q%s", mapping.Resource.GroupResource(), owner.Name, reason)
	}
	return nil
}

func (o *ownerRights) may(ctx context.Context, a admission.Attributes, verb string, on schema.GroupVersionResource, sub, name,
	namespace string) (bool, string) {
	decision, reason, err := o.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: namespace, APIGroup: on.Group, APIVersion: on.Version,
		Resource: on.Resource, Subresource: sub, Name: name, ResourceRequest: true,
	})
	if err != nil {
		reason = err.Error()
	}
	return decision == authorizer.DecisionAllow, reason
}

func ownersOf(object runtime.Object) []metav1.OwnerReference {
	if object == nil {
		return nil
	}
	m, err := meta.Accessor(object)
	if err != nil {
		return nil
	}
	return m.GetOwnerReferences()
}

// newBlocks returns the references that block their owner's deletion and did
// not before.
func newBlocks(now, had []metav1.OwnerReference) []metav1.OwnerReference {
	blocked := map[any]bool{}
	for _, ref := range had {
		blocked[ref.UID] = blocked[ref.UID] || ptr.Deref(ref.BlockOwnerDeletion, false)
	}
	var out []metav1.OwnerReference
	for _, ref := range now {
		if ptr.Deref(ref.BlockOwnerDeletion, false) && !blocked[ref.UID] {
			out = append(out, ref)
		}
	}
	return out
}
