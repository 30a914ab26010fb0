package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kinds are one workload of each kind, spread over the nodes, whose pods give
// an unreachable node two seconds, and one to end: a pod without any grace would
// be gone from the API at once, whatever still runs. docs/workloads.md tells what this test
// shows.
const kinds = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: deployment}
spec:
  replicas: 3
  selector: {matchLabels: {app: deployment}}
  template:
    metadata: {labels: {app: deployment}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: deployment}}}
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: statefulset}
spec:
  replicas: 3
  serviceName: statefulset
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: statefulset}}
  template:
    metadata: {labels: {app: statefulset}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: statefulset}}, nodeTaintsPolicy: Honor}
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  parallelism: 3
  completions: 3
  template:
    metadata: {labels: {app: job}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: job}}}
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: daemonset}
spec:
  selector: {matchLabels: {app: daemonset}}
  template:
    metadata: {labels: {app: daemonset}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve]}
`

const staticPod = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default, labels: {app: static}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "berth.dev/toolbox:1", args: [serve]}
`

// TestLostNode cuts one of three nodes off, watches what each kind of workload
// makes of it, plugs it in again, and then removes the Node of a machine that
// is cut off.
func TestLostNode(t *testing.T) {
	r := newRoom(t, "--node-monitor-grace-period", "4s", "--node-startup-grace-period", "10s", "--node-eviction-rate", "10")
	beat := filepath.Join(t.TempDir(), "agent.yaml")
	must(t, os.WriteFile(beat, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeLeaseDurationSeconds: 4\n"), 0o644))
	for _, name := range []string{"a", "b", "c"} {
		r.machine(name).join("--agent-config", beat)
	}
	lost := r.nodes[0]
	must(t, os.WriteFile(filepath.Join(lost.dir, "agent", "manifests", "static.yaml"), []byte(staticPod), 0o644))
	r.apply(kinds)
	owned := []string{"deployment", "statefulset", "job", "daemonset"}
	for _, app := range owned {
		r.waitReady("default", "app="+app, 3)
	}
	r.waitReady("default", "app=static", 1)
	before := r.on(lost.name)
	if len(before) != 5 {
		t.Fatalf("node %s has %d pods, want one of each kind", lost.name, len(before))
	}

	lost.cut()
	r.nodeIs(lost.name, v1.ConditionUnknown, v1.TaintNodeUnreachable)
	r.eventually("every pod of the lost node is not ready", func() (bool, string) {
		for _, p := range r.on(lost.name) {
			if podReady(&p) {
				return false, describe(&p)
			}
		}
		return true, ""
	})
	// Those that move run elsewhere; the API keeps what may still run there.
	for app, elsewhere := range map[string]int{"deployment": 3, "job": 3, "statefulset": 2, "daemonset": 2} {
		r.eventually(fmt.Sprintf("%d pods of the %s run elsewhere", elsewhere, app), func() (bool, string) {
			n, words := 0, []string{}
			for _, p := range r.pods("default", "app="+app) {
				words = append(words, p.Spec.NodeName+" "+describe(&p))
				if p.Spec.NodeName != lost.name && podReady(&p) {
					n++
				}
			}
			return n == elsewhere, strings.Join(words, "; ")
		})
	}
	for _, p := range r.on(lost.name) {
		evicted := slices.Contains([]string{"deployment", "statefulset", "job"}, p.Labels["app"])
		if (p.DeletionTimestamp != nil) != evicted || p.UID != before[p.Labels["app"]].UID {
			t.Errorf("pod of the %s on the lost node: deleting %v, want %v", p.Labels["app"], p.DeletionTimestamp != nil, evicted)
		}
		if evicted && !hasDisruption(&p) {
			t.Errorf("evicted pod of the %s has no DisruptionTarget condition", p.Labels["app"])
		}
	}

	lost.heal()
	r.nodeIs(lost.name, v1.ConditionTrue, "")
	for _, app := range owned {
		r.waitReady("default", "app="+app, 3)
	}
	after := r.on(lost.name)
	for _, app := range []string{"daemonset", "static"} {
		p, old := after[app], before[app]
		if p.UID != old.UID || p.Status.ContainerStatuses[0].ContainerID != old.Status.ContainerStatuses[0].ContainerID {
			t.Errorf("the pod of the %s did not outlive the cut", app)
		}
		r.eventually("the pod of the "+app+" is ready again", func() (bool, string) {
			p := r.on(lost.name)[app]
			return podReady(&p), describe(&p)
		})
	}

	// A machine that is gone for good: with its Node its pods go, and a
	// StatefulSet may run its pod elsewhere.
	lost.cut()
	r.nodeIs(lost.name, v1.ConditionUnknown, v1.TaintNodeUnreachable)
	r.kubectl("delete", "node", lost.name)
	for app, n := range map[string]int{"deployment": 3, "statefulset": 3, "job": 3, "daemonset": 2} {
		r.waitReady("default", "app="+app, n)
	}
	// It was not: its agent registers again.
	lost.heal()
	r.nodeIs(lost.name, v1.ConditionTrue, "")
	r.waitReady("default", "app=daemonset", 3)
}

// on maps the app label of the pods bound to a node to the pod.
func (r *room) on(node string) map[string]v1.Pod {
	r.t.Helper()
	out := map[string]v1.Pod{}
	for _, p := range r.pods(metav1.NamespaceDefault, "app") {
		if p.Spec.NodeName == node {
			out[p.Labels["app"]] = p
		}
	}
	return out
}

// nodeIs waits until a node's Ready condition has the status, and it has the
// NoExecute taint; an empty taint: none.
func (r *room) nodeIs(name string, ready v1.ConditionStatus, taint string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("node %s Ready=%s, taint %q", name, ready, taint), func() (bool, string) {
		n, err := r.client.CoreV1().Nodes().Get(r.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		at := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
		executes := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t v1.Taint) bool { return t.Effect != v1.TaintEffectNoExecute })
		tainted := len(executes) == 0
		if taint != "" {
			tainted = len(executes) == 1 && executes[0].Key == taint
		}
		return at >= 0 && n.Status.Conditions[at].Status == ready && tainted, fmt.Sprintf("%+v %+v", n.Status.Conditions, n.Spec.Taints)
	})
}

func hasDisruption(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue })
}
