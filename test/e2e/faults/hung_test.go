package faults

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestHungRuntime stops the runtime without ending it: its socket takes calls
// and answers none. The node says so, what runs goes on, and what came
// meanwhile starts when the runtime is back. Until then pods are out of service,
// and the agent does not put them back against the node controllers.
func TestHungRuntime(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	pod := func(name string) {
		c.Apply(strings.ReplaceAll(`{apiVersion: v1, kind: Pod, metadata: {name: NAME, labels: {app: NAME}}, spec: `+
			`{terminationGracePeriodSeconds: 0,
containers: [{name: c, image: "berth.dev/toolbox:1", command: [serve], readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}}]}}`,
			"NAME", name))
	}
	pod("steady")
	before := c.WaitReady("default", "app=steady", 1)[0]
	changes, err := c.Client.CoreV1().Pods("default").Watch(t.Context(),
		metav1.SingleObject(metav1.ObjectMeta{Name: "steady", ResourceVersion: before.ResourceVersion}))
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	runtime := c.RuntimePID()
	if err := syscall.Kill(runtime, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(runtime, syscall.SIGCONT) })
	pod("late")
	untilNode(c, "says that the runtime hangs", func(cond *v1.NodeCondition) bool {
		return cond.Status == v1.ConditionFalse && strings.Contains(cond.Message, "container runtime is down")
	})
	c.Eventually("the pod is out of service", func() (bool, string) { return !kit.PodReady(c.Pod("steady")), "Ready" })
	if p := c.Pod("late"); p.Status.Phase == v1.PodRunning {
		t.Errorf("a pod runs without a runtime: %s", kit.Describe(p))
	}
	if err := syscall.Kill(runtime, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	untilNode(c, "is ready again", func(cond *v1.NodeCondition) bool { return cond.Status == v1.ConditionTrue })
	c.WaitReady("default", "app=late", 1)
	after := c.WaitReady("default", "app=steady", 1)[0]
	was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if was.ContainerID != is.ContainerID || is.RestartCount != 0 || before.UID != after.UID {
		t.Errorf("the pod that ran: container %s, then %s after %d restarts", was.ContainerID, is.ContainerID, is.RestartCount)
	}
	if got := readiness(changes, after.ResourceVersion); !slices.Equal(got, []bool{false, true}) {
		t.Errorf("Ready of the pod became %v, want false once and true once", got)
	}
}

// readiness reads what a pod's Ready became, from the first change to that with
// the given resource version.
func readiness(changes watch.Interface, last string) (became []bool) {
	now := true
	for e := range changes.ResultChan() {
		pod, ok := e.Object.(*v1.Pod)
		if !ok {
			return append(became, now) // an error, which no expectation has
		}
		if r := kit.PodReady(pod); r != now {
			now = r
			became = append(became, r)
		}
		if pod.ResourceVersion == last {
			break
		}
	}
	return became
}

// untilNode waits until the node's Ready condition is as it should be.
func untilNode(c *kit.Cluster, what string, ok func(*v1.NodeCondition) bool) {
	c.T.Helper()
	c.Eventually("the node "+what, func() (bool, string) {
		list, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
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
