package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Names of the admission of addresses that draw others' packets to a Service
// (CVE-2020-8554, kubernetes/kubernetes#97076).
const (
	// DenyServiceExternalIPs refuses new external IPs of Services. Upstream has
	// it off; here it is on: anyone who needs external IPs disables it.
	DenyServiceExternalIPs = "DenyServiceExternalIPs"
	// ServiceLoadBalancerIngressRestriction lets only those write the addresses
	// of a load balancer who may write the status of Services everywhere.
	ServiceLoadBalancerIngressRestriction = "ServiceLoadBalancerIngressRestriction"
)

var servicesResource = schema.GroupResource{Resource: "services"}

type denyExternalIPs struct{ *admission.Handler }

func newDenyServiceExternalIPs(io.Reader) (admission.Interface, error) {
	return &denyExternalIPs{admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (d *denyExternalIPs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	service, ok := a.GetObject().(*corev1.Service)
	if !ok || !isFor(a, servicesResource) {
		return nil
	}
	var had []string
	if old, ok := a.GetOldObject().(*corev1.Service); ok {
		had = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(had, ip) {
			return admission.NewForbidden(a,
				fmt.Errorf("spec.externalIPs: %s: a Service with an external IP gets all packets of the cluster to that address; "+
					"use type LoadBalancer, or let the administrator start the server with --disable-admission-plugins=%s", ip,
					DenyServiceExternalIPs))
		}
	}
	return nil
}

// ingressRestriction tells load balancer controllers from tenants by the reach
// of their right: a controller's is cluster-wide, a tenant's ends with the
// namespace.
type ingressRestriction struct {
	*admission.Handler
	authorizer authorizer.UnconditionalAuthorizer
}

func newServiceLoadBalancerIngressRestriction(io.Reader) (admission.Interface, error) {
	return &ingressRestriction{Handler: admission.NewHandler(admission.Update)}, nil
}

func (r *ingressRestriction) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	r.authorizer = a
}

func (r *ingressRestriction) ValidateInitialization() error {
	if r.authorizer == nil {
		return errors.New(ServiceLoadBalancerIngressRestriction + " needs an authorizer")
	}
	return nil
}

func (r *ingressRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != servicesResource || a.GetSubresource() != "status" {
		return nil
	}
	now, ok := a.GetObject().(*corev1.Service)
	old, alsoOk := a.GetOldObject().(*corev1.Service)
	if !ok || !alsoOk {
		return nil
	}
	for i := range now.Status.LoadBalancer.Ingress {
		ingress := &now.Status.LoadBalancer.Ingress[i]
		if slices.ContainsFunc(old.Status.LoadBalancer.Ingress, func(was corev1.LoadBalancerIngress) bool {
			return equality.Semantic.DeepEqual(was, *ingress)
		}) {
			continue
		}
		if everywhere(ctx, r.authorizer, a) {
			return nil
		}
		return admission.NewForbidden(a,
			fmt.Errorf("status.loadBalancer.ingress[%d]: %s%s draws the packets to that address; only who may update services/status in "+
				"all namespaces "+
				"may set it, as controllers of load balancers may (plugin %s)", i, ingress.IP, ingress.Hostname,
				ServiceLoadBalancerIngressRestriction))
	}
	return nil
}

// everywhere says whether the requester may update or patch what the request
// writes in all namespaces.
func everywhere(ctx context.Context, by authorizer.UnconditionalAuthorizer, a admission.Attributes) bool {
	return slices.ContainsFunc([]string{"update", "patch"}, func(verb string) bool {
		decision, _, _ := by.Authorize(ctx, authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: verb, APIGroup: a.GetResource().Group, APIVersion: a.GetResource().Version,
			Resource: a.GetResource().Resource, Subresource: a.GetSubresource(), ResourceRequest: true,
		})
		return decision == authorizer.DecisionAllow
	})
}
