package aggregation

import (
	"log/slog"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Priorities of the groups of custom resources: after all built-in ones. Their
// versions are equal here and thus ordered by name, v1 before v1beta1.
const (
	customGroupPriority   = 1000
	customVersionPriority = 100
)

// keeper keeps the registrations it is given and deletes those it is no longer.
type keeper interface {
	AddAPIServiceToSync(*apiregistrationv1.APIService)
	RemoveAPIServiceToSync(name string)
}

// customGroups keeps the registered versions in step with the definitions. Its
// handler runs in the one goroutine that delivers events.
type customGroups struct {
	definitions crdlisters.CustomResourceDefinitionLister
	keeper      keeper
	log         *slog.Logger
	known       sets.Set[string] // names of the registrations
}

func (c *customGroups) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.syncRegistrations() },
		UpdateFunc: func(any, any) { c.syncRegistrations() },
		DeleteFunc: func(any) { c.syncRegistrations() },
	}
}

// syncRegistrations adds an APIService for each group version that a definition
// serves, and removes those that no definition serves any more.
func (c *customGroups) syncRegistrations() {
	all, err := c.definitions.List(labels.Everything())
	if err != nil {
		c.log.Error("listing custom resource definitions", "err", err)
		return
	}
	wanted := sets.New[string]()
	for _, gv := range servedBy(all) {
		service := apiService(gv, customGroupPriority, customVersionPriority)
		wanted.Insert(service.Name)
		if !c.known.Has(service.Name) {
			c.keeper.AddAPIServiceToSync(service)
		}
	}
	for name := range c.known.Difference(wanted) {
		c.keeper.RemoveAPIServiceToSync(name)
	}
	c.known = wanted
}

// servedBy are the group versions that established definitions serve.
func servedBy(definitions []*apiextensionsv1.CustomResourceDefinition) []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, crd := range definitions {
		if !established(crd) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if gv := (schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}); v.Served && !slices.Contains(out, gv) {
				out = append(out, gv)
			}
		}
	}
	return out
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}
