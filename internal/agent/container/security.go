package container

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// legacyAppArmor is the annotation that named profiles before the field.
const legacyAppArmor = "container.apparmor.security.beta.kubernetes.io/"

var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
		"/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// effective is the security context of a container with what it inherits.
type effective struct {
	runAsUser, runAsGroup *int64
	runAsNonRoot          bool
	selinux               *v1.SELinuxOptions
	seccomp               *v1.SeccompProfile
	apparmor              *v1.AppArmorProfile
	own                   v1.SecurityContext
}

func effectiveContext(pod *v1.Pod, c *v1.Container) effective {
	var e effective
	if p := pod.Spec.SecurityContext; p != nil {
		e.runAsUser, e.runAsGroup, e.selinux = p.RunAsUser, p.RunAsGroup, p.SELinuxOptions
		e.runAsNonRoot = p.RunAsNonRoot != nil && *p.RunAsNonRoot
		e.seccomp, e.apparmor = p.SeccompProfile, p.AppArmorProfile
	}
	s := c.SecurityContext
	if s == nil {
		return e
	}
	e.own = *s
	if s.RunAsUser != nil {
		e.runAsUser = s.RunAsUser
	}
	if s.RunAsGroup != nil {
		e.runAsGroup = s.RunAsGroup
	}
	if s.RunAsNonRoot != nil {
		e.runAsNonRoot = *s.RunAsNonRoot
	}
	if s.SELinuxOptions != nil {
		e.selinux = s.SELinuxOptions
	}
	if s.SeccompProfile != nil {
		e.seccomp = s.SeccompProfile
	}
	if s.AppArmorProfile != nil {
		e.apparmor = s.AppArmorProfile
	}
	return e
}

// checkNonRoot refuses a container that would run as root although its spec
// forbids it. An image without any user runs as root.
func checkNonRoot(pod *v1.Pod, c *v1.Container, e effective, img Image) error {
	if !e.runAsNonRoot {
		return nil
	}
	who := fmt.Sprintf("(pod: %q, container: %s)", podFormat(pod), c.Name)
	switch {
	case e.runAsUser != nil && *e.runAsUser == 0:
		return configErrorf("container's runAsUser breaks non-root policy %s", who)
	case e.runAsUser != nil:
		return nil
	case img.UID == nil && img.Username != "":
		return configErrorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s",
			img.Username, who)
	case img.UID == nil || *img.UID == 0:
		return configErrorf("container has runAsNonRoot and image will run as root %s", who)
	}
	return nil
}

func podFormat(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

func containerSecurity(in Input, c *v1.Container) (*runtimeapi.LinuxContainerSecurityContext, error) {
	pod, img := in.Pod, in.Images[c.Name]
	e := effectiveContext(pod, c)
	if err := checkNonRoot(pod, c, e, img); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:       isTrue(e.own.Privileged),
		ReadonlyRootfs:   isTrue(e.own.ReadOnlyRootFilesystem),
		NoNewPrivs:       e.own.AllowPrivilegeEscalation != nil && !*e.own.AllowPrivilegeEscalation,
		NamespaceOptions: namespaces(in, c),
		SelinuxOptions:   selinux(e.selinux),
		Capabilities:     capabilities(e.own.Capabilities),
	}
	if !out.Privileged {
		out.Capabilities = drop(out.Capabilities, in.Node.DropCapabilities)
	}
	switch {
	case e.runAsUser != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *e.runAsUser}
	case img.UID != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *img.UID}
	default:
		out.RunAsUsername = img.Username
	}
	if e.runAsGroup != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *e.runAsGroup}
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(in, c)
	if e.own.ProcMount == nil || *e.own.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths = append(slices.Clone(maskedPaths), in.Node.ThermalThrottlePaths...)
		out.ReadonlyPaths = slices.Clone(readonlyPaths)
	}
	seccomp, err := seccompProfile(in, e.seccomp)
	if err != nil {
		return nil, err
	}
	out.Seccomp = seccomp
	//lint:ignore SA1019 older runtimes read only the string
	out.Apparmor, out.ApparmorProfile, err = appArmorProfile(pod, c, e.apparmor)
	return out, err
}

func isTrue(b *bool) bool { return b != nil && *b }

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, name := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(name))
	}
	for _, name := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(name))
	}
	return out
}

// RuntimeExtras are the capabilities that runtimes give containers by default
// and that few programs need: packets and ARP answers of one's own making,
// device nodes, files that carry capabilities, chroot, records in the host's
// audit log. CRI-O leaves them out of its defaults.
var RuntimeExtras = []string{"AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SYS_CHROOT"}

// drop takes away what a container did not ask for by name or as ALL.
func drop(c *runtimeapi.Capability, unasked []string) *runtimeapi.Capability {
	if len(unasked) == 0 {
		return c
	}
	if c == nil {
		c = &runtimeapi.Capability{}
	}
	asked := map[string]bool{}
	for _, name := range slices.Concat(c.AddCapabilities, c.DropCapabilities) {
		asked[strings.TrimPrefix(strings.ToUpper(name), "CAP_")] = true
	}
	for _, name := range unasked {
		if !asked["ALL"] && !asked[name] {
			c.DropCapabilities = append(c.DropCapabilities, name)
		}
	}
	return c
}

// groups are the supplemental groups: fsGroup, the pod's own, and those that
// the volumes mounted by this container ask for.
func groups(in Input, c *v1.Container) ([]int64, runtimeapi.SupplementalGroupsPolicy) {
	var out []int64
	policy := runtimeapi.SupplementalGroupsPolicy_Merge
	add := func(g int64) {
		if !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	if p := in.Pod.Spec.SecurityContext; p != nil {
		if p.FSGroup != nil {
			add(*p.FSGroup)
		}
		for _, g := range p.SupplementalGroups {
			add(g)
		}
		if p.SupplementalGroupsPolicy != nil && *p.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
			policy = runtimeapi.SupplementalGroupsPolicy_Strict
		}
	}
	used := map[string]bool{}
	if c != nil {
		for _, m := range c.VolumeMounts {
			used[m.Name] = true
		}
	}
	for _, v := range in.Pod.Spec.Volumes {
		if c == nil || used[v.Name] {
			for _, g := range in.Volumes[v.Name].Groups {
				add(g)
			}
		}
	}
	return out, policy
}

// namespaces of a container; c is nil for the sandbox.
func namespaces(in Input, c *v1.Container) *runtimeapi.NamespaceOption {
	s := &in.Pod.Spec
	out := &runtimeapi.NamespaceOption{
		Network: nodeOr(s.HostNetwork, runtimeapi.NamespaceMode_POD),
		Ipc:     nodeOr(s.HostIPC, runtimeapi.NamespaceMode_POD),
		Pid:     nodeOr(s.HostPID, runtimeapi.NamespaceMode_CONTAINER),
	}
	if !s.HostPID && isTrue(s.ShareProcessNamespace) {
		out.Pid = runtimeapi.NamespaceMode_POD
	}
	if c != nil {
		if id := in.TargetID[c.Name]; id != "" {
			out.Pid, out.TargetId = runtimeapi.NamespaceMode_TARGET, id
		}
	}
	if u := in.UserNamespace; u != nil {
		out.UsernsOptions = &runtimeapi.UserNamespace{
			Mode: runtimeapi.NamespaceMode_POD, Uids: idMappings(u.UIDs), Gids: idMappings(u.GIDs),
		}
	} else if in.Features.UserNamespaces {
		out.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	}
	return out
}

func nodeOr(node bool, other runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
	if node {
		return runtimeapi.NamespaceMode_NODE
	}
	return other
}

func idMappings(list []IDMapping) []*runtimeapi.IDMapping {
	var out []*runtimeapi.IDMapping
	for _, m := range list {
		out = append(out, &runtimeapi.IDMapping{HostId: m.HostID, ContainerId: m.ContainerID, Length: m.Length})
	}
	return out
}

func seccompProfile(in Input, p *v1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		if in.Node.SeccompDefault {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	}
	switch p.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case v1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, configErrorf("localhostProfile must be set if seccompProfile type is Localhost.")
		}
		ref, err := beneath(filepath.Join(in.RootDir, "seccomp"), *p.LocalhostProfile)
		if err != nil {
			return nil, configErrorf("seccomp localhostProfile: %w", err)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}, nil
	}
	return nil, configErrorf("seccompProfile type %q: allowed are RuntimeDefault, Unconfined and Localhost", p.Type)
}

// beneath joins a relative path below dir and refuses to leave it.
func beneath(dir, rel string) (string, error) {
	if filepath.IsAbs(rel) || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%q must be a relative path without \"..\"", rel)
	}
	return filepath.Join(dir, rel), nil
}

func appArmorProfile(pod *v1.Pod, c *v1.Container, p *v1.AppArmorProfile) (*runtimeapi.SecurityProfile, string, error) {
	if p == nil { // the annotation is older than the field, and PodSecurity judges the field
		if legacy, ok := pod.Annotations[legacyAppArmor+c.Name]; ok {
			var err error
			if p, err = parseLegacyAppArmor(legacy); err != nil {
				return nil, "", configErrorf("%w", err)
			}
		}
	}
	if p == nil {
		return nil, "", nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, "runtime/default", nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, "unconfined", nil
	case v1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, "", configErrorf("missing localhost apparmor profile name")
		}
		name := *p.LocalhostProfile
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name}, "localhost/" + name, nil
	}
	return nil, "", configErrorf("appArmorProfile type %q: allowed are RuntimeDefault, Unconfined and Localhost", p.Type)
}

func parseLegacyAppArmor(s string) (*v1.AppArmorProfile, error) {
	switch {
	case s == "":
		return nil, nil
	case s == "runtime/default":
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}, nil
	case s == "unconfined":
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}, nil
	case strings.HasPrefix(s, "localhost/"):
		name := strings.TrimPrefix(s, "localhost/")
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}, nil
	}
	return nil, fmt.Errorf("invalid AppArmor profile name: %q", s)
}

// CheckAppArmor rejects pods that ask for a profile on a host that cannot
// enforce one. profiles are the loaded ones; nil means unknown.
func CheckAppArmor(pod *v1.Pod, enabled bool, profiles map[string]bool) error {
	for _, c := range All(pod) {
		_, name, err := appArmorProfile(pod, c, effectiveContext(pod, c).apparmor)
		if err != nil {
			return &AdmissionError{"AppArmor", "Cannot enforce AppArmor: " + err.Error()}
		}
		if name == "" || name == "unconfined" {
			continue
		}
		if !enabled {
			return &AdmissionError{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
		}
		if local, ok := strings.CutPrefix(name, "localhost/"); ok && profiles != nil && !profiles[local] {
			return &AdmissionError{"AppArmor", fmt.Sprintf("Cannot enforce AppArmor: profile %q is not loaded", local)}
		}
	}
	return nil
}

// All are the init, regular and ephemeral containers of a pod, in that order.
func All(pod *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		out = append(out, (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return out
}
