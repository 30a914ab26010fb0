package node

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pressure says which resources run short, as the eviction manager sees it.
type Pressure struct{ Memory, Disk, PID bool }

// transition is an event to record on the Node because its state changed.
type transition struct {
	Type   string // v1.EventTypeNormal or v1.EventTypeWarning
	Reason string
	Text   string
}

// pressureRow spells one pressure condition. The texts are what dashboards and
// people search for, so they are the established ones.
type pressureRow struct {
	kind              v1.NodeConditionType
	on                func(Pressure) bool
	bad, good         string
	badText, goodText string
	badEvent, okEvent string
}

var pressureRows = []pressureRow{
	{v1.NodeMemoryPressure, func(p Pressure) bool { return p.Memory },
		"KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
		"kubelet has insufficient memory available", "kubelet has sufficient memory available",
		"NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
	{v1.NodeDiskPressure, func(p Pressure) bool { return p.Disk },
		"KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
		"kubelet has disk pressure", "kubelet has no disk pressure",
		"NodeHasDiskPressure", "NodeHasNoDiskPressure"},
	{v1.NodePIDPressure, func(p Pressure) bool { return p.PID },
		"KubeletHasInsufficientPID", "KubeletHasSufficientPID",
		"kubelet has insufficient PID available", "kubelet has sufficient PID available",
		"NodeHasInsufficientPID", "NodeHasSufficientPID"},
}

// conditions computes the conditions the agent owns (pressure and Ready, in
// this order) from the previous ones, and the events their changes deserve.
// Conditions of others are not returned: they stay untouched by the patch.
func conditions(name string, previous []v1.NodeCondition, pressure Pressure, notReady []string, now time.Time) ([]v1.NodeCondition,
	[]transition) {
	stamp := metav1.NewTime(now)
	var conditions []v1.NodeCondition
	var transitions []transition
	for _, row := range pressureRows {
		status, reason, text, event := v1.ConditionFalse, row.good, row.goodText, row.okEvent
		if row.on(pressure) {
			status, reason, text, event = v1.ConditionTrue, row.bad, row.badText, row.badEvent
		}
		condition, changed := next(findCondition(previous, row.kind), v1.NodeCondition{
			Type: row.kind, Status: status, Reason: reason, Message: text}, stamp)
		if changed {
			transitions = append(transitions, statusEvent(name, event))
		}
		conditions = append(conditions, condition)
	}

	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status"}
	event := "NodeReady"
	if len(notReady) > 0 {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "KubeletNotReady", joinCauses(notReady)
		event = "NodeNotReady"
	}
	was := findCondition(previous, v1.NodeReady)
	condition, changed := next(was, ready, stamp)
	// The first Ready of a Node is no change of state and makes no event.
	if changed && was != nil {
		transitions = append(transitions, statusEvent(name, event))
	}
	return append(conditions, condition), transitions
}

// next carries the transition time over from the previous condition if the
// status is the same; changed tells whether it is not.
func next(previous *v1.NodeCondition, condition v1.NodeCondition, now metav1.Time) (v1.NodeCondition, bool) {
	condition.LastHeartbeatTime = now
	condition.LastTransitionTime = now
	if previous == nil || previous.Status != condition.Status {
		return condition, true
	}
	condition.LastTransitionTime = previous.LastTransitionTime
	return condition, false
}

func statusEvent(name, reason string) transition {
	return transition{Type: v1.EventTypeNormal, Reason: reason, Text: fmt.Sprintf("Node %s status is now: %s", name, reason)}
}

func findCondition(conditions []v1.NodeCondition, kind v1.NodeConditionType) *v1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// joinCauses writes one cause plain and several in brackets.
func joinCauses(causes []string) string {
	if len(causes) == 1 {
		return causes[0]
	}
	return "[" + strings.Join(causes, ", ") + "]"
}
