package kit

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// PodReady tells whether a pod is Ready.
func PodReady(p *v1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.Status == v1.ConditionTrue
		}
	}
	return false
}

// Describe says in one line how a pod is, for a failed wait.
func Describe(p *v1.Pod) string {
	s := fmt.Sprintf("%s %s deleting=%v", p.Name, p.Status.Phase, p.DeletionTimestamp != nil)
	if p.Status.Reason != "" {
		s += fmt.Sprintf(" %s: %s", p.Status.Reason, p.Status.Message)
	}
	for _, cs := range p.Status.ContainerStatuses {
		s += fmt.Sprintf(" %s ready=%v restarts=%d", cs.Name, cs.Ready, cs.RestartCount)
		if w := cs.State.Waiting; w != nil {
			s += " " + w.Reason + " " + w.Message
		}
	}
	return s
}

// SpreadManifest is a DaemonSet of web servers and their Service.
const SpreadManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: spread}
spec:
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve, "8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: spread}
spec:
  selector: {app: spread}
  ports: [{port: 80, targetPort: 8080}]
`

// ToolboxPod is the manifest of a pod that runs a shell command; more is appended to
// its container.
func ToolboxPod(name, command, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: berth.dev/toolbox:1
    command: [sh, -c, %q]
%s---`, name, name, command, more)
}

// Disrupted tells whether the kubelet says that it ended the pod.
func Disrupted(p *v1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.DisruptionTarget && cond.Status == v1.ConditionTrue && cond.Reason == v1.PodReasonTerminationByKubelet {
			return true
		}
	}
	return false
}

// SimplePod is the manifest of a pod with one web server and its resources.
func SimplePod(name, resources string) string {
	if resources == "" {
		resources = "{}"
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve], resources: %s}]
`, name, resources)
}

// PodEnded tells whether a pod is in a terminal phase.
func PodEnded(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded
}

// ReadySince is when the Ready condition changed last.
func ReadySince(p *v1.Pod) time.Time {
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// Restarts counts the restarts of all containers of a pod.
func Restarts(p *v1.Pod) (n int32) {
	for _, cs := range p.Status.ContainerStatuses {
		n += cs.RestartCount
	}
	return n
}
