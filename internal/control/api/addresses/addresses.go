// Package addresses serves ServiceCIDRs, the ranges that cluster IPs come from,
// and IPAddresses, the record of those in use.
package addresses

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
)

// DefaultRange is the name of the ServiceCIDR that mirrors the server's configuration.
const DefaultRange = "kubernetes"

// protection keeps a ServiceCIDR while addresses of it are in use.
const protection = "networking.k8s.io/service-cidr-finalizer"

// Ranges returns a reader of the ready ranges in storages, oldest first.
func Ranges(storages map[string]rest.Storage) func(ctx context.Context) ([]netip.Prefix, error) {
	lister := storages["servicecidrs"].(rest.Lister)
	return func(ctx context.Context) ([]netip.Prefix, error) {
		ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
		// Served from the watch cache: an address is checked against the range
		// again nowhere, but ranges only ever come and go at the pace of
		// administrators.
		obj, err := lister.List(ctx, &metainternalversion.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, fmt.Errorf("listing service ranges: %w", err)
		}
		return ready(obj.(*networkingv1.ServiceCIDRList).Items), nil
	}
}

// ready lists the prefixes of ranges that are in service. A range that is being
// deleted gives out no new addresses.
func ready(items []networkingv1.ServiceCIDR) []netip.Prefix {
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b networkingv1.ServiceCIDR) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	var out []netip.Prefix
	for i := range items {
		if items[i].DeletionTimestamp != nil || !meta.IsStatusConditionTrue(items[i].Status.Conditions,
			networkingv1.ServiceCIDRConditionReady) {
			continue
		}
		for _, text := range items[i].Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				out = append(out, p.Masked())
			}
		}
	}
	return out
}

// Publish makes the ServiceCIDR that shows the configured ranges, and marks it
// ready. It can run any number of times. An existing object with other ranges
// is left alone: ranges in use do not change.
func Publish(ctx context.Context, client networkingclient.ServiceCIDRInterface, ranges []netip.Prefix) error {
	want := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: DefaultRange, Finalizers: []string{protection}}}
	for _, p := range ranges {
		want.Spec.CIDRs = append(want.Spec.CIDRs, p.Masked().String())
	}
	have, err := client.Get(ctx, DefaultRange, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = client.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			have, err = client.Get(ctx, DefaultRange, metav1.GetOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("publishing service ranges %v: %w", want.Spec.CIDRs, err)
	}
	condition := metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Ready",
		Message: "Kubernetes default Service CIDR is ready",
	}
	if !slices.Equal(have.Spec.CIDRs, want.Spec.CIDRs) {
		condition.Status, condition.Reason = metav1.ConditionFalse, "Inconsistent"
		condition.Message = fmt.Sprintf("the server is configured with other ranges: %v", want.Spec.CIDRs)
	}
	if !meta.SetStatusCondition(&have.Status.Conditions, condition) {
		return nil
	}
	if _, err := client.UpdateStatus(ctx, have, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("marking service ranges ready: %w", err)
	}
	return nil
}
