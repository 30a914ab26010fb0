package validate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/berth-dev/berth/internal/podutil"
)

// podQOS is the quality of service class that a pod's requests and limits
// amount to, whatever its status says.
func podQOS(p *v1.Pod) v1.PodQOSClass { return qos.ComputePodQOS(p) }

// PodResize checks a change through the resize subresource: cpu and memory of
// containers and init containers, and their resize policies, nothing else, and
// not so that the pod's quality of service changes.
func PodResize(changed, old *v1.Pod) field.ErrorList {
	all := append(ObjectMetaUpdate(changed, old), podAnnotationsUpdate(changed, old)...)
	if podutil.Mirror(old) {
		return append(all, field.Forbidden(field.NewPath(""), "static pods cannot be resized"))
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == v1.Windows {
		return append(all, field.Forbidden(field.NewPath(""), "windows pods cannot be resized"))
	}
	others := append(sameContainers("containers", changed.Spec.Containers, old.Spec.Containers), sameContainers("initContainers",
		changed.Spec.InitContainers, old.Spec.InitContainers)...)
	if len(others) > 0 {
		return append(all, others...)
	}
	all = append(all, Ratcheted(func(p, _ *v1.Pod) errs { return podGood(p) }, changed, old)...)
	if podQOS(changed) != podQOS(old) {
		all = append(all, field.Invalid(specPath, podQOS(changed), "Pod QOS Class may not change as a result of resizing"))
	}
	rest := changed.Spec.DeepCopy()
	for i := range rest.Containers {
		at := specPath.Child("containers").Index(i)
		all = append(all, resized(at, &rest.Containers[i], &old.Spec.Containers[i])...)
	}
	for i := range rest.InitContainers {
		at := specPath.Child("initContainers").Index(i)
		all = append(all, resized(at, &rest.InitContainers[i], &old.Spec.InitContainers[i])...)
	}
	if rest.Resources != nil && old.Spec.Resources != nil {
		restore(rest.Resources, old.Spec.Resources)
	}
	if !equality.Semantic.DeepEqual(*rest, old.Spec) {
		all = append(all, field.Forbidden(specPath, "only cpu and memory resources are mutable"))
	}
	return all
}

// sameContainers refuses that containers come, go or change places.
func sameContainers(name string, now, before []v1.Container) errs {
	at := specPath.Child(name)
	if len(now) != len(before) {
		return errs{field.Forbidden(at, name+" may not be added or removed on resize")}
	}
	var all errs
	for i := range now {
		if now[i].Name != before[i].Name {
			all = append(all, field.Forbidden(at.Index(i).Child("name"), name+" may not be renamed or reordered on resize"))
		}
	}
	return all
}

// resized judges one container's new amounts and puts the old ones back.
func resized(p *field.Path, changed, old *v1.Container) errs {
	var all errs
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if _, had := old.Resources.Limits[name]; had {
			if _, has := changed.Resources.Limits[name]; !has {
				all = append(all, field.Forbidden(p.Child("resources", "limits"), "resource limits cannot be removed"))
			}
		}
		if _, had := old.Resources.Requests[name]; had {
			if _, has := changed.Resources.Requests[name]; !has {
				all = append(all, field.Forbidden(p.Child("resources", "requests"), "resource requests cannot be removed"))
			}
		}
	}
	restore(&changed.Resources, &old.Resources)
	changed.ResizePolicy = old.ResizePolicy
	return all
}

// restore puts the old cpu and memory into changed.
func restore(changed, old *v1.ResourceRequirements) {
	put := func(list *v1.ResourceList, from v1.ResourceList) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			if q, ok := from[name]; ok {
				if *list == nil {
					*list = v1.ResourceList{}
				}
				(*list)[name] = q
			} else {
				delete(*list, name)
			}
		}
	}
	put(&changed.Limits, old.Limits)
	put(&changed.Requests, old.Requests)
}

// PodEphemeralContainers checks a change through the ephemeralcontainers
// subresource: containers come and never change or go.
func PodEphemeralContainers(changed, old *v1.Pod) field.ErrorList {
	all := append(ObjectMetaUpdate(changed, old), podAnnotationsUpdate(changed, old)...)
	at := specPath.Child("ephemeralContainers")
	if podutil.Mirror(old) {
		return append(all, field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers"))
	}
	all = append(all, Ratcheted(func(p, _ *v1.Pod) errs { return podGood(p) }, changed, old)...)
	now := map[string]*v1.EphemeralContainer{}
	for i := range changed.Spec.EphemeralContainers {
		now[changed.Spec.EphemeralContainers[i].Name] = &changed.Spec.EphemeralContainers[i]
	}
	for i := range old.Spec.EphemeralContainers {
		before := &old.Spec.EphemeralContainers[i]
		switch c, ok := now[before.Name]; {
		case !ok:
			all = append(all, field.Forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", before.Name)))
		case !equality.Semantic.DeepEqual(c, before):
			all = append(all, field.Forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be changed\n", before.Name)))
		}
	}
	return all
}

// PodStatusUpdate checks a change of a pod's status.
func PodStatusUpdate(changed, old *v1.Pod) errs {
	p := field.NewPath("status")
	now, before := &changed.Status, &old.Status
	all := podAnnotationsUpdate(changed, old)
	all = append(all, podAnnotations(field.NewPath("metadata", "annotations"), changed.Annotations, &old.Spec)...)
	if before.QOSClass != "" {
		all = append(all, immutable(p.Child("qosClass"), now.QOSClass, before.QOSClass)...)
	}
	if now.NominatedNodeName != "" && now.NominatedNodeName != before.NominatedNodeName {
		at := p.Child("nominatedNodeName")
		all = append(all, invalid(at, now.NominatedNodeName, isSubdomain(now.NominatedNodeName))...)
		if old.Spec.NodeName != "" {
			all = append(all, field.Forbidden(at, "may not be set once the pod is bound to a node"))
		}
	}
	if now.ObservedGeneration < 0 {
		all = append(all, notNegative(p.Child("observedGeneration"), now.ObservedGeneration)...)
	}
	for i := range now.Conditions {
		all = append(all, notNegative(p.Child("conditions").Index(i).Child("observedGeneration"), now.Conditions[i].ObservedGeneration)...)
	}
	if !restartsAll(&old.Spec) {
		all = append(all, stateTransitions(p.Child("containerStatuses"), old.Spec.Containers, now.ContainerStatuses,
			before.ContainerStatuses, old.Spec.RestartPolicy)...)
		all = append(all, stateTransitions(p.Child("initContainerStatuses"), old.Spec.InitContainers, now.InitContainerStatuses,
			before.InitContainerStatuses, old.Spec.RestartPolicy)...)
	}
	pods, hosts := make([]string, len(now.PodIPs)), make([]string, len(now.HostIPs))
	for i := range now.PodIPs {
		pods[i] = now.PodIPs[i].IP
	}
	for i := range now.HostIPs {
		hosts[i] = now.HostIPs[i].IP
	}
	all = append(all, addresses(p.Child("podIPs"), pods)...)
	all = append(all, addresses(p.Child("hostIPs"), hosts)...)
	all = append(all, claimStatuses(p.Child("resourceClaimStatuses"), now.ResourceClaimStatuses, old.Spec.ResourceClaims)...)
	all = append(all, extendedClaim(p.Child("extendedResourceClaimStatus"), now.ExtendedResourceClaimStatus, &old.Spec)...)
	return append(all, containerUsers(p, now, &old.Spec)...)
}

// claimStatuses wants each claim that was made for the pod to be of one of its claims.
func claimStatuses(p *field.Path, list []v1.PodResourceClaimStatus, claims []v1.PodResourceClaim) errs {
	known := map[string]bool{}
	for _, c := range claims {
		known[c.Name] = true
	}
	var all errs
	names := unique[string]{}
	for i, s := range list {
		at := p.Index(i)
		all = append(all, names.add(at.Child("name"), s.Name)...)
		if s.ResourceClaimName != nil {
			all = append(all, invalid(at.Child("name"), *s.ResourceClaimName, isSubdomain(*s.ResourceClaimName))...)
		}
		if !known[s.Name] {
			all = append(all, field.Invalid(at.Child("name"), s.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
	}
	return all
}

// extendedClaim checks which requests for extended resources a claim of the
// scheduler's stands for.
func extendedClaim(p *field.Path, s *v1.PodExtendedResourceClaimStatus, spec *v1.PodSpec) errs {
	if s == nil {
		return nil
	}
	all := named(p.Child("resourceClaimName"), s.ResourceClaimName, isSubdomain)
	if len(s.RequestMappings) == 0 {
		all = append(all, field.Required(p.Child("requestMappings"), "at least one request mapping is required"))
	}
	asked := map[string]map[v1.ResourceName]bool{}
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			asked[list[i].Name] = map[v1.ResourceName]bool{}
			for name := range list[i].Resources.Requests {
				asked[list[i].Name][name] = true
			}
		}
	}
	seen := map[v1.ContainerExtendedResourceRequest]bool{}
	for i, m := range s.RequestMappings {
		at := p.Child("requestMappings").Index(i)
		if seen[m] {
			all = append(all, field.Duplicate(at, m))
		}
		seen[m] = true
		resources, ok := asked[m.ContainerName]
		if !ok {
			all = append(all, field.Invalid(at.Child("containerName"), m.ContainerName,
				"must match the name of an entry in `spec.initContainers.name` or `spec.containers.name`"))
		} else if !resources[v1.ResourceName(m.ResourceName)] {
			all = append(all, field.Invalid(at.Child("resourceName"), m.ResourceName,
				"must match the extended resource in an entry in the container's resources"))
		}
		all = append(all, named(at.Child("requestName"), m.RequestName, validation.IsDNS1123Label)...)
	}
	return all
}

// containerUsers checks who the containers' first processes run as, if a node tells.
func containerUsers(p *field.Path, s *v1.PodStatus, spec *v1.PodSpec) errs {
	var all errs
	windows := spec.OS != nil && spec.OS.Name == v1.Windows
	check := func(name string, list []v1.ContainerStatus) {
		for i := range list {
			if list[i].User == nil || list[i].User.Linux == nil {
				continue
			}
			at, u := p.Child(name).Index(i).Child("linux"), list[i].User.Linux
			if windows {
				all = append(all, field.Forbidden(at, "cannot be set for a windows pod"))
				continue
			}
			all = append(all, userID(at.Child("uid"), &u.UID)...)
			all = append(all, groupID(at.Child("gid"), &u.GID)...)
			for k, group := range u.SupplementalGroups {
				all = append(all, groupID(at.Child("supplementalGroups").Index(k), &group)...)
			}
		}
	}
	check("containerStatuses", s.ContainerStatuses)
	check("initContainerStatuses", s.InitContainerStatuses)
	check("ephemeralContainerStatuses", s.EphemeralContainerStatuses)
	return all
}

// restartsAll: some container's end may start all of the pod's again, whatever
// their own policies say.
func restartsAll(spec *v1.PodSpec) bool {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			for _, r := range list[i].RestartPolicyRules {
				if r.Action == v1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// stateTransitions refuses that a container that ended for good runs again.
func stateTransitions(p *field.Path, specs []v1.Container, now, before []v1.ContainerStatus, policy v1.RestartPolicy) errs {
	if policy == v1.RestartPolicyAlways {
		return nil
	}
	own := map[string]bool{}
	for i := range specs {
		// A policy or rules of the container's own overrule the pod's.
		own[specs[i].Name] = specs[i].RestartPolicy != nil || len(specs[i].RestartPolicyRules) > 0
	}
	var all errs
	for i := range before {
		ended := before[i].State.Terminated
		if ended == nil || own[before[i].Name] || (policy == v1.RestartPolicyOnFailure && ended.ExitCode != 0) {
			continue
		}
		for k := range now {
			if now[k].Name == before[i].Name && now[k].State.Terminated == nil {
				all = append(all, field.Forbidden(p.Index(k).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return all
}

// addresses wants at most one address of each family.
func addresses(p *field.Path, ips []string) errs {
	var all errs
	families := map[bool]int{}
	for i, ip := range ips {
		all = append(all, legacyIP(p.Index(i), ip)...)
		if a, ok := address(ip); ok {
			families[a.Is4()]++
		}
	}
	if families[true] > 1 || families[false] > 1 {
		all = append(all, field.Invalid(p, ips, "may specify no more than one IP for each IP family"))
	}
	return all
}
