package pod

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// role is what part a container plays in its pod.
type role int

const (
	initRole role = iota
	sidecarRole
	mainRole
	ephemeralRole
)

// member is one container of the spec together with what runs of it.
type member struct {
	c    *v1.Container
	role role
	// target is the container an ephemeral one shares processes with.
	target string
	// cur is the newest instance in the current sandbox, last the newest of
	// all; nil where there is none.
	cur, last *runtime.Container
}

// members lists the containers of a pod in the order init, main, ephemeral.
func members(pod *v1.Pod, held *runtime.Pod, sandbox *runtime.Sandbox) []*member {
	n := len(pod.Spec.InitContainers) + len(pod.Spec.Containers) + len(pod.Spec.EphemeralContainers)
	out := make([]*member, 0, n)
	for i := range pod.Spec.InitContainers {
		m := &member{c: &pod.Spec.InitContainers[i], role: initRole}
		if p := m.c.RestartPolicy; p != nil && *p == v1.ContainerRestartPolicyAlways {
			m.role = sidecarRole
		}
		out = append(out, m)
	}
	for i := range pod.Spec.Containers {
		out = append(out, &member{c: &pod.Spec.Containers[i], role: mainRole})
	}
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		c := v1.Container(e.EphemeralContainerCommon)
		out = append(out, &member{c: &c, role: ephemeralRole, target: e.TargetContainerName})
	}
	if held == nil {
		return out
	}
	for _, m := range out {
		for _, inst := range held.Containers {
			if inst.Name != m.c.Name {
				continue
			}
			if m.last == nil {
				m.last = inst
			}
			if m.cur == nil && sandbox != nil && inst.SandboxID == sandbox.ID {
				m.cur = inst
			}
		}
	}
	return out
}

// ran tells whether an instance exists that got further than being created.
func (m *member) ran() bool { return m.last != nil && m.last.State != runtime.Created }

func alive(c *runtime.Container) bool {
	return c != nil && (c.State == runtime.Running || c.State == runtime.Unknown)
}

func exited(c *runtime.Container) bool { return c != nil && c.State == runtime.Exited }

// succeeded is how an exit counts; an init container that ran out of memory
// failed whatever its code says.
func (m *member) succeeded(c *runtime.Container) bool {
	return c.ExitCode == 0 && !((m.role == initRole) && c.Reason == "OOMKilled")
}

// restartable applies the restart policy that holds for the container, its own
// before the pod's, to an ended instance.
func restartable(pod *v1.Pod, m *member, c *runtime.Container) bool {
	switch m.role {
	case sidecarRole:
		return true
	case ephemeralRole:
		return false
	}
	if action := ruleFor(m.c, c.ExitCode); action != "" {
		return true
	}
	policy := string(pod.Spec.RestartPolicy)
	if p := m.c.RestartPolicy; p != nil {
		policy = string(*p)
	}
	switch policy {
	case string(v1.RestartPolicyNever):
		return false
	case string(v1.RestartPolicyOnFailure):
		return !m.succeeded(c)
	}
	// Always (the default): an init container that succeeded is done all the same.
	return m.role != initRole || !m.succeeded(c)
}

// ruleFor returns the action of the first restart rule that an exit code
// matches, or "".
func ruleFor(c *v1.Container, code int32) v1.ContainerRestartRuleAction {
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		if in == (r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
			return r.Action
		}
	}
	return ""
}

// backoffKey changes when a container's image or resources do.
func backoffKey(pod *v1.Pod, c *v1.Container) string {
	return strings.Join([]string{string(pod.UID), c.Name, c.Image, c.Resources.String()}, "/")
}

// earliest returns the earlier of two times, of which zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
