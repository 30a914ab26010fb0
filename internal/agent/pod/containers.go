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
	initContainer role = iota
	sidecarContainer
	regularContainer
	ephemeralContainer
)

// containerState is one container of the spec together with what runs of it.
type containerState struct {
	c    *v1.Container
	role role
	// target is the container an ephemeral one shares processes with.
	target string
	// cur is the newest instance in the current sandbox, last the newest of
	// all; nil where there is none.
	cur, last *runtime.Container
}

// members lists the containers of a pod in the order init, main, ephemeral.
func allContainers(pod *v1.Pod, held *runtime.Pod, sandbox *runtime.Sandbox) []*containerState {
	n := len(pod.Spec.InitContainers) + len(pod.Spec.Containers) + len(pod.Spec.EphemeralContainers)
	out := make([]*containerState, 0, n)
	for i := range pod.Spec.InitContainers {
		m := &containerState{c: &pod.Spec.InitContainers[i], role: initContainer}
		if p := m.c.RestartPolicy; p != nil && *p == v1.ContainerRestartPolicyAlways {
			m.role = sidecarContainer
		}
		out = append(out, m)
	}
	for i := range pod.Spec.Containers {
		out = append(out, &containerState{c: &pod.Spec.Containers[i], role: regularContainer})
	}
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		c := v1.Container(e.EphemeralContainerCommon)
		out = append(out, &containerState{c: &c, role: ephemeralContainer, target: e.TargetContainerName})
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
func (m *containerState) ran() bool { return m.last != nil && m.last.State != runtime.Created }

func alive(c *runtime.Container) bool {
	return c != nil && (c.State == runtime.Running || c.State == runtime.Unknown)
}

func exited(c *runtime.Container) bool { return c != nil && c.State == runtime.Exited }

// succeeded is how an exit counts; an init container that ran out of memory
// failed whatever its code says.
func (m *containerState) succeeded(c *runtime.Container) bool {
	return c.ExitCode == 0 && !((m.role == initContainer) && c.Reason == "OOMKilled")
}

// restartable applies the restart policy that holds for the container, its own
// before the pod's, to an ended instance.
func restartable(pod *v1.Pod, m *containerState, c *runtime.Container) bool {
	switch m.role {
	case sidecarContainer:
		return true
	case ephemeralContainer:
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
	return m.role != initContainer || !m.succeeded(c)
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
