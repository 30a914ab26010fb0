package faults

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/test/e2e/kit"
)

const manyPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 24
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many, set: restart}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "berth.dev/pause:1"}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: probed}
spec:
  replicas: 6
  selector: {matchLabels: {app: probed}}
  template:
    metadata: {labels: {app: probed, set: restart}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: berth.dev/toolbox:1
        args: [serve]
        readinessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 20}
        livenessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 1, failureThreshold: 30, timeoutSeconds: 20}
`

// TestRestartUnder30Pods kills berth under 30 running pods and starts it
// again: no process, no restart count and no Ready condition may change, in
// any version of any object, and the node stays Ready.
func TestRestartUnder30Pods(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	c.Apply(manyPods)
	before := map[string]v1.Pod{}
	for _, p := range c.WaitReady("default", "set=restart", 30) {
		before[p.Name] = p
	}
	pids := c.ContainerPIDs()
	if len(pids) != 60 { // 30 containers and their sandboxes
		t.Fatalf("%d container processes, want 60", len(pids))
	}
	since := nodeReadySince(c)
	h := recordHistory(c, before)
	for round := range 3 {
		pid := c.PID()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		kit.WaitProcessGone(t, pid)
		if out, err := c.TryUp(); err != nil {
			t.Fatalf("up after kill -9: %v\n%s", err, out)
		}
		// Two sync points that come after everything the new agent does first:
		// its own report of every pod, and a pod it made.
		name := fmt.Sprintf("after-%d", round)
		if out, err := c.TryKubectl("", "run", name, "--image=berth.dev/toolbox:1", "--labels=set=after", "--", "serve"); err != nil {
			t.Fatalf("after the restart: %v\n%s", err, out)
		}
		c.WaitReady("default", "set=after", round+1)
	}
	if now := c.ContainerPIDs(); !maps.Equal(kit.Subset(now, pids), pids) {
		t.Errorf("container processes changed: %v, were %v", now, pids)
	}
	now := c.Pods("default", "set=restart")
	if len(now) != 30 {
		t.Errorf("%d pods, were 30", len(now))
	}
	for i := range now {
		p, old := &now[i], before[now[i].Name]
		if p.UID != old.UID || !kit.ReadySince(p).Equal(kit.ReadySince(&old)) || !kit.PodReady(p) {
			t.Errorf("pod %s: %s, Ready since %v, was %s since %v", p.Name, kit.Describe(p), kit.ReadySince(p), kit.Describe(&old),
				kit.ReadySince(&old))
		}
	}
	if now := nodeReadySince(c); !now.Equal(since) {
		t.Errorf("the node is Ready since %v, was since %v", now, since)
	}
	h.stop()
	for _, bad := range h.findings() {
		t.Error(bad)
	}
	if h.seen == 0 {
		t.Error("the watch that spans the restarts saw nothing")
	}
}

func nodeReadySince(c *kit.Cluster) time.Time {
	c.T.Helper()
	nodes, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		c.T.Fatalf("listing nodes: %d, %v", len(nodes.Items), err)
	}
	for _, cond := range nodes.Items[0].Status.Conditions {
		if cond.Type == v1.NodeReady {
			return cond.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// history watches pods and nodes across restarts of the server. Where a new
// server no longer has the versions since the last one seen, it lists again;
// a flip in between would still show in a condition's transition time.
type history struct {
	stop   func()
	before map[string]v1.Pod
	mu     sync.Mutex
	bad    []string
	seen   int
}

func (h *history) findings() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bad
}

func recordHistory(c *kit.Cluster, before map[string]v1.Pod) *history {
	c.T.Helper()
	h := &history{before: before}
	f := informers.NewSharedInformerFactory(c.Client, 0)
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = sync.OnceFunc(func() {
		cancel()
		f.Shutdown()
	})
	c.T.Cleanup(h.stop)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { h.look("added", obj) },
		UpdateFunc: func(_, obj any) { h.look("changed", obj) },
		DeleteFunc: func(obj any) { h.look("deleted", obj) },
	}
	for _, inf := range []cache.SharedIndexInformer{f.Core().V1().Pods().Informer(), f.Core().V1().Nodes().Informer()} {
		if _, err := inf.AddEventHandler(handler); err != nil {
			c.T.Fatal(err)
		}
	}
	f.Start(ctx.Done())
	for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
		if !ok {
			c.T.Fatalf("watching %v", kind)
		}
	}
	return h
}

func (h *history) look(what string, obj any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	note := func(format string, args ...any) { h.bad = append(h.bad, fmt.Sprintf(format, args...)) }
	switch o := obj.(type) {
	case *v1.Pod:
		if o.Labels["set"] != "restart" {
			return
		}
		if what == "deleted" || !kit.PodReady(o) || strings.Contains(kit.Describe(o), "ready=false") {
			note("pod %s was %s: %s at version %s", o.Name, what, kit.Describe(o), o.ResourceVersion)
		}
		old := h.before[o.Name]
		if !kit.ReadySince(o).Equal(kit.ReadySince(&old)) {
			note("pod %s: Ready since %v, was since %v", o.Name, kit.ReadySince(o), kit.ReadySince(&old))
		}
		if now, was := kit.Restarts(o), kit.Restarts(&old); now != was {
			note("pod %s: %d restarts, were %d", o.Name, now, was)
		}
	case *v1.Node:
		h.seen++
		for _, cond := range o.Status.Conditions {
			if cond.Type == v1.NodeReady && cond.Status != v1.ConditionTrue {
				note("node %s went through %s: %s", o.Name, cond.Reason, cond.Message)
			}
		}
		for _, taint := range o.Spec.Taints {
			note("node %s was tainted: %s", o.Name, taint.Key)
		}
	default:
		note("watch: %s %T", what, obj)
	}
}
