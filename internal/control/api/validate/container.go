package validate

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containers checks a pod spec's containers of one or another role.
type containers struct {
	spec *v1.PodSpec
	// pod is false for a template, where older objects may hold what a pod may not.
	pod     bool
	volumes map[string]*v1.VolumeSource
	claims  sets.Set[string]
	// names are shared: a name is taken once per pod, whatever the role.
	names unique[string]
}

func (c *containers) main(p *field.Path) errs {
	if len(c.spec.Containers) == 0 {
		return errs{field.Required(p, "")}
	}
	var all errs
	for i := range c.spec.Containers {
		at, one := p.Index(i), &c.spec.Containers[i]
		all = append(all, c.common(at, one)...)
		all = append(all, c.supervised(at, one)...)
		all = append(all, restartRules(at, one)...)
	}
	return append(all, hostPortConflicts(p, 0, c.spec.Containers)...)
}

func (c *containers) init(p *field.Path) errs {
	var all errs
	for i := range c.spec.InitContainers {
		at, one := p.Index(i), &c.spec.InitContainers[i]
		all = append(all, c.common(at, one)...)
		if isSidecar(one) {
			all = append(all, c.supervised(at, one)...)
			all = append(all, restartRules(at, one)...)
			continue
		}
		all = append(all, restartRules(at, one)...)
		const reason = "may not be set for init containers without restartPolicy=Always"
		all = append(all, forbid(at, reason, []given{{"lifecycle", one.Lifecycle != nil}, {"livenessProbe", one.LivenessProbe != nil},
			{"readinessProbe", one.ReadinessProbe != nil}, {"startupProbe", one.StartupProbe != nil}})...)
		all = append(all, hostPortConflicts(p, i, c.spec.InitContainers[i:i+1])...)
	}
	return all
}

func isSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// supervised checks what only containers that keep running can have.
func (c *containers) supervised(p *field.Path, one *v1.Container) errs {
	grace := c.spec.TerminationGracePeriodSeconds
	all := lifecycle(p.Child("lifecycle"), one.Lifecycle, c.spec)
	all = append(all, probe(p.Child("livenessProbe"), one.LivenessProbe, liveness, grace)...)
	all = append(all, probe(p.Child("readinessProbe"), one.ReadinessProbe, readiness, grace)...)
	return append(all, probe(p.Child("startupProbe"), one.StartupProbe, startup, grace)...)
}

// common checks what every container has, whatever its role.
func (c *containers) common(p *field.Path, one *v1.Container) errs {
	all := named(p.Child("name"), one.Name, validation.IsDNS1123Label)
	if len(all) == 0 {
		all = append(all, c.names.add(p.Child("name"), one.Name)...)
	}
	switch {
	case one.Image == "":
		all = append(all, field.Required(p.Child("image"), ""))
	case c.pod && strings.TrimSpace(one.Image) != one.Image:
		all = append(all, field.Invalid(p.Child("image"), one.Image, "must not have leading or trailing whitespace"))
	}
	all = append(all, mustBeOneOf(p.Child("terminationMessagePolicy"), one.TerminationMessagePolicy,
		v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)...)
	all = append(all, mustBeOneOf(p.Child("imagePullPolicy"), one.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	all = append(all, c.ports(p.Child("ports"), one.Ports)...)
	all = append(all, env(p.Child("env"), one.Env, c.volumes)...)
	all = append(all, envFrom(p.Child("envFrom"), one.EnvFrom)...)
	all = append(all, c.mounts(p.Child("volumeMounts"), one)...)
	all = append(all, c.devices(p.Child("volumeDevices"), one)...)
	all = append(all, requirements(p.Child("resources"), &one.Resources, containerResourceName, c.claims)...)
	all = append(all, c.resize(p.Child("resizePolicy"), one.ResizePolicy)...)
	return append(all, securityContext(p.Child("securityContext"), one.SecurityContext, c.spec)...)
}

func (c *containers) ports(p *field.Path, ports []v1.ContainerPort) errs {
	var all errs
	seen := unique[string]{}
	for i := range ports {
		at, port := p.Index(i), &ports[i]
		if port.Name != "" {
			bad := invalid(at.Child("name"), port.Name, validation.IsValidPortName(port.Name))
			if all = append(all, bad...); len(bad) == 0 {
				all = append(all, seen.add(at.Child("name"), port.Name)...)
			}
		}
		if port.ContainerPort == 0 {
			all = append(all, field.Required(at.Child("containerPort"), ""))
		} else {
			all = append(all, portNumber(at.Child("containerPort"), port.ContainerPort)...)
		}
		if port.HostPort != 0 {
			all = append(all, portNumber(at.Child("hostPort"), port.HostPort)...)
			if c.spec.HostNetwork && port.HostPort != port.ContainerPort {
				all = append(all, field.Invalid(at.Child("containerPort"), port.ContainerPort,
					"must match `hostPort` when `hostNetwork` is true"))
			}
		}
		all = append(all, mustBeOneOf(at.Child("protocol"), port.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
	}
	return all
}

// hostPortConflicts finds a host port that containers running side by side
// both want. first is the index of the first of them under p.
func hostPortConflicts(p *field.Path, first int, all []v1.Container) errs {
	type endpoint struct {
		protocol v1.Protocol
		ip       string
		port     int32
	}
	var found errs
	seen := map[endpoint]bool{}
	for i := range all {
		for k, port := range all[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			e := endpoint{port.Protocol, port.HostIP, port.HostPort}
			if seen[e] {
				found = append(found, field.Duplicate(p.Index(first+i).Child("ports").Index(k).Child("hostPort"),
					strings.Join([]string{string(port.Protocol), port.HostIP, itoa(port.HostPort)}, "/")))
			}
			seen[e] = true
		}
	}
	return found
}

func (c *containers) resize(p *field.Path, policies []v1.ContainerResizePolicy) errs {
	var all errs
	seen := unique[v1.ResourceName]{}
	for i, r := range policies {
		all = append(all, seen.add(p.Index(i), r.ResourceName)...)
		all = append(all, mustBeOneOf(p, r.ResourceName, v1.ResourceCPU, v1.ResourceMemory)...)
		all = append(all, mustBeOneOf(p, r.RestartPolicy, v1.NotRequired, v1.RestartContainer)...)
		if c.spec.RestartPolicy == v1.RestartPolicyNever && r.RestartPolicy == v1.RestartContainer {
			all = append(all, field.Invalid(p, r.RestartPolicy, "must be 'NotRequired' when `restartPolicy` is 'Never'"))
		}
	}
	return all
}

// maxRestartRules bounds the exit code rules of a container.
const maxRestartRules = 20

// restartRules checks a container's own restart policy and exit code rules.
func restartRules(p *field.Path, one *v1.Container) errs {
	all := oneOfIfSet(p.Child("restartPolicy"), one.RestartPolicy,
		v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
	rules := p.Child("restartPolicyRules")
	if len(one.RestartPolicyRules) == 0 {
		return all
	}
	if one.RestartPolicy == nil {
		all = append(all, field.Required(p.Child("restartPolicy"), "must specify restartPolicy when restartPolicyRules are set"))
	}
	if len(one.RestartPolicyRules) > maxRestartRules {
		all = append(all, field.TooMany(rules, len(one.RestartPolicyRules), maxRestartRules))
	}
	for i := range one.RestartPolicyRules {
		at, r := rules.Index(i), &one.RestartPolicyRules[i]
		all = append(all, mustBeOneOf(at.Child("action"), r.Action, v1.ContainerRestartRuleActionRestart,
			v1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			all = append(all, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		all = append(all, mustBeOneOf(at.Child("exitCodes", "operator"), r.ExitCodes.Operator, v1.ContainerRestartRuleOnExitCodesOpIn,
			v1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if len(r.ExitCodes.Values) > 255 {
			all = append(all, field.TooMany(at.Child("exitCodes", "values"), len(r.ExitCodes.Values), 255))
		}
	}
	return all
}

// ephemeral checks containers that were put into a pod to look around in it.
func (c *containers) ephemeral(p *field.Path) errs {
	if len(c.spec.EphemeralContainers) == 0 {
		return nil
	}
	targets := sets.New[string]()
	for i := range c.spec.Containers {
		targets.Insert(c.spec.Containers[i].Name)
	}
	for i := range c.spec.InitContainers {
		targets.Insert(c.spec.InitContainers[i].Name)
	}
	var all errs
	for i := range c.spec.EphemeralContainers {
		at, e := p.Index(i), &c.spec.EphemeralContainers[i]
		one := v1.Container(e.EphemeralContainerCommon)
		all = append(all, c.common(at, &one)...)
		if e.TargetContainerName != "" && !targets.Has(e.TargetContainerName) {
			all = append(all, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		const reason = "cannot be set for an Ephemeral Container"
		all = append(all, forbid(at, reason, []given{
			{"ports", len(one.Ports) > 0}, {"livenessProbe", one.LivenessProbe != nil}, {"readinessProbe", one.ReadinessProbe != nil},
			{"startupProbe", one.StartupProbe != nil}, {"lifecycle", one.Lifecycle != nil}, {"resizePolicy", len(one.ResizePolicy) > 0},
			{"restartPolicy", one.RestartPolicy != nil},
			{"resources", len(one.Resources.Limits) > 0 || len(one.Resources.Requests) > 0 || len(one.Resources.Claims) > 0},
		})...)
		for k, m := range one.VolumeMounts {
			if m.SubPath != "" {
				all = append(all, field.Forbidden(at.Child("volumeMounts").Index(k).Child("subPath"), reason))
			}
			if m.SubPathExpr != "" {
				all = append(all, field.Forbidden(at.Child("volumeMounts").Index(k).Child("subPathExpr"), reason))
			}
		}
	}
	return all
}
