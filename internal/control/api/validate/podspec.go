package validate

import (
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podSpec checks a pod's spec (pod true) or the spec inside a template.
func podSpec(p *field.Path, s *v1.PodSpec, pod bool) field.ErrorList {
	volumes, all := podVolumes(p.Child("volumes"), s.Volumes, pod)
	claims, bad := resourceClaims(p.Child("resourceClaims"), s.ResourceClaims)
	all = append(all, bad...)
	c := containers{spec: s, pod: pod, volumes: volumes, claims: claims, names: unique[string]{}}
	all = append(all, c.main(p.Child("containers"))...)
	all = append(all, c.init(p.Child("initContainers"))...)
	all = append(all, c.ephemeral(p.Child("ephemeralContainers"))...)
	all = append(all, podResources(p, s)...)
	all = append(all, mustBeOneOf(p.Child("restartPolicy"), s.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure,
		v1.RestartPolicyNever)...)
	all = append(all, dns(p, s)...)
	all = append(all, hostNamespaces(p, s)...)
	all = append(all, podSecurityContext(p.Child("securityContext"), s.SecurityContext, s)...)
	all = append(all, placement(p, s)...)
	all = append(all, podNames(p, s)...)
	if s.ActiveDeadlineSeconds != nil {
		all = append(all, between(p.Child("activeDeadlineSeconds"), *s.ActiveDeadlineSeconds, 1, math.MaxInt32)...)
	}
	for i, g := range s.ReadinessGates {
		all = append(all, invalid(p.Child("readinessGates").Index(i).Child("conditionType"), string(g.ConditionType),
			validation.IsQualifiedName(string(g.ConditionType)))...)
	}
	for _, name := range sorted(s.Overhead) {
		at := p.Child("overhead").Key(string(name))
		all = append(all, containerResourceName(at, name)...)
		all = append(all, quantity(at, name, s.Overhead[name])...)
	}
	return append(all, operatingSystem(p, s)...)
}

// podNames checks what refers to other objects by name, and the names the pod
// is known by.
func podNames(p *field.Path, s *v1.PodSpec) errs {
	var all errs
	optional := func(name, value string, rule func(string) []string) {
		if value != "" {
			all = append(all, invalid(p.Child(name), value, rule(value))...)
		}
	}
	optional("serviceAccountName", s.ServiceAccountName, isName(apivalidation.ValidateServiceAccountName))
	optional("nodeName", s.NodeName, isSubdomain)
	optional("hostname", s.Hostname, validation.IsDNS1123Label)
	optional("subdomain", s.Subdomain, validation.IsDNS1123Label)
	optional("priorityClassName", s.PriorityClassName, isSubdomain)
	if s.RuntimeClassName != nil {
		all = append(all, invalid(p.Child("runtimeClassName"), *s.RuntimeClassName, isSubdomain(*s.RuntimeClassName))...)
	}
	all = append(all, oneOfIfSet(p.Child("preemptionPolicy"), s.PreemptionPolicy, v1.PreemptLowerPriority, v1.PreemptNever)...)
	if s.HostnameOverride != nil {
		at, name := p.Child("hostnameOverride"), *s.HostnameOverride
		all = append(all, invalid(at, name, validation.IsDNS1123Subdomain(name))...)
		if len(name) > 64 {
			all = append(all, field.TooLong(at, name, 64))
		}
		if s.HostNetwork {
			all = append(all, field.Forbidden(at, "cannot be set when `hostNetwork` is true"))
		}
		if deref(s.SetHostnameAsFQDN) {
			all = append(all, field.Forbidden(at, "cannot be set when `setHostnameAsFQDN` is true"))
		}
	}
	for i, alias := range s.HostAliases {
		at := p.Child("hostAliases").Index(i)
		all = append(all, legacyIP(at.Child("ip"), alias.IP)...)
		for k, name := range alias.Hostnames {
			all = append(all, invalid(at.Child("hostnames").Index(k), name, validation.IsDNS1123Subdomain(name))...)
		}
	}
	return all
}

func hostNamespaces(p *field.Path, s *v1.PodSpec) errs {
	var all errs
	if deref(s.ShareProcessNamespace) && s.HostPID {
		all = append(all, field.Invalid(p.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if s.HostUsers == nil || *s.HostUsers {
		return all
	}
	for _, shared := range []given{{"hostNetwork", s.HostNetwork}, {"hostPID", s.HostPID}, {"hostIPC", s.HostIPC}} {
		if shared.set {
			all = append(all, field.Forbidden(p.Child(shared.name), fmt.Sprintf("when `hostUsers` is false, `%s` must not be true",
				shared.name)))
		}
	}
	for i := range s.Containers {
		if len(s.Containers[i].VolumeDevices) > 0 {
			all = append(all, field.Forbidden(p.Child("containers").Index(i).Child("volumeDevices"),
				"when `hostUsers` is false, block volumes cannot be used"))
		}
	}
	return all
}

// Limits of the resolver configuration.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func dns(p *field.Path, s *v1.PodSpec) errs {
	all := mustBeOneOf(p.Child("dnsPolicy"), s.DNSPolicy, v1.DNSClusterFirstWithHostNet, v1.DNSClusterFirst, v1.DNSDefault, v1.DNSNone)
	at := p.Child("dnsConfig")
	if s.DNSPolicy == v1.DNSNone {
		if s.DNSConfig == nil {
			return append(all, field.Required(at, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", v1.DNSNone)))
		}
		if len(s.DNSConfig.Nameservers) == 0 {
			return append(all, field.Required(at.Child("nameservers"),
				fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", v1.DNSNone)))
		}
	}
	c := s.DNSConfig
	if c == nil {
		return all
	}
	if len(c.Nameservers) > maxNameservers {
		all = append(all, field.Invalid(at.Child("nameservers"), c.Nameservers, fmt.Sprintf("must not have more than %v nameservers",
			maxNameservers)))
	}
	for i, server := range c.Nameservers {
		all = append(all, legacyIP(at.Child("nameservers").Index(i), server)...)
	}
	if len(c.Searches) > maxSearches {
		all = append(all, field.Invalid(at.Child("searches"), c.Searches, fmt.Sprintf("must not have more than %v search paths",
			maxSearches)))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchChars {
		all = append(all, field.Invalid(at.Child("searches"), c.Searches,
			fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchChars)))
	}
	for i, search := range c.Searches {
		// A lone or a trailing dot marks a name that is complete.
		name := strings.TrimSuffix(search, ".")
		if search != "." {
			all = append(all, invalid(at.Child("searches").Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(name))...)
		}
	}
	for i, option := range c.Options {
		if option.Name == "" {
			all = append(all, field.Required(at.Child("options").Index(i), "must not be empty"))
		}
	}
	return all
}

func resourceClaims(p *field.Path, claims []v1.PodResourceClaim) (sets.Set[string], errs) {
	var all errs
	names := sets.New[string]()
	for i, c := range claims {
		at := p.Index(i)
		switch {
		case c.Name == "":
			all = append(all, field.Required(at.Child("name"), ""))
		case names.Has(c.Name):
			all = append(all, field.Duplicate(at.Child("name"), c.Name))
		default:
			names.Insert(c.Name)
			all = append(all, invalid(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))...)
		}
		switch {
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			all = append(all, field.Invalid(at, c, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			all = append(all, field.Invalid(at, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
		if c.ResourceClaimName != nil {
			all = append(all, invalid(at.Child("resourceClaimName"), *c.ResourceClaimName, isSubdomain(*c.ResourceClaimName))...)
		}
		if c.ResourceClaimTemplateName != nil {
			all = append(all, invalid(at.Child("resourceClaimTemplateName"), *c.ResourceClaimTemplateName,
				isSubdomain(*c.ResourceClaimTemplateName))...)
		}
	}
	return names, all
}

// operatingSystem refuses settings that the named system does not have.
func operatingSystem(p *field.Path, s *v1.PodSpec) errs {
	if s.OS == nil {
		return nil
	}
	at := p.Child("os", "name")
	if s.OS.Name == "" {
		return errs{field.Required(at, "cannot be empty")}
	}
	all := oneOf(at, s.OS.Name, v1.Linux, v1.Windows)
	sc := s.SecurityContext
	switch {
	case sc == nil:
	case s.OS.Name == v1.Linux && sc.WindowsOptions != nil:
		all = append(all, field.Forbidden(p.Child("securityContext", "windowsOptions"), "windows options cannot be set for a linux pod"))
	case s.OS.Name == v1.Windows:
		all = append(all, forbid(p.Child("securityContext"), "cannot be set for a windows pod", []given{
			{"seLinuxOptions", sc.SELinuxOptions != nil}, {"seccompProfile", sc.SeccompProfile != nil},
			{"appArmorProfile", sc.AppArmorProfile != nil},
			{"fsGroup", sc.FSGroup != nil}, {"fsGroupChangePolicy", sc.FSGroupChangePolicy != nil}, {"sysctls", len(sc.Sysctls) > 0},
			{"runAsUser", sc.RunAsUser != nil}, {"runAsGroup", sc.RunAsGroup != nil}, {"supplementalGroups", sc.SupplementalGroups != nil},
		})...)
	}
	if s.OS.Name == v1.Windows {
		all = append(all, forbid(p, "cannot be set for a windows pod", []given{{"hostPID", s.HostPID}, {"hostIPC", s.HostIPC},
			{"hostUsers", s.HostUsers != nil}, {"shareProcessNamespace", s.ShareProcessNamespace != nil}})...)
	}
	return all
}
