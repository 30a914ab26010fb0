package why

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// pod explains a Pod. The steps stand in the order of a pod's life: the first
// that it has not passed is the cause.
func explainPod(w *World, namespace, name string) *Answer {
	p := one[v1.Pod](w, namespace, name)
	if p == nil {
		return nil
	}
	events := w.events("Pod", namespace, name)
	for _, step := range []func(*World, *v1.Pod, []*v1.Event) *Answer{podDeleting, podFailed, podUnscheduled, podNodeLost, podVolumes,
		podSandbox, podContainers, podUnready} {
		if a := step(w, p, events); a != nil {
			return podFacts(w, p, a)
		}
	}
	return podFacts(w, p, podHealthy(w, p))
}

func podFacts(w *World, p *v1.Pod, a *Answer) *Answer {
	a.from("Pod")
	if len(w.events("Pod", p.Namespace, p.Name)) > 0 {
		a.from("events")
	}
	if p.Spec.NodeName != "" {
		a.fact("node", "%s", p.Spec.NodeName)
	}
	phase := string(p.Status.Phase)
	if p.DeletionTimestamp != nil {
		phase += ", deleted " + Age(w.Now, p.DeletionTimestamp.Time) + " after its grace period"
	}
	return a.fact("pod", "%s, %s old", phase, Age(w.Now, p.CreationTimestamp.Time))
}

// podCondition is a condition of a pod, or nil.
func podCondition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// podDeleting tells what keeps a deleted pod from going.
func podDeleting(w *World, p *v1.Pod, events []*v1.Event) *Answer {
	if p.DeletionTimestamp == nil {
		return nil
	}
	ended := podutil.Terminal(p)
	if p.Spec.NodeName != "" && !ended {
		if a := lostNode(w, p); a != nil {
			a.Code = "TerminatingNodeLost"
			a.Cause = "pod cannot end: " + a.Cause
			return a.remedy("if the host is really off: berth kubectl delete pod %s -n %s --force", p.Name, p.Namespace)
		}
	}
	if len(p.Finalizers) > 0 {
		return found(Failing, "TerminatingFinalizer", "finalizer %s of the pod holds its deletion: its owner has not removed it",
			strings.Join(p.Finalizers, ", ")).at("metadata.finalizers").
			remedy("start the controller that owns the finalizer; it removes it")
	}
	if e := lastEvent(events, "FailedKillPod", "FailedPreStopHook", "FailedUnMount", "FailedUnmount"); e != nil {
		return found(Failing, "TerminatingFailed", "pod cannot end: %s: %s", e.Reason, brief(e.Message, 200))
	}
	// The deletion timestamp lies at the end of the grace period.
	if left := p.DeletionTimestamp.Sub(w.Now); left > 0 {
		grace := int64(0)
		if p.DeletionGracePeriodSeconds != nil {
			grace = *p.DeletionGracePeriodSeconds
		}
		why := "its processes have not ended since SIGTERM"
		for _, c := range p.Spec.Containers {
			if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
				why = "the preStop hook of container " + c.Name + " runs or its process has not ended since SIGTERM"
			}
		}
		return found(Waiting, "TerminatingGrace", "pod is in its grace period (terminationGracePeriodSeconds %d, %ds left): %s", grace,
			int(left.Seconds()), why).at("spec.terminationGracePeriodSeconds").
			remedy("let the process handle SIGTERM, or shorten the grace period")
	}
	return found(Waiting, "TerminatingOverdue", "pod is past its grace period by %s and the agent on node %s has not confirmed its end",
		Age(w.Now, p.DeletionTimestamp.Time), p.Spec.NodeName).held("Node", "", p.Spec.NodeName)
}

// podFailed tells of a pod that ended in failure.
func podFailed(w *World, p *v1.Pod, _ []*v1.Event) *Answer {
	if p.Status.Phase != v1.PodFailed {
		return nil
	}
	message := brief(p.Status.Message, 240)
	switch reason := p.Status.Reason; {
	case reason == "Evicted":
		return found(Ended, "Evicted", "evicted from node %s: %s", p.Spec.NodeName, evictionCause(p.Status.Message)).
			held("Node", "", p.Spec.NodeName).fact("message", "%s", message).
			remedy("set requests near the real use (resources.requests); `berth why node %s` shows the pressure", p.Spec.NodeName)
	case reason == "DeadlineExceeded":
		return found(Ended, "DeadlineExceeded", "ran longer than activeDeadlineSeconds of the pod: %s", message).
			at("spec.activeDeadlineSeconds")
	case reason != "":
		return found(Ended, "RefusedByNode", "node %s refused the pod: %s: %s", p.Spec.NodeName, reason, message).
			held("Node", "", p.Spec.NodeName)
	}
	if c := podCondition(p, v1.DisruptionTarget); c != nil && c.Status == v1.ConditionTrue {
		return found(Ended, "Disrupted", "ended by a disruption: %s: %s", c.Reason, brief(c.Message, 200))
	}
	for _, s := range statuses(p) {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			a := containerEnd(w, p, s, t)
			a.State = Ended
			return a
		}
	}
	return found(Ended, "Failed", "the pod failed: %s", message)
}

// evictionCause takes the signal out of an eviction's message.
func evictionCause(message string) string {
	const low = "The node was low on resource: "
	if rest, ok := strings.CutPrefix(message, low); ok {
		resource, detail, _ := strings.Cut(rest, ". ")
		return "it was low on " + resource + " (" + brief(detail, 120) + ")"
	}
	return brief(message, 180)
}

// podNodeLost tells of a pod whose node does not answer.
func podNodeLost(w *World, p *v1.Pod, _ []*v1.Event) *Answer {
	if p.Spec.NodeName == "" || p.Status.Phase == v1.PodSucceeded {
		return nil
	}
	return lostNode(w, p)
}

// lostNode tells why a pod's node does nothing for it; nil if it does.
func lostNode(w *World, p *v1.Pod) *Answer {
	name := p.Spec.NodeName
	if w.absent("Node", "", name) {
		return found(Failing, "NodeGone", "its node %s does not exist any more", name).at("spec.nodeName").held("Node", "", name)
	}
	n := one[v1.Node](w, "", name)
	if n == nil {
		return nil
	}
	a := nodeNotReady(w, n)
	if a == nil {
		return nil
	}
	// A pod that runs goes on running while its node is only not Ready.
	a.Cause = "its node " + name + " is not Ready: " + a.Cause
	return a.held("Node", "", name)
}

// podSandbox tells why the pod has no sandbox.
func podSandbox(w *World, p *v1.Pod, events []*v1.Event) *Answer {
	c := podCondition(p, v1.PodReadyToStartContainers)
	if p.Spec.NodeName == "" || started(p) || c != nil && c.Status == v1.ConditionTrue {
		return nil
	}
	if e := lastEvent(events, "FailedCreatePodSandBox", "NetworkNotReady", "FailedCreatePodContainer",
		"FailedPrepareDynamicResources"); e != nil {
		if rc := p.Spec.RuntimeClassName; rc != nil && (strings.Contains(e.Message, "no runtime for") ||
			strings.Contains(e.Message, "handler") || strings.Contains(e.Message, *rc)) {
			return found(Failing, "RuntimeClass", "RuntimeClass %s: the runtime of node %s does not have its handler: %s", *rc,
				p.Spec.NodeName, brief(tail(e.Message), 160)).at("spec.runtimeClassName").held("RuntimeClass", "", *rc)
		}
		return found(Failing, e.Reason, "node %s cannot make the pod's sandbox: %s", p.Spec.NodeName, brief(tail(e.Message), 200)).
			held("Node", "", p.Spec.NodeName).
			fact("event", "%s, %d times, last %s ago", e.Reason, max(e.Count, 1), Age(w.Now, eventTime(e)))
	}
	if len(p.Status.ContainerStatuses) == 0 && w.Now.Sub(p.CreationTimestamp.Time) > 30*time.Second {
		return found(Failing, "AgentSilent", "the agent on node %s has said nothing about the pod for %s", p.Spec.NodeName,
			Age(w.Now, p.CreationTimestamp.Time)).held("Node", "", p.Spec.NodeName).remedy("berth why node %s", p.Spec.NodeName)
	}
	return nil
}

// tail drops the words that components put before a cause.
func tail(message string) string {
	for _, lead := range []string{"Failed to create pod sandbox: ", "rpc error: "} {
		message = strings.TrimPrefix(message, lead)
	}
	if strings.HasPrefix(message, "code = ") {
		if _, desc, ok := strings.Cut(message, " desc = "); ok {
			message = desc
		}
	}
	return message
}

func started(p *v1.Pod) bool {
	for _, s := range statuses(p) {
		if s.ContainerID != "" || s.State.Running != nil {
			return true
		}
	}
	return false
}

// statuses are those of init containers and then containers.
func statuses(p *v1.Pod) []v1.ContainerStatus {
	return append(append([]v1.ContainerStatus(nil), p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...)
}

// containerOf is the spec of a container, and the path of its field.
func containerOf(p *v1.Pod, name string) (v1.Container, string) {
	for i, c := range p.Spec.InitContainers {
		if c.Name == name {
			return c, fmt.Sprintf("spec.initContainers[%d]", i)
		}
	}
	for i, c := range p.Spec.Containers {
		if c.Name == name {
			return c, fmt.Sprintf("spec.containers[%d]", i)
		}
	}
	return v1.Container{Name: name}, "spec.containers"
}

// podHealthy answers for a pod that does what it should, with what may
// surprise its user all the same.
func podHealthy(w *World, p *v1.Pod) *Answer {
	if p.Status.Phase == v1.PodSucceeded {
		return found(Ended, "Succeeded", "the pod ended well: all its containers exited with 0")
	}
	if p.Status.Phase == v1.PodPending {
		return found(Waiting, "Starting", "node %s is starting the pod (%s old); nothing has failed", p.Spec.NodeName,
			Age(w.Now, p.CreationTimestamp.Time))
	}
	if a := isolated(w, p); a != nil {
		return a
	}
	if b := blockingBudget(w, p); b != nil {
		return found(Healthy, "BudgetBlocks", "the pod is well, but PodDisruptionBudget %s allows no eviction of it: %d healthy, %d needed",
			b.Name,
			b.Status.CurrentHealthy, b.Status.DesiredHealthy).held("PodDisruptionBudget", b.Namespace, b.Name).at("spec").
			remedy("add replicas, or loosen minAvailable/maxUnavailable of the budget").from("PodDisruptionBudget")
	}
	for _, s := range p.Status.ContainerStatuses {
		if t := s.LastTerminationState.Terminated; t != nil && w.Now.Sub(t.FinishedAt.Time) < time.Hour {
			a := containerEnd(w, p, s, t)
			a.State = Healthy
			a.Cause = fmt.Sprintf("runs now; restarted %s ago (%d times in all): %s", Age(w.Now, t.FinishedAt.Time), s.RestartCount,
				a.Cause)
			return a
		}
	}
	a := found(Healthy, "Healthy", "nothing is wrong: the pod is %s", p.Status.Phase)
	if c := podCondition(p, v1.PodReady); c != nil && c.Status == v1.ConditionTrue {
		a.Cause += " and Ready since " + Age(w.Now, c.LastTransitionTime.Time)
	}
	return a
}

func deletionHeld(w *World, o metav1.Object, kind string) *Answer {
	if o.GetDeletionTimestamp() == nil || len(o.GetFinalizers()) == 0 {
		return nil
	}
	return found(Failing, "TerminatingFinalizer", "finalizer %s of the %s holds its deletion (asked %s ago)",
		strings.Join(o.GetFinalizers(), ", "), kind, Age(w.Now, o.GetDeletionTimestamp().Time)).at("metadata.finalizers").
		remedy("start the controller that owns the finalizer; it removes it")
}
