package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHungRuntime stops the runtime without ending it: its socket takes calls
// and answers none. The node says so, what runs goes on, and what came
// meanwhile starts when the runtime is back.
func TestHungRuntime(t *testing.T) {
	c := newCluster(t)
	c.up()
	pod := func(name string) {
		c.apply(strings.ReplaceAll(`{apiVersion: v1, kind: Pod, metadata: {name: NAME, labels: {app: NAME}}, spec: {terminationGracePeriodSeconds: 0,
containers: [{name: c, image: "berth.dev/toolbox:1", command: [serve], readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}}]}}`, "NAME", name))
	}
	pod("steady")
	before := c.waitReady("default", "app=steady", 1)[0]
	runtime := c.runtimePID()
	if err := syscall.Kill(runtime, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(runtime, syscall.SIGCONT) })
	pod("late")
	c.untilNode("says that the runtime hangs", func(cond *v1.NodeCondition) bool {
		return cond.Status == v1.ConditionFalse && strings.Contains(cond.Message, "container runtime is down")
	})
	if p := c.pod("late"); p.Status.Phase == v1.PodRunning {
		t.Errorf("a pod runs without a runtime: %s", describe(p))
	}
	if err := syscall.Kill(runtime, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.untilNode("is ready again", func(cond *v1.NodeCondition) bool { return cond.Status == v1.ConditionTrue })
	c.waitReady("default", "app=late", 1)
	after := c.waitReady("default", "app=steady", 1)[0]
	was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if was.ContainerID != is.ContainerID || is.RestartCount != 0 || before.UID != after.UID {
		t.Errorf("the pod that ran: container %s, then %s after %d restarts", was.ContainerID, is.ContainerID, is.RestartCount)
	}
}

// untilNode waits until the node's Ready condition is as it should be.
func (c *cluster) untilNode(what string, ok func(*v1.NodeCondition) bool) {
	c.t.Helper()
	c.eventually("the node "+what, func() (bool, string) {
		list, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return false, "no node"
		}
		for i := range list.Items[0].Status.Conditions {
			if cond := &list.Items[0].Status.Conditions[i]; cond.Type == v1.NodeReady {
				return ok(cond), string(cond.Status) + " " + cond.Message
			}
		}
		return false, "no condition"
	})
}
