package pods

import (
	"context"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/internal/podutil"
)

// This file holds the rules of the pod strategy as functions over plain pods.
// None of them reads a clock.

// gatedMessage is what describe shows on a pod that may not be scheduled yet.
const gatedMessage = "Scheduling is blocked due to non-empty scheduling gates"

// defaultGrace is used when neither the delete options nor the pod say how long
// a pod may take to stop. Decoded pods always have
// spec.terminationGracePeriodSeconds, so it applies to objects written around
// the API only.
const defaultGrace int64 = 0

// prepareNew brings a pod from a create request into the state every new pod starts in.
func prepareNew(pod *v1.Pod, now metav1.Time) {
	pod.Generation = 1
	noNegativeGrace(pod)
	mirrorServiceAccount(pod)
	mergeMatchLabelKeys(pod)
	appArmorFields(pod)
	pod.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: qos(pod)}
	if len(pod.Spec.SchedulingGates) > 0 {
		pod.Status.Conditions = []v1.PodCondition{{
			Type: v1.PodScheduled, Status: v1.ConditionFalse,
			Reason: v1.PodReasonSchedulingGated, Message: gatedMessage, LastTransitionTime: now,
		}}
	}
}

// appArmorFields gives containers the profile that a deprecated annotation
// names, where their field says nothing: who reads the field (PodSecurity does)
// sees what the node will do. What does not read is left for validation to
// refuse.
func appArmorFields(pod *v1.Pod) {
	if pod.Spec.OS != nil && pod.Spec.OS.Name == v1.Windows {
		return
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			annotation, ok := pod.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
			if !ok || (c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil) {
				continue
			}
			if profile := appArmorField(annotation); profile != nil {
				if c.SecurityContext == nil {
					c.SecurityContext = &v1.SecurityContext{}
				}
				c.SecurityContext.AppArmorProfile = profile
			}
		}
	}
}

func appArmorField(annotation string) *v1.AppArmorProfile {
	name, local := strings.CutPrefix(annotation, "localhost/")
	switch {
	case annotation == "runtime/default":
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case annotation == "unconfined":
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	case local && strings.TrimSpace(name) == name && name != "":
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}

// prepareChange keeps what an update of the main resource may not write, and
// counts the change.
func prepareChange(pod, old *v1.Pod) {
	pod.Status = old.Status
	noNegativeGrace(pod)
	mirrorServiceAccount(pod)
	bumpGeneration(pod, old)
}

// noNegativeGrace reads a negative grace as the shortest: old clients send -1.
func noNegativeGrace(pod *v1.Pod) {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		one := int64(1)
		pod.Spec.TerminationGracePeriodSeconds = &one
	}
}

func bumpGeneration(pod, old *v1.Pod) {
	if !apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		pod.Generation = old.Generation + 1
	}
}

// mirrorServiceAccount keeps the deprecated field serviceAccount equal to
// serviceAccountName; old clients read it.
func mirrorServiceAccount(pod *v1.Pod) {
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = pod.Spec.DeprecatedServiceAccount
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
}

// mergeMatchLabelKeys turns matchLabelKeys and mismatchLabelKeys of
// (anti-)affinity terms into requirements of the term's selector, with the
// values this pod has now. The scheduler then needs the selector only.
func mergeMatchLabelKeys(pod *v1.Pod) {
	a := pod.Spec.Affinity
	if a == nil {
		return
	}
	merge := func(terms []v1.PodAffinityTerm, weighted []v1.WeightedPodAffinityTerm) {
		for i := range terms {
			mergeTerm(&terms[i], pod.Labels)
		}
		for i := range weighted {
			mergeTerm(&weighted[i].PodAffinityTerm, pod.Labels)
		}
	}
	if p := a.PodAffinity; p != nil {
		merge(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		merge(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func mergeTerm(term *v1.PodAffinityTerm, labels map[string]string) {
	if term.LabelSelector == nil {
		return
	}
	add := func(keys []string, op metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := labels[key]; ok {
				term.LabelSelector.MatchExpressions = append(term.LabelSelector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	add(term.MatchLabelKeys, metav1.LabelSelectorOpIn)
	add(term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
}

// keepForStatus restores what a write to the status subresource may not change,
// and what an older writer could not know: a QoS class or an observed
// generation once set never becomes empty again.
func keepForStatus(pod, old *v1.Pod) {
	pod.Spec = old.Spec
	pod.DeletionTimestamp = old.DeletionTimestamp
	pod.OwnerReferences = old.OwnerReferences
	if pod.Status.QOSClass == "" {
		pod.Status.QOSClass = old.Status.QOSClass
	}
	if pod.Status.ObservedGeneration == 0 {
		pod.Status.ObservedGeneration = old.Status.ObservedGeneration
	}
	observed := map[v1.PodConditionType]int64{}
	for _, c := range old.Status.Conditions {
		observed[c.Type] = c.ObservedGeneration
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.ObservedGeneration == 0 {
			c.ObservedGeneration = observed[c.Type]
		}
	}
	alignIPs(&pod.Status)
}

// alignIPs keeps podIP the first of podIPs and hostIP the first of hostIPs. A
// writer that knows only the singular field replaces the list.
func alignIPs(s *v1.PodStatus) {
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []v1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
	switch {
	case s.HostIP == "" && len(s.HostIPs) > 0:
		s.HostIP = s.HostIPs[0].IP
	case s.HostIP != "" && len(s.HostIPs) > 0 && s.HostIPs[0].IP != s.HostIP:
		s.HostIPs = []v1.HostIP{{IP: s.HostIP}}
	}
}

// onlyEphemeral lets an update change spec.ephemeralContainers and nothing else.
func onlyEphemeral(pod, old *v1.Pod) {
	added := pod.Spec.EphemeralContainers
	restore(pod, old)
	pod.Spec.EphemeralContainers = added
	bumpGeneration(pod, old)
}

// onlyResources lets an update change the resources and resize policies of
// containers, and of the pod. Which containers there are, and in which order,
// stays as the request has it: the check refuses what differs.
func onlyResources(pod, old *v1.Pod) {
	main, inits, whole := pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.Resources
	restore(pod, old)
	pod.Spec.Containers = resourcesOf(main, pod.Spec.Containers)
	pod.Spec.InitContainers = resourcesOf(inits, pod.Spec.InitContainers)
	pod.Spec.Resources = whole
	bumpGeneration(pod, old)
}

// resourcesOf is the requested list with the stored containers in it, but for
// what a resize may change.
func resourcesOf(asked, stored []v1.Container) []v1.Container {
	byName := make(map[string]*v1.Container, len(stored))
	for i := range stored {
		byName[stored[i].Name] = &stored[i]
	}
	out := slices.Clone(asked)
	for i := range out {
		if c, ok := byName[out[i].Name]; ok {
			resources, policy := out[i].Resources, out[i].ResizePolicy
			out[i] = *c
			out[i].Resources, out[i].ResizePolicy = resources, policy
		}
	}
	return out
}

// restore puts everything but the request's identity and field ownership back
// to the stored state.
func restore(pod, old *v1.Pod) {
	was := old.DeepCopy()
	uid, rv, managed := pod.UID, pod.ResourceVersion, pod.ManagedFields
	pod.Spec, pod.Status, pod.ObjectMeta = was.Spec, was.Status, was.ObjectMeta
	pod.UID, pod.ResourceVersion, pod.ManagedFields = uid, rv, managed
}

// graceFor says how many seconds a pod gets to stop: what the request asks for,
// else what the pod asks for; a pod that no node runs, or that has ended, needs
// none.
func graceFor(pod *v1.Pod, requested *int64) int64 {
	grace := defaultGrace
	switch {
	case requested != nil:
		grace = *requested
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	switch {
	case pod.Spec.NodeName == "", podutil.Terminal(pod):
		return 0
	case grace < 0:
		return 1
	}
	return grace
}

// qos returns the quality of service class of a pod's spec. Only positive
// amounts of cpu and memory count. Resources of the pod as a whole, when
// present, replace those of its containers.
func qos(pod *v1.Pod) v1.PodQOSClass {
	parts := []v1.ResourceRequirements{}
	if r := pod.Spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		parts = append(parts, *r)
	} else {
		for c := range allContainers(&pod.Spec) {
			parts = append(parts, c.Resources)
		}
	}
	asked, guaranteed := false, true
	for _, r := range parts {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			request, hasRequest := positive(r.Requests, name)
			limit, hasLimit := positive(r.Limits, name)
			asked = asked || hasRequest || hasLimit
			guaranteed = guaranteed && hasLimit && (!hasRequest || request.Cmp(limit) == 0)
		}
	}
	switch {
	case !asked:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

func positive(list v1.ResourceList, name v1.ResourceName) (resource.Quantity, bool) {
	q, ok := list[name]
	return q, ok && q.Sign() > 0
}

// allContainers yields main and init containers.
func allContainers(spec *v1.PodSpec) func(yield func(*v1.Container) bool) {
	return func(yield func(*v1.Container) bool) {
		for i := range spec.Containers {
			if !yield(&spec.Containers[i]) {
				return
			}
		}
		for i := range spec.InitContainers {
			if !yield(&spec.InitContainers[i]) {
				return
			}
		}
	}
}

// setCondition writes one condition; the transition time moves only when the
// status does. It reports a change.
func setCondition(status *v1.PodStatus, c v1.PodCondition, now metav1.Time) bool {
	i := slices.IndexFunc(status.Conditions, func(o v1.PodCondition) bool { return o.Type == c.Type })
	if i < 0 {
		c.LastTransitionTime = now
		status.Conditions = append(status.Conditions, c)
		return true
	}
	was := status.Conditions[i]
	c.LastTransitionTime = was.LastTransitionTime
	if was.Status != c.Status {
		c.LastTransitionTime = now
	}
	status.Conditions[i] = c
	return !apiequality.Semantic.DeepEqual(was, c)
}

// warnings tells the author of a pod what will not do what it seems to.
func warnings(_ context.Context, pod *v1.Pod) []string {
	var out []string
	if pod.Spec.TerminationGracePeriodSeconds != nil && *pod.Spec.TerminationGracePeriodSeconds < 0 {
		out = append(out, "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1")
	}
	for c := range allContainers(&pod.Spec) {
		names := sets.New[string]()
		for _, e := range c.Env {
			if names.Has(e.Name) {
				out = append(out, "spec.containers["+c.Name+"].env: hides previous definition of \""+e.Name+
					"\", which may be dropped when using apply")
			}
			names.Insert(e.Name)
		}
		for name, q := range c.Resources.Requests {
			if name == v1.ResourceMemory && q.MilliValue()%1000 != 0 {
				out = append(out, "spec.containers["+c.Name+"].resources.requests[memory]: fractional byte value \""+q.String()+
					"\" is invalid, must be an integer")
			}
		}
	}
	return out
}

func merged(base, over map[string]string) map[string]string {
	if len(over) == 0 {
		return base
	}
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}
