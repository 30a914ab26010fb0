package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func userID(p *field.Path, id *int64) errs {
	if id == nil {
		return nil
	}
	return invalid(p, *id, validation.IsValidUserID(*id))
}

func groupID(p *field.Path, id *int64) errs {
	if id == nil {
		return nil
	}
	return invalid(p, *id, validation.IsValidGroupID(*id))
}

func podSecurityContext(p *field.Path, c *v1.PodSecurityContext, s *v1.PodSpec) errs {
	if c == nil {
		return nil
	}
	all := userID(p.Child("runAsUser"), c.RunAsUser)
	all = append(all, groupID(p.Child("runAsGroup"), c.RunAsGroup)...)
	all = append(all, groupID(p.Child("fsGroup"), c.FSGroup)...)
	for i, group := range c.SupplementalGroups {
		all = append(all, groupID(p.Child("supplementalGroups").Index(i), &group)...)
	}
	all = append(all, oneOfIfSet(p.Child("supplementalGroupsPolicy"), c.SupplementalGroupsPolicy, v1.SupplementalGroupsPolicyMerge,
		v1.SupplementalGroupsPolicyStrict)...)
	all = append(all, oneOfIfSet(p.Child("fsGroupChangePolicy"), c.FSGroupChangePolicy, v1.FSGroupChangeAlways,
		v1.FSGroupChangeOnRootMismatch)...)
	all = append(all, oneOfIfSet(p.Child("seLinuxChangePolicy"), c.SELinuxChangePolicy, v1.SELinuxChangePolicyMountOption,
		v1.SELinuxChangePolicyRecursive)...)
	all = append(all, sysctls(p.Child("sysctls"), c.Sysctls, s)...)
	all = append(all, seccomp(p.Child("seccompProfile"), c.SeccompProfile)...)
	all = append(all, appArmor(p.Child("appArmorProfile"), c.AppArmorProfile)...)
	return append(all, windows(p.Child("windowsOptions"), c.WindowsOptions)...)
}

const maxSysctlName = 253

var sysctlName = regexp.MustCompile(`^` + sysctlPattern + `$`)

const sysctlPattern = `([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?`

func sysctls(p *field.Path, list []v1.Sysctl, s *v1.PodSpec) errs {
	var all errs
	for i, c := range list {
		at := p.Index(i).Child("name")
		switch {
		case c.Name == "":
			all = append(all, field.Required(at, ""))
			continue
		case len(c.Name) > maxSysctlName || !sysctlName.MatchString(c.Name):
			all = append(all, field.Invalid(at, c.Name, fmt.Sprintf("must have at most %d characters and match regex %s", maxSysctlName,
				sysctlPattern)))
		}
		name := strings.ReplaceAll(c.Name, "/", ".")
		if s.HostNetwork && strings.HasPrefix(name, "net.") {
			all = append(all, field.Invalid(at, c.Name, "may not be specified when 'hostNetwork' is true"))
		}
		if s.HostIPC && (strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" ||
			strings.HasPrefix(name, "fs.mqueue.")) {
			all = append(all, field.Invalid(at, c.Name, "may not be specified when 'hostIPC' is true"))
		}
	}
	return all
}

func securityContext(p *field.Path, c *v1.SecurityContext, s *v1.PodSpec) errs {
	if c == nil {
		return nil
	}
	all := userID(p.Child("runAsUser"), c.RunAsUser)
	all = append(all, groupID(p.Child("runAsGroup"), c.RunAsGroup)...)
	if c.ProcMount != nil {
		all = append(all, oneOf(p.Child("procMount"), *c.ProcMount, v1.DefaultProcMount, v1.UnmaskedProcMount)...)
		if *c.ProcMount == v1.UnmaskedProcMount && (s.HostUsers == nil || *s.HostUsers) {
			all = append(all, field.Invalid(p.Child("procMount"), *c.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	all = append(all, seccomp(p.Child("seccompProfile"), c.SeccompProfile)...)
	all = append(all, appArmor(p.Child("appArmorProfile"), c.AppArmorProfile)...)
	if c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation {
		if deref(c.Privileged) {
			all = append(all, field.Invalid(p, c, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if c.Capabilities != nil && slices.ContainsFunc(c.Capabilities.Add, func(k v1.Capability) bool { return k == "CAP_SYS_ADMIN" }) {
			all = append(all, field.Invalid(p, c, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	return append(all, windows(p.Child("windowsOptions"), c.WindowsOptions)...)
}

func seccomp(p *field.Path, s *v1.SeccompProfile) errs {
	if s == nil {
		return nil
	}
	all := mustBeOneOf(p.Child("type"), s.Type, v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault,
		v1.SeccompProfileTypeUnconfined)
	at := p.Child("localhostProfile")
	switch {
	case s.Type == v1.SeccompProfileTypeLocalhost && deref(s.LocalhostProfile) == "":
		all = append(all, field.Required(at, "must be set when seccomp type is Localhost"))
	case s.Type == v1.SeccompProfileTypeLocalhost:
		all = append(all, localPath(at, *s.LocalhostProfile)...)
	case s.LocalhostProfile != nil:
		all = append(all, field.Invalid(at, *s.LocalhostProfile, "can only be set when seccomp type is Localhost"))
	}
	return all
}

// maxAppArmorProfile is the longest name of a profile, the kernel's limit on a
// path.
const maxAppArmorProfile = 4095

func appArmor(p *field.Path, a *v1.AppArmorProfile) errs {
	if a == nil {
		return nil
	}
	all := mustBeOneOf(p.Child("type"), a.Type, v1.AppArmorProfileTypeLocalhost, v1.AppArmorProfileTypeRuntimeDefault,
		v1.AppArmorProfileTypeUnconfined)
	at := p.Child("localhostProfile")
	name := deref(a.LocalhostProfile)
	switch {
	case a.Type != v1.AppArmorProfileTypeLocalhost && a.LocalhostProfile != nil:
		all = append(all, field.Invalid(at, name, "can only be set when AppArmor type is Localhost"))
	case a.Type == v1.AppArmorProfileTypeLocalhost && strings.TrimSpace(name) == "":
		all = append(all, field.Required(at, "must be set when AppArmor type is Localhost"))
	case a.Type == v1.AppArmorProfileTypeLocalhost && strings.TrimSpace(name) != name:
		all = append(all, field.Invalid(at, name, "must not be padded with whitespace"))
	case len(name) > maxAppArmorProfile:
		all = append(all, field.TooLong(at, name, maxAppArmorProfile))
	}
	return all
}

func windows(p *field.Path, w *v1.WindowsSecurityContextOptions) errs {
	if w == nil {
		return nil
	}
	var all errs
	if name := w.GMSACredentialSpecName; name != nil {
		all = append(all, invalid(p.Child("gmsaCredentialSpecName"), *name, validation.IsDNS1123Subdomain(*name))...)
	}
	if user := w.RunAsUserName; user != nil && *user == "" {
		all = append(all, field.Invalid(p.Child("runAsUserName"), *user, "runAsUserName cannot be an empty string"))
	}
	return all
}
