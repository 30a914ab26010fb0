package view

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// severity is how bad a state is; it is the name of its colour class.
type severity string

// The levels.
const (
	Good severity = "good"
	Warn severity = "warn"
	Bad  severity = "bad"
	Idle severity = "idle"
)

// stateWord is a word and how bad it is.
type stateWord struct {
	Word  string
	Level severity
}

// settle is how long something may take before it counts as wrong.
const settle = 15 * time.Second

// zoneOf is the zone of a node as its labels name it: region/zone.
func zoneOf(n *v1.Node) string {
	region, zone := n.Labels[v1.LabelTopologyRegion], n.Labels[v1.LabelTopologyZone]
	switch {
	case region == "":
		return zone
	case zone == "":
		return region
	}
	return region + "/" + zone
}

func condition(n *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func podCondition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// nodeState is a node's state in the words of kubectl.
func nodeState(n *v1.Node) stateWord {
	ready := condition(n, v1.NodeReady)
	switch {
	case ready == nil:
		return stateWord{"No status", Bad}
	case ready.Status == v1.ConditionUnknown:
		return stateWord{"Unknown", Bad}
	case ready.Status != v1.ConditionTrue:
		return stateWord{"Not Ready", Bad}
	}
	for _, c := range n.Status.Conditions {
		if c.Type != v1.NodeReady && c.Status == v1.ConditionTrue {
			return stateWord{string(c.Type), Warn}
		}
	}
	if n.Spec.Unschedulable {
		return stateWord{"Cordoned", Idle}
	}
	return stateWord{"Ready", Good}
}

func nodeWrong(n *v1.Node) bool { l := nodeState(n).Level; return l == Bad || l == Warn }

// podState is a pod's state as kubectl's STATUS column has it, for the reasons
// that matter.
func podState(p *v1.Pod, now time.Time) stateWord {
	word := string(p.Status.Phase)
	if p.Status.Reason != "" {
		word = p.Status.Reason
	}
	waiting, failed := "", false
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
				waiting = w.Reason
			}
			if t := s.State.Terminated; t != nil && t.ExitCode != 0 && waiting == "" {
				word, failed = t.Reason, true
			}
		}
	}
	switch {
	case p.DeletionTimestamp != nil:
		if now.Sub(p.DeletionTimestamp.Time) > settle {
			return stateWord{"Terminating", Bad}
		}
		return stateWord{"Terminating", Idle}
	case p.Status.Phase == v1.PodSucceeded:
		return stateWord{"Completed", Idle}
	case p.Status.Phase == v1.PodFailed:
		return stateWord{word, Bad}
	case waiting != "":
		return stateWord{waiting, Bad}
	case failed:
		return stateWord{word, Bad}
	case p.Status.Phase == v1.PodRunning:
		if c := podCondition(p, v1.PodReady); c != nil && c.Status != v1.ConditionTrue {
			if now.Sub(c.LastTransitionTime.Time) > settle {
				return stateWord{"Not Ready", Warn}
			}
			return stateWord{"Running", Idle}
		}
		return stateWord{"Running", Good}
	}
	if now.Sub(p.CreationTimestamp.Time) > settle {
		return stateWord{"Pending", Warn}
	}
	return stateWord{"Pending", Idle}
}

// podWrong says whether a pod belongs to what is wrong now. A failed pod that an
// owner replaces is history.
func podWrong(p *v1.Pod, now time.Time) bool {
	l := podState(p, now).Level
	if p.Status.Phase == v1.PodFailed && p.DeletionTimestamp == nil {
		return metav1.GetControllerOf(p) == nil
	}
	return l == Bad || l == Warn
}

// restarts are those of all containers of a pod.
func restarts(p *v1.Pod) (n int32) {
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			n += list[i].RestartCount
		}
	}
	return n
}

// readyContainers are the ready ones and all.
func readyContainers(p *v1.Pod) (ready, all int) {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].Ready {
			ready++
		}
	}
	return ready, len(p.Spec.Containers)
}
