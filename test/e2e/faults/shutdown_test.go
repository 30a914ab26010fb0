package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/agent/shutdown/logindtest"
	"github.com/berth-dev/berth/test/e2e/kit"
)

const twoPriorities = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: kube-system, labels: {app: web}}
spec:
  nodeName: falling
  terminationGracePeriodSeconds: 30
  containers:
  - name: c
    image: berth.dev/toolbox:1
    command: [/bin/toolbox, sh, -c, "sleep 1000"]
    lifecycle: {preStop: {sleep: {seconds: 1}}}
---
apiVersion: v1
kind: Pod
metadata: {name: vital, namespace: kube-system, labels: {app: vital}}
spec:
  nodeName: falling
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 30
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve]}]
`

// TestNodeShutdown announces the host's shutdown to a real agent over a real
// message bus: pods end by priority, the API knows how before the host is let
// go, and the next start leaves them as they are.
func TestNodeShutdown(t *testing.T) {
	const grace, critical = 10 * time.Second, 4 * time.Second
	logind := logindtest.Start(t, grace, "")
	b := kit.NewRig(t, "10.204.0.0/16", "10.204.0.0/24")
	agent, err := b.StartAgent("falling", fmt.Sprintf("shutdownGracePeriod: %s\nshutdownGracePeriodCriticalPods: %s\n", grace, critical))
	kit.Must(t, err)
	lock := <-logind.Locks
	kit.Must(t, b.WaitNode(t.Context(), "falling"))
	b.Apply(twoPriorities)
	b.WaitReady("kube-system", "app=web", 1)
	b.WaitReady("kube-system", "app=vital", 1)

	order := endings(b, "kube-system", 2)
	began := time.Now()
	logind.Announce(true)
	select {
	case <-lock.Released():
	case <-time.After(kit.Timeout):
		t.Fatal("the host is never released")
	}
	// What the API says now is what it will say while the host is off.
	t.Logf("released after %v of %v", time.Since(began).Round(10*time.Millisecond), grace)
	for name, phase := range map[string]v1.PodPhase{"web": v1.PodFailed, "vital": v1.PodSucceeded} {
		p, err := b.Cluster.Client.CoreV1().Pods("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		kit.Must(t, err)
		if p.Status.Phase != phase || p.Status.Reason != "Terminated" || p.Status.ContainerStatuses[0].State.Terminated == nil ||
			!kit.Disrupted(p) {
			t.Errorf("%s: %s, reason %q, %s, conditions %v", name, p.Status.Phase, p.Status.Reason, kit.Describe(p), p.Status.Conditions)
		}
	}
	nodeSays(b, "falling", v1.ConditionFalse, "shutting down")
	if got := strings.Join(order(), " "); got != "web vital" {
		t.Errorf("pods ended in the order %q", got)
	}
	b.Apply(strings.ReplaceAll(twoPriorities, "web", "late"))
	b.Eventually("the refusal of a late pod", func() (bool, string) {
		p, err := b.Cluster.Client.CoreV1().Pods("kube-system").Get(t.Context(), "late", metav1.GetOptions{})
		kit.Must(t, err)
		return p.Status.Phase == v1.PodFailed && p.Status.Reason == "NodeShutdown", kit.Describe(p)
	})

	agent.Stop()
	kit.Must(t, agent.Start())
	<-logind.Locks
	nodeSays(b, "falling", v1.ConditionTrue, "")
	b.Apply(strings.ReplaceAll(twoPriorities, "web", "next"))
	b.WaitReady("kube-system", "app=next", 1)
	for _, name := range []string{"web", "vital", "late"} {
		p, err := b.Cluster.Client.CoreV1().Pods("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		kit.Must(t, err)
		if !kit.PodEnded(p) {
			t.Errorf("%s lives again: %s", name, kit.Describe(p))
		}
	}
	b.Clear(agent)
}

// nodeSays waits until a node's Ready condition is so, for this reason.
func nodeSays(b *kit.Rig, name string, status v1.ConditionStatus, why string) {
	b.T.Helper()
	b.Eventually(fmt.Sprintf("Ready %s of %s", status, name), func() (bool, string) {
		n, err := b.Cluster.Client.CoreV1().Nodes().Get(b.T.Context(), name, metav1.GetOptions{})
		kit.Must(b.T, err)
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status == status && strings.Contains(c.Message, why), fmt.Sprintf("%s: %s", c.Status, c.Message)
			}
		}
		return false, "no condition"
	})
}

// endings follows pods; what it returns waits until n ended and names them in
// order.
func endings(b *kit.Rig, ns string, n int) func() []string {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	b.T.Cleanup(cancel)
	w, err := b.Cluster.Client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	kit.Must(b.T, err)
	done := make(chan struct{})
	var order []string
	go func() {
		defer close(done)
		defer w.Stop()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*v1.Pod); ok && kit.PodEnded(p) && !slices.Contains(order, p.Name) {
				order = append(order, p.Name)
			}
			if len(order) == n {
				return
			}
		}
	}()
	return func() []string {
		<-done
		return order
	}
}
