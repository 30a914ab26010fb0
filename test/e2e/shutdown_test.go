package e2e

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

// TestNodeShutdown announces the machine's shutdown to a real agent over a real
// message bus: pods end by priority, the API knows how before the machine is let
// go, and the next start leaves them as they are.
func TestNodeShutdown(t *testing.T) {
	const grace, critical = 10 * time.Second, 4 * time.Second
	logind := logindtest.Start(t, grace, "")
	b := newBench(t, "10.204.0.0/16", "10.204.0.0/24")
	agent, err := b.StartAgent("falling", fmt.Sprintf("shutdownGracePeriod: %s\nshutdownGracePeriodCriticalPods: %s\n", grace, critical))
	must(t, err)
	lock := <-logind.Locks
	must(t, b.WaitNode(t.Context(), "falling"))
	b.apply(twoPriorities)
	b.waitReady("kube-system", "app=web", 1)
	b.waitReady("kube-system", "app=vital", 1)

	order := b.endings("kube-system", 2)
	began := time.Now()
	logind.Announce(true)
	select {
	case <-lock.Released():
	case <-time.After(patience):
		t.Fatal("the machine is never let go")
	}
	// What the API says now is what it will say while the machine is off.
	t.Logf("let go after %v of %v", time.Since(began).Round(10*time.Millisecond), grace)
	for name, phase := range map[string]v1.PodPhase{"web": v1.PodFailed, "vital": v1.PodSucceeded} {
		p, err := b.client.CoreV1().Pods("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if p.Status.Phase != phase || p.Status.Reason != "Terminated" || p.Status.ContainerStatuses[0].State.Terminated == nil ||
			!disrupted(p) {
			t.Errorf("%s: %s, reason %q, %s, conditions %v", name, p.Status.Phase, p.Status.Reason, describe(p), p.Status.Conditions)
		}
	}
	b.nodeSays("falling", v1.ConditionFalse, "shutting down")
	if got := strings.Join(order(), " "); got != "web vital" {
		t.Errorf("pods ended in the order %q", got)
	}
	b.apply(strings.ReplaceAll(twoPriorities, "web", "late"))
	b.eventually("the refusal of a late pod", func() (bool, string) {
		p, err := b.client.CoreV1().Pods("kube-system").Get(t.Context(), "late", metav1.GetOptions{})
		must(t, err)
		return p.Status.Phase == v1.PodFailed && p.Status.Reason == "NodeShutdown", describe(p)
	})

	agent.Stop()
	must(t, agent.Start())
	<-logind.Locks
	b.nodeSays("falling", v1.ConditionTrue, "")
	b.apply(strings.ReplaceAll(twoPriorities, "web", "next"))
	b.waitReady("kube-system", "app=next", 1)
	for _, name := range []string{"web", "vital", "late"} {
		p, err := b.client.CoreV1().Pods("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if !over(p) {
			t.Errorf("%s lives again: %s", name, describe(p))
		}
	}
	b.clear(agent)
}

// nodeSays waits until a node's Ready condition is so, for this reason.
func (b *bench) nodeSays(name string, status v1.ConditionStatus, why string) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("Ready %s of %s", status, name), func() (bool, string) {
		n, err := b.client.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
		must(b.t, err)
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status == status && strings.Contains(c.Message, why), fmt.Sprintf("%s: %s", c.Status, c.Message)
			}
		}
		return false, "no condition"
	})
}

func over(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded }

// endings follows pods; what it returns waits until n ended and names them in
// order.
func (b *bench) endings(ns string, n int) func() []string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	w, err := b.client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	must(b.t, err)
	done := make(chan struct{})
	var order []string
	go func() {
		defer close(done)
		defer w.Stop()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*v1.Pod); ok && over(p) && !slices.Contains(order, p.Name) {
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
