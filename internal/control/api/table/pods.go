package table

import (
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/internal/podutil"
)

var Pod = Layout{
	columns: []metav1.TableColumnDefinition{
		nameColumn,
		text("Ready", "Ready containers of all containers that are meant to keep running."),
		text("Status", "What the pod is doing, or what keeps it from it."),
		text("Restarts", "How often the containers were restarted, and when last."),
		ageColumn,
		wide("IP", "The pod's first address."),
		wide("Node", "The node the pod is bound to."),
		wide("Nominated Node", "The node where pods are being preempted for this one."),
		wide("Readiness Gates", "Readiness gates that hold, of all."),
	},
	row: func(now time.Time, obj runtime.Object) (metav1.TableRow, bool) {
		p, ok := obj.(*v1.Pod)
		if !ok {
			return metav1.TableRow{}, false
		}
		s := summarise(p)
		return metav1.TableRow{
			Cells: []any{p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.status, s.restartText(now), created(now, p),
				firstIP(p), or(p.Spec.NodeName, none), or(p.Status.NominatedNodeName, none), gates(p)},
			Conditions: finished(p),
		}, true
	},
}

// podSummary is what the cells of a pod are made of.
type podSummary struct {
	status       string
	ready, total int
	restarts     int64
	lastRestart  metav1.Time
	initializing bool
}

func (s *podSummary) restartText(now time.Time) string {
	n := strconv.FormatInt(s.restarts, 10)
	if s.restarts == 0 || s.lastRestart.IsZero() {
		return n
	}
	return fmt.Sprintf("%s (%s ago)", n, age(now, s.lastRestart))
}

func (s *podSummary) count(c *v1.ContainerStatus) {
	s.restarts += int64(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

// summarise says in one word what a pod is doing. The order of the steps is
// what clients rely on: phase and reason, then the first init container that is
// not done, then the containers, and deletion over all of it.
func summarise(p *v1.Pod) podSummary {
	s := podSummary{status: or(p.Status.Reason, string(p.Status.Phase)), total: len(p.Spec.Containers)}
	if c := condition(p, v1.PodScheduled); c != nil && c.Reason == v1.PodReasonSchedulingGated {
		s.status = v1.PodReasonSchedulingGated
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
			s.total++
		}
	}
	onlySidecars := s.initContainers(p, sidecars)
	if !s.initializing || conditionTrue(p, v1.PodInitialized) {
		s.restarts, s.lastRestart = onlySidecars.restarts, onlySidecars.lastRestart
		s.containers(p)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			s.status = string(v1.PodUnknown)
		case !podutil.Terminal(p):
			s.status = "Terminating"
		}
	}
	return s
}

// initContainers stops at the first that is not done. It returns the restarts
// of sidecars alone, which are what counts once the pod is initialized.
func (s *podSummary) initContainers(p *v1.Pod, sidecars map[string]bool) podSummary {
	var counted podSummary
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.count(c)
		if sidecars[c.Name] {
			counted.count(c)
		}
		if t := c.State.Terminated; t != nil && t.ExitCode == 0 {
			continue
		}
		if sidecars[c.Name] && deref(c.Started) {
			if c.Ready {
				s.ready++
			}
			continue
		}
		s.initializing = true
		switch {
		case c.State.Terminated != nil:
			s.status = "Init:" + exitReason(c.State.Terminated)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "" && c.State.Waiting.Reason != "PodInitializing":
			s.status = "Init:" + c.State.Waiting.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		break
	}
	return counted
}

// containers goes from the last to the first, so that the first decides.
func (s *podSummary) containers(p *v1.Pod) {
	running := false
	failure := ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.count(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = exitReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.status
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.status != "Completed" {
		return
	}
	switch {
	case running && conditionTrue(p, v1.PodReady):
		s.status = string(v1.PodRunning)
	case failure != "":
		s.status = failure
	case running:
		s.status = "NotReady"
	}
}

func exitReason(t *v1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

func condition(p *v1.Pod, kind v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func conditionTrue(p *v1.Pod, kind v1.PodConditionType) bool {
	c := condition(p, kind)
	return c != nil && c.Status == v1.ConditionTrue
}

func firstIP(p *v1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return or(p.Status.PodIPs[0].IP, none)
	}
	return or(p.Status.PodIP, none)
}

func gates(p *v1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	held := 0
	for _, g := range p.Spec.ReadinessGates {
		if conditionTrue(p, g.ConditionType) {
			held++
		}
	}
	return fmt.Sprintf("%d/%d", held, len(p.Spec.ReadinessGates))
}

// finished marks rows of pods that ran to their end, so that a client can
// leave them out.
func finished(p *v1.Pod) []metav1.TableRowCondition {
	mark := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(p.Status.Phase)}
	switch p.Status.Phase {
	case v1.PodSucceeded:
		mark.Message = "The pod has completed successfully."
	case v1.PodFailed:
		mark.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{mark}
}
