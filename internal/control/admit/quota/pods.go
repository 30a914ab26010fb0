package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/podutil"
)

const (
	countPods      = corev1.ResourceName("count/pods")
	requestsPrefix = "requests."
	limitsPrefix   = "limits."
)

var podNames = sets.New(
	corev1.ResourcePods, countPods,
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
)

func podTracks(name corev1.ResourceName) bool {
	text := string(name)
	if podNames.Has(name) || strings.HasPrefix(text, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(text, corev1.ResourceRequestsHugePagesPrefix) {
		return true
	}
	extended, requested := strings.CutPrefix(text, requestsPrefix)
	return requested && isExtended(extended)
}

// isExtended says whether a resource comes from a device plugin: a name of a
// foreign domain.
func isExtended(name string) bool {
	domain, _, qualified := strings.Cut(name, "/")
	return qualified && !strings.HasSuffix(domain, "kubernetes.io")
}

func podEvaluator(cfg Config) *evaluator {
	return &evaluator{
		resource: "pods", list: cfg.list("pods"), tracks: podTracks, lacks: podLacks, scope: podScope,
		changes: func(a admission.Attributes) bool {
			return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || movesBetweenScopes(a)) ||
				a.GetSubresource() == "resize" && a.GetOperation() == admission.Update
		},
		usage: func(item runtime.Object) (corev1.ResourceList, error) {
			pod, ok := item.(*corev1.Pod)
			if !ok {
				return nil, wrongType("Pod", item)
			}
			return podUsage(pod, cfg.Now()), nil
		},
	}
}

// movesBetweenScopes says whether an update takes a pod into or out of a scope.
// Of all that the scopes ask about only the deadline can change in a pod; any
// other update leaves the count alone and must not fail because of a quota.
func movesBetweenScopes(a admission.Attributes) bool {
	pod, isPod := a.GetObject().(*corev1.Pod)
	old, wasPod := a.GetOldObject().(*corev1.Pod)
	return a.GetOperation() == admission.Update && isPod && wasPod &&
		(pod.Spec.ActiveDeadlineSeconds == nil) != (old.Spec.ActiveDeadlineSeconds == nil)
}

// podUsage returns what a pod costs at a moment. A pod that has ended, or
// whose time to end has passed, costs only its place as an object.
func podUsage(pod *corev1.Pod, now time.Time) corev1.ResourceList {
	one := resource.MustParse("1")
	used := corev1.ResourceList{countPods: one}
	if terminated(pod, now) {
		return used
	}
	used[corev1.ResourcePods] = one
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}) {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			used[name] = quantity
			used[requestsPrefix+name] = quantity
		case isExtended(string(name)):
			used[requestsPrefix+name] = quantity
		}
	}
	for name, quantity := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			used[limitsPrefix+name] = quantity
		}
	}
	return used
}

func terminated(pod *corev1.Pod, now time.Time) bool {
	if podutil.Terminal(pod) {
		return true
	}
	// The deletion timestamp is when the grace should have ended; a node that
	// is gone never confirms, and its pods must not count for ever.
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return false
	}
	grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	return now.After(pod.DeletionTimestamp.Add(grace))
}

// computeNames are the quota names that oblige every container to state them.
var computeNames = sets.New(
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
)

func podLacks(required []corev1.ResourceName, item runtime.Object) error {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return wrongType("Pod", item)
	}
	missing := map[corev1.ResourceName][]string{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, name := range required {
				if computeNames.Has(name) && !states(&containers[i].Resources, name) && !podStates(pod, name) {
					missing[name] = append(missing[name], containers[i].Name)
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var texts []string
	for name, containers := range missing {
		slices.Sort(containers)
		texts = append(texts, fmt.Sprintf("%s for: %s", name, strings.Join(containers, ",")))
	}
	slices.Sort(texts)
	return fmt.Errorf("must specify %s", strings.Join(texts, "; "))
}

func podStates(pod *corev1.Pod, name corev1.ResourceName) bool {
	return pod.Spec.Resources != nil && states(pod.Spec.Resources, name)
}

func states(r *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	if base, limit := strings.CutPrefix(string(name), limitsPrefix); limit {
		_, set := r.Limits[corev1.ResourceName(base)]
		return set
	}
	_, set := r.Requests[corev1.ResourceName(strings.TrimPrefix(string(name), requestsPrefix))]
	return set
}

func podScope(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return false, wrongType("Pod", item)
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil, nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil, nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		return oneOf(pod.Spec.PriorityClassName, s)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity), nil
	}
	return false, nil
}

// bestEffort says whether the pod asks for no CPU and memory at all.
func bestEffort(pod *corev1.Pod) bool {
	asks := func(r *corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if q, set := list[name]; set && q.Sign() > 0 {
					return true
				}
			}
		}
		return false
	}
	if pod.Spec.Resources != nil && asks(pod.Spec.Resources) {
		return false
	}
	container := func(c corev1.Container) bool { return asks(&c.Resources) }
	return !slices.ContainsFunc(pod.Spec.InitContainers, container) && !slices.ContainsFunc(pod.Spec.Containers, container)
}

func crossesNamespaces(affinity *corev1.Affinity) bool {
	if affinity == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	if a := affinity.PodAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, w := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, w.PodAffinityTerm)
		}
	}
	if a := affinity.PodAntiAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, w := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, w.PodAffinityTerm)
		}
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		return len(t.Namespaces) > 0 || t.NamespaceSelector != nil
	})
}
