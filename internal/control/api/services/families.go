package services

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// resolveFamilies fills in ipFamilyPolicy and ipFamilies of a service that has
// cluster IPs (or is headless), from what the user said, what the stored
// service says (old, nil on create) and what the cluster has: available, the
// primary family first. It reports what cannot be had.
func resolveFamilies(s, old *v1.Service, available []v1.IPFamily) field.ErrorList {
	if !hasClusterIP(s) {
		return nil
	}
	spec := field.NewPath("spec")
	if old != nil && hasClusterIP(old) {
		if errs := resolveChange(s, old); len(errs) > 0 {
			return errs
		}
	}
	if errs := familiesFromAddresses(s); len(errs) > 0 {
		return errs
	}
	selectorless := headless(s) && len(s.Spec.Selector) == 0
	several := len(s.Spec.IPFamilies) > 1 || len(s.Spec.ClusterIPs) > 1
	if s.Spec.IPFamilyPolicy == nil && !several {
		policy := v1.IPFamilyPolicySingleStack
		if selectorless {
			policy = v1.IPFamilyPolicyRequireDualStack
		}
		s.Spec.IPFamilyPolicy = &policy
	}
	if p := s.Spec.IPFamilyPolicy; several && (p == nil || *p == v1.IPFamilyPolicySingleStack) {
		which := "ipFamilies"
		if len(s.Spec.IPFamilies) < 2 {
			which = "clusterIPs"
		}
		return field.ErrorList{field.Invalid(spec.Child("ipFamilyPolicy"), p,
			fmt.Sprintf("must be RequireDualStack or PreferDualStack when multiple '%s' are specified", which))}
	}
	return fillFamilies(s, available, selectorless)
}

// fillFamilies completes the list for the policy, which is set.
func fillFamilies(s *v1.Service, available []v1.IPFamily, selectorless bool) field.ErrorList {
	spec := field.NewPath("spec")
	offered := available
	if selectorless {
		// Nothing is allocated and another party fills the endpoints, so
		// families the cluster lacks are fine.
		offered = append(slices.Clone(available), missing(available)...)
	}
	for i, f := range s.Spec.IPFamilies {
		if !slices.Contains(offered, f) {
			return field.ErrorList{field.Invalid(spec.Child("ipFamilies").Index(i), f, "not configured on this cluster")}
		}
	}
	if len(s.Spec.IPFamilies) == 0 && len(offered) > 0 {
		s.Spec.IPFamilies = []v1.IPFamily{offered[0]}
	}
	if *s.Spec.IPFamilyPolicy == v1.IPFamilyPolicySingleStack {
		return nil
	}
	for _, f := range offered {
		if len(s.Spec.IPFamilies) < 2 && !slices.Contains(s.Spec.IPFamilies, f) {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, f)
		}
	}
	if *s.Spec.IPFamilyPolicy == v1.IPFamilyPolicyRequireDualStack && len(s.Spec.IPFamilies) < 2 {
		return field.ErrorList{field.Invalid(spec.Child("ipFamilyPolicy"), s.Spec.IPFamilyPolicy,
			"this cluster is not configured for dual-stack services")}
	}
	return nil
}

// resolveChange reads an update against the stored service. Silence keeps the
// policy and the families; asking for SingleStack drops the second family, even
// if the update carries it along; dropping it takes saying so.
func resolveChange(s, old *v1.Service) field.ErrorList {
	spec := field.NewPath("spec")
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
		if s.Spec.IPFamilyPolicy == nil {
			s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
		}
	}
	single := s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == v1.IPFamilyPolicySingleStack
	if !single {
		if len(s.Spec.ClusterIPs) == 1 && len(old.Spec.ClusterIPs) == 2 && s.Spec.ClusterIPs[0] == old.Spec.ClusterIPs[0] {
			return field.ErrorList{field.Invalid(spec.Child("ipFamilyPolicy"), s.Spec.IPFamilyPolicy,
				"must be 'SingleStack' to release the secondary cluster IP")}
		}
		if len(s.Spec.IPFamilies) == 1 && len(old.Spec.IPFamilies) == 2 && s.Spec.IPFamilies[0] == old.Spec.IPFamilies[0] {
			return field.ErrorList{field.Invalid(spec.Child("ipFamilyPolicy"), s.Spec.IPFamilyPolicy,
				"must be 'SingleStack' to release the secondary IP family")}
		}
	}
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
	}
	wasDual := old.Spec.IPFamilyPolicy != nil && *old.Spec.IPFamilyPolicy != v1.IPFamilyPolicySingleStack
	if single && wasDual {
		if len(s.Spec.IPFamilies) == 2 && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
		}
		if len(s.Spec.ClusterIPs) == 2 && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		}
	}
	return nil
}

// familiesFromAddresses derives the families from requested cluster IPs, and
// refuses a list that contradicts them.
func familiesFromAddresses(s *v1.Service) field.ErrorList {
	if headless(s) {
		return nil
	}
	spec := field.NewPath("spec")
	for i, text := range s.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return field.ErrorList{field.Invalid(spec.Child("clusterIPs").Index(i), text,
				"must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")}
		}
		switch f := familyOf(ip); {
		case i == len(s.Spec.IPFamilies):
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, f)
		case i > len(s.Spec.IPFamilies):
			return nil
		case s.Spec.IPFamilies[i] != f:
			return field.ErrorList{field.Invalid(spec.Child("clusterIPs").Index(i), text,
				fmt.Sprintf("expected an %v value as indicated by `ipFamilies[%d]`", s.Spec.IPFamilies[i], i))}
		}
	}
	return nil
}

func missing(available []v1.IPFamily) []v1.IPFamily {
	var out []v1.IPFamily
	for _, f := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		if !slices.Contains(available, f) {
			out = append(out, f)
		}
	}
	return out
}
