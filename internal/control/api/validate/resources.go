package validate

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
)

// containerResources are the resources without a domain that a container can
// ask for; huge pages come with a size in their name.
var containerResources = sets.New(v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage)

func isHugePage(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// isExtended reports a resource that a device plugin or an administrator
// advertises: counted in whole numbers and never shared.
func isExtended(name v1.ResourceName) bool {
	text := string(name)
	return strings.Contains(text, "/") && !strings.Contains(text, v1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(text, v1.DefaultResourceRequestsPrefix)
}

func containerResourceName(p *field.Path, name v1.ResourceName) errs {
	if bad := validation.IsQualifiedName(string(name)); len(bad) > 0 {
		return invalid(p, name, bad)
	}
	switch {
	case !strings.Contains(string(name), "/"):
		if !containerResources.Has(name) && !isHugePage(name) {
			return errs{field.Invalid(p, name, "must be a standard resource for containers")}
		}
	case !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) && !isExtended(name):
		return errs{field.Invalid(p, name, "doesn't follow extended resource name standard")}
	}
	return nil
}

// quantity wants an amount that is not negative, and whole where the resource
// is counted.
func quantity(p *field.Path, name v1.ResourceName, q resource.Quantity) errs {
	if q.Sign() < 0 {
		return errs{field.Invalid(p, q.String(), "must be greater than or equal to 0")}
	}
	if isExtended(name) && q.MilliValue()%1000 != 0 {
		return errs{field.Invalid(p, q.String(), "must be an integer")}
	}
	return nil
}

// requirements checks requests and limits of a container, or of a whole pod
// if name is stricter.
func requirements(p *field.Path, r *v1.ResourceRequirements, name func(*field.Path, v1.ResourceName) errs, claims sets.Set[string]) errs {
	var all errs
	limits, requests := p.Child("limits"), p.Child("requests")
	hugePages, backed := false, false
	for _, res := range sorted(r.Limits) {
		limit := r.Limits[res]
		key := limits.Key(string(res))
		all = append(all, name(key, res)...)
		all = append(all, quantity(key, res, limit)...)
		hugePages = hugePages || isHugePage(res)
		backed = backed || res == v1.ResourceCPU || res == v1.ResourceMemory
	}
	for _, res := range sorted(r.Requests) {
		request := r.Requests[res]
		key := requests.Key(string(res))
		all = append(all, name(key, res)...)
		all = append(all, quantity(key, res, request)...)
		hugePages = hugePages || isHugePage(res)
		backed = backed || res == v1.ResourceCPU || res == v1.ResourceMemory
		limit, limited := r.Limits[res]
		exact := isHugePage(res) || isExtended(res)
		switch {
		case limited && exact && request.Cmp(limit) != 0:
			all = append(all, field.Invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", res,
				limit.String())))
		case limited && request.Cmp(limit) > 0:
			all = append(all, field.Invalid(requests, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", res,
				limit.String())))
		case !limited && exact:
			all = append(all, field.Required(limits, "Limit must be set for non overcommitable resources"))
		}
	}
	if hugePages && !backed {
		all = append(all, field.Forbidden(p, "HugePages require cpu or memory"))
	}
	return append(all, claimsOf(p.Child("claims"), r.Claims, claims)...)
}

// claimsOf wants each claim of the pod at most once, whole or by requests, not both.
func claimsOf(p *field.Path, list []v1.ResourceClaim, known sets.Set[string]) errs {
	var all errs
	seen, whole := map[v1.ResourceClaim]bool{}, map[string]bool{}
	for _, claim := range list {
		whole[claim.Name] = whole[claim.Name] || claim.Request == ""
	}
	for i, claim := range list {
		at := p.Index(i)
		if claim.Name == "" {
			all = append(all, field.Required(at.Child("name"), ""))
			continue
		}
		if seen[claim] {
			all = append(all, field.Duplicate(at, claim.Name))
		} else if claim.Request != "" && whole[claim.Name] {
			all = append(all, field.Duplicate(at.Child("name"), claim.Name))
		}
		seen[claim] = true
		if !known.Has(claim.Name) {
			all = append(all, field.NotFound(at.Child("name"), claim.Name))
		}
		if claim.Request != "" {
			all = append(all, invalid(at.Child("request"), claim.Request, validation.IsDNS1123Label(claim.Request))...)
		}
	}
	return all
}

// podResources checks pod-level requests and limits, alone and against what
// the containers ask for. spec is the path of the pod spec.
func podResources(spec *field.Path, s *v1.PodSpec) errs {
	if s.Resources == nil {
		return nil
	}
	p := spec.Child("resources")
	all := requirements(p, s.Resources, func(at *field.Path, name v1.ResourceName) errs {
		if resourcehelper.IsSupportedPodLevelResource(name) {
			return nil
		}
		return errs{field.NotSupported(at, name, sets.List(resourcehelper.SupportedPodLevelResources()))}
	}, nil)
	if len(s.Resources.Claims) > 0 {
		all = append(all, field.Forbidden(p.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	whole := &v1.Pod{Spec: *s}
	sums := resourcehelper.AggregateContainerRequests(whole, resourcehelper.PodResourcesOptions{})
	for _, name := range sorted(sums) {
		sum := sums[name]
		if request, set := s.Resources.Requests[name]; set && request.Cmp(sum) < 0 {
			all = append(all, field.Invalid(p.Child("requests").Key(string(name)), request.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	for i := range s.Containers {
		limits := s.Containers[i].Resources.Limits
		for _, name := range sorted(limits) {
			limit := limits[name]
			if pod, set := s.Resources.Limits[name]; set && limit.Cmp(pod) > 0 {
				all = append(all, field.Invalid(spec.Child("containers").Index(i).Child("resources", "limits").Key(string(name)),
					limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", pod.String())))
			}
		}
	}
	return all
}
