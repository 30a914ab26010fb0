package admission

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/container"
)

// Sysctls refuses pods whose sysctls the node does not allow.
func Sysctls(node container.NodeSettings) Opinion {
	return func(p *v1.Pod) (reason, message string, ok bool) {
		return refusal(container.CheckSysctls(p, node), "SysctlForbidden")
	}
}

// AppArmor refuses pods whose profiles the host cannot enforce.
func AppArmor(enabled bool) Opinion {
	return func(p *v1.Pod) (reason, message string, ok bool) {
		return refusal(container.CheckAppArmor(p, enabled, nil), "AppArmor")
	}
}

// Swapless refuses to resize what may use swap: how much it may use was decided
// when it started.
func Swapless(node container.NodeSettings) Opinion {
	return func(desired *v1.Pod) (reason, message string, ok bool) {
		if container.MaySwap(desired, node) {
			return v1.PodReasonInfeasible, "In-place resize of containers with swap is not supported.", false
		}
		return "", "", true
	}
}

// refusal is an admission error as an opinion; otherwise names one that brings
// no reason of its own.
func refusal(err error, otherwise string) (reason, message string, ok bool) {
	if err == nil {
		return "", "", true
	}
	var e *container.AdmissionError
	if errors.As(err, &e) {
		return e.Reason, e.Message, false
	}
	return otherwise, err.Error(), false
}
