package shutdown

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/pod"
)

// pods are the pods that a shutdown ends; pod.Signals has it.
type pods interface {
	Kill(uid types.UID, k pod.Kill) <-chan struct{}
	Reported(uid types.UID) <-chan struct{}
}

// End ends pods because the host goes down. Once that is released no one could
// report to the API any more how a pod ended, so it is reported before.
func End(pods pods) func(p *v1.Pod, grace time.Duration) <-chan struct{} {
	return func(p *v1.Pod, grace time.Duration) <-chan struct{} {
		seconds := int64(grace / time.Second)
		reported := pods.Reported(p.UID) // asked for first: it may be gone after
		pods.Kill(p.UID, pod.Kill{Grace: &seconds, Phase: v1.PodFailed, Reason: Reason, Message: Message,
			Condition: pod.Disrupted(Message)})
		return reported
	}
}
