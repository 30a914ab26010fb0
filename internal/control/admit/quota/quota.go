// Package quota says what an object costs against a ResourceQuota: the same
// measure for admission, which refuses what goes over, and for the controller
// that counts what is there.
//
// The usage functions are pure. The library's quota.CalculateUsage with a
// registry of Evaluators counts a namespace.
package quota

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// Config is what the evaluators need.
type Config struct {
	// Lister finds objects to count; admission, which counts single objects
	// only, leaves it nil.
	Lister quotav1.ListerForResourceFunc
	// Now decides when a pod that should be gone stops counting; nil: time.Now.
	Now func() time.Time
}

// NewConfiguration is what quota admission and the quota controller share:
// what each kind costs, and which kinds never count.
func NewConfiguration(cfg Config) quotav1.Configuration {
	return generic.NewConfiguration(Evaluators(cfg), map[schema.GroupResource]struct{}{
		// Events are written about objects and must not fail because of them.
		{Resource: "events"}:                         {},
		{Group: "events.k8s.io", Resource: "events"}: {},
	})
}

// counted are the kinds with a plain object count of their own name beside
// the general count/<resource>.
var counted = []string{"configmaps", "resourcequotas", "replicationcontrollers", "secrets"}

// Evaluators returns the evaluators of all kinds with a cost of their own.
// Others are counted as count/<resource>.<group>, by evaluators that admission
// makes as it meets them.
func Evaluators(cfg Config) []quotav1.Evaluator {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	all := []quotav1.Evaluator{podEvaluator(cfg), serviceEvaluator(cfg), claimEvaluator(cfg), deviceEvaluator(cfg)}
	for _, name := range counted {
		all = append(all, generic.NewObjectCountEvaluator(schema.GroupResource{Resource: name}, cfg.list(name), corev1.ResourceName(name)))
	}
	return all
}

func (c Config) list(resource string) generic.ListFuncByNamespace {
	return c.listOf(schema.GroupVersionResource{Version: "v1", Resource: resource})
}

func (c Config) listOf(resource schema.GroupVersionResource) generic.ListFuncByNamespace {
	if c.Lister == nil {
		return func(string) ([]runtime.Object, error) {
			return nil, fmt.Errorf("counting %s: no lister was configured", resource.Resource)
		}
	}
	return generic.ListResourceUsingListerFunc(c.Lister, resource)
}

// evaluator judges one kind by functions.
type evaluator struct {
	group, resource string

	list generic.ListFuncByNamespace
	// tracks says which quota names this kind counts towards.
	tracks func(corev1.ResourceName) bool
	// changes says which requests can change the count.
	changes func(admission.Attributes) bool
	// lacks names what an object must state before it can be counted.
	lacks func(required []corev1.ResourceName, item runtime.Object) error
	usage generic.UsageFunc
	scope generic.MatchesScopeFunc
}

func (e *evaluator) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: e.group, Resource: e.resource}
}

func (e *evaluator) Handles(a admission.Attributes) bool { return e.changes(a) }

func (e *evaluator) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	return e.lacks(required, item)
}

func (e *evaluator) Usage(item runtime.Object) (corev1.ResourceList, error) { return e.usage(item) }

func (e *evaluator) MatchingResources(input []corev1.ResourceName) []corev1.ResourceName {
	return slices.DeleteFunc(slices.Clone(input), func(name corev1.ResourceName) bool { return !e.tracks(name) })
}

func (e *evaluator) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, e.MatchingResources, e.scope)
}

func (e *evaluator) MatchingScopes(item runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) (
	[]corev1.ScopedResourceSelectorRequirement, error) {
	matching := []corev1.ScopedResourceSelectorRequirement{}
	for _, scope := range scopes {
		matches, err := e.scope(scope, item)
		if err != nil {
			return nil, fmt.Errorf("matching scope %s: %w", scope.ScopeName, err)
		}
		if matches {
			matching = append(matching, scope)
		}
	}
	return matching, nil
}

func (e *evaluator) UncoveredQuotaScopes(limited, matched []corev1.ScopedResourceSelectorRequirement) (
	[]corev1.ScopedResourceSelectorRequirement, error) {
	uncovered := []corev1.ScopedResourceSelectorRequirement{}
	for _, l := range limited {
		if !slices.ContainsFunc(matched, func(m corev1.ScopedResourceSelectorRequirement) bool {
			return m.ScopeName == l.ScopeName && m.Operator == l.Operator && slices.Equal(m.Values, l.Values)
		}) {
			uncovered = append(uncovered, l)
		}
	}
	return uncovered, nil
}

func (e *evaluator) UsageStats(options quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return generic.CalculateUsageStats(options, e.list, e.scope, e.usage)
}

// oneOf says whether an operator and its values hold for a name, "" being
// none at all.
func oneOf(name string, s corev1.ScopedResourceSelectorRequirement) (bool, error) {
	switch s.Operator {
	case corev1.ScopeSelectorOpExists, "":
		return name != "", nil
	case corev1.ScopeSelectorOpDoesNotExist:
		return name == "", nil
	case corev1.ScopeSelectorOpIn:
		return name != "" && slices.Contains(s.Values, name), nil
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(s.Values, name), nil
	}
	return false, fmt.Errorf("operator %q is not one of In, NotIn, Exists, DoesNotExist", s.Operator)
}

func wrongType(want string, item runtime.Object) error {
	return fmt.Errorf("measuring a %s: got a %T", want, item)
}
