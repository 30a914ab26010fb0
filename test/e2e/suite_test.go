package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSuite asks of one cluster what the upstream suite asks of kubectl, the
// network and the scheduler, with real containers. What needs none is asked of
// the API server alone, beside its packages.
func TestSuite(t *testing.T) {
	c := newCluster(t)
	c.up()
	for _, group := range [][]appTest{kubectlTests, networkTests, schedulingTests} {
		for _, tt := range group {
			t.Run(tt.name, func(t *testing.T) {
				ns := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(tt.name))
				tt.run(newApps(t, c, ns))
			})
		}
	}
}

var schedulingTests = []appTest{
	{"unfitting pods", unfittingPods},
	{"preemption", preemption},
	{"preemption by owners", preemptionByOwners},
	{"classes and limits", classesAndLimits},
}

// sleeper is a pod that does nothing, with more of its spec.
func sleeper(name, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  terminationGracePeriodSeconds: 0
  %s
`, name, name, strings.ReplaceAll(more, "\n", "\n  ")) + `
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [sleep, infinity]CONTAINER}]
`
}

// pod makes a sleeper; container is more of its one container, as in
// ", ports: [...]".
func (a *apps) pod(name, spec, container string) {
	a.t.Helper()
	a.make(strings.ReplaceAll(sleeper(name, spec), "CONTAINER", container))
}

// unplaced waits until the scheduler said of a pod that it fits nowhere, and
// why.
func (a *apps) unplaced(name, why string) {
	a.t.Helper()
	a.until("an event that "+name+" fits nowhere", func() string {
		out, _ := a.tryKubectl("", "-n", a.ns, "get", "events", "--field-selector", "involvedObject.name="+name+",reason=FailedScheduling",
			"-o", "jsonpath={.items[*].message}")
		if strings.Contains(out, why) {
			return ""
		}
		return out
	})
	if p := a.field("pod/"+name, "{.status.phase} {.status.conditions[?(@.type==\"PodScheduled\")].reason}"); p != "Pending Unschedulable" {
		a.t.Errorf("pod %s is %s", name, p)
	}
}

func unfittingPods(a *apps) {
	a.pod("selecting", "nodeSelector: {label: nonempty}", "")
	a.unplaced("selecting", "didn't match Pod's node affinity/selector")
	a.pod("big", "", `, resources: {requests: {cpu: "100000"}}`)
	a.unplaced("big", "Insufficient cpu")
	a.pod("first", "", `, ports: [{containerPort: 8080, hostPort: 54322, protocol: TCP}]`)
	a.ready("app=first", 1)
	a.pod("clashing", "", `, ports: [{containerPort: 8080, hostPort: 54322, protocol: TCP, hostIP: 127.0.0.1}]`)
	a.unplaced("clashing", "didn't have free ports for the requested pod ports")
	// A label that comes to the node makes the first one fit.
	a.kubectl("label", "node", a.nodeName(), "label=nonempty")
	defer a.kubectl("label", "node", a.nodeName(), "label-")
	a.ready("app=selecting", 1)
}

// fakeResource gives the node something to count that nothing else uses, as an
// administrator would, and takes it away with the test.
func (a *apps) fakeResource(name, n string) {
	a.t.Helper()
	node, err := a.api.CoreV1().Nodes().Get(a.ctx, a.nodeName(), metav1.GetOptions{})
	a.must(err)
	node.ResourceVersion = "0" // whatever the node is by now
	node.Status.Capacity[v1.ResourceName(name)] = resource.MustParse(n)
	_, err = a.api.CoreV1().Nodes().UpdateStatus(a.ctx, node, metav1.UpdateOptions{})
	a.must(err)
	path := `{.status.allocatable.` + strings.ReplaceAll(name, ".", `\.`) + `}`
	a.until("the node offers "+name, func() string {
		got, err := resource.ParseQuantity(a.kubectl("get", "node", node.Name, "-o", "jsonpath="+path))
		if err != nil || got.Cmp(resource.MustParse(n)) != 0 {
			return fmt.Sprint(got.String(), err)
		}
		return ""
	})
	a.t.Cleanup(func() {
		patch := fmt.Sprintf(`[{"op":"remove","path":"/status/capacity/%s"}]`, strings.ReplaceAll(name, "/", "~1"))
		_, _ = a.tryKubectl("", "patch", "node", node.Name, "--subresource=status", "--type=json", "-p", patch)
	})
}

func classOf(name string, value int) string {
	return fmt.Sprintf("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: %s}, value: %d}\n---\n", name, value)
}

func needs(name string, n int) string {
	return fmt.Sprintf(`, resources: {requests: {%q: "%d"}, limits: {%q: "%d"}}`, name, n, name, n)
}

// preemption: a pod of more weight, and one of those the cluster cannot live
// without, take the place of one of less.
func preemption(a *apps) {
	const what = "scheduling.example.com/foo"
	a.fakeResource(what, "5")
	a.make(classOf("suite-low", 1) + classOf("suite-high", 1000))
	a.t.Cleanup(func() { _, _ = a.tryKubectl("", "delete", "priorityclass", "suite-low", "suite-high") })
	a.pod("low", "priorityClassName: suite-low", needs(what, 3))
	a.pod("medium", "priorityClassName: suite-high", needs(what, 2))
	a.ready("app in (low, medium)", 2)
	a.pod("high", "priorityClassName: suite-high", needs(what, 3))
	a.ready("app=high", 1)
	a.until("the weaker pod went", func() string {
		if got := a.live("app=low"); len(got) > 0 {
			return describe(&got[0])
		}
		return ""
	})
	a.ready("app=medium", 1)
	a.pod("critical", "priorityClassName: system-cluster-critical", needs(what, 3))
	a.ready("app=critical", 1)
	a.until("one of the others went", func() string {
		if n := len(a.live("app in (high, medium)")); n != 1 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// preemptionByOwners: ReplicaSets of growing weight push each other out, and
// only as many of their pods go as must.
func preemptionByOwners(a *apps) {
	const what = "example.com/fakecpu"
	a.fakeResource(what, "1000")
	classes := ""
	for i := 1; i <= 4; i++ {
		classes += classOf(fmt.Sprint("suite-p", i), i)
	}
	a.make(classes)
	a.t.Cleanup(func() {
		_, _ = a.tryKubectl("", "delete", "priorityclass", "suite-p1", "suite-p2", "suite-p3", "suite-p4")
	})
	set := func(i, replicas, each int) {
		a.make(fmt.Sprintf(`
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: rs-%d}
spec:
  replicas: %d
  selector: {matchLabels: {app: rs-%d}}
  template:
    metadata: {labels: {app: rs-%d}}
    spec:
      terminationGracePeriodSeconds: 0
      priorityClassName: suite-p%d
      containers: [{name: c, image: "berth.dev/toolbox:1", args: [sleep, infinity]%s}]
`, i, replicas, i, i, i, needs(what, each)))
	}
	set(1, 5, 200)
	a.ready("app=rs-1", 5)
	set(2, 4, 200)
	a.until("four of the heavier set", func() string { return a.running("app=rs-2", 4) })
	set(3, 1, 200)
	a.until("one of the third", func() string { return a.running("app=rs-3", 1) })
	set(4, 1, 400)
	a.until("one of the fourth", func() string { return a.running("app=rs-4", 1) })
	for selector, n := range map[string]int{"app=rs-1": 0, "app=rs-2": 2, "app=rs-3": 1} {
		a.until(fmt.Sprint(n, " of ", selector), func() string { return a.running(selector, n) })
	}
}

// running complains unless n pods run.
func (a *apps) running(selector string, n int) string {
	a.t.Helper()
	got := 0
	for _, p := range a.live(selector) {
		if podReady(&p) {
			got++
		}
	}
	if got == n {
		return ""
	}
	return fmt.Sprint(got, " run")
}

// classesAndLimits: the value of a class is for ever; a namespace's limits fill
// in what pods leave out and refuse what goes beyond.
func classesAndLimits(a *apps) {
	a.make(classOf("suite-class", 5))
	defer a.kubectl("delete", "priorityclass", "suite-class")
	if out, err := a.tryKubectl("", "patch", "priorityclass", "suite-class", "--type=merge", "-p", `{"value":6}`); err == nil ||
		!strings.Contains(out, "value") {
		a.t.Errorf("the value of a class was changed: %s", out)
	}
	a.kubectl("patch", "priorityclass", "suite-class", "--type=merge", "-p", `{"description":"words"}`)
	a.make(`{apiVersion: v1, kind: LimitRange, metadata: {name: limits}, spec: {limits: [{type: Container, min: {cpu: 50m, memory: 10Mi},` +
		` max: {cpu: 500m, memory: 500Mi}, default: {cpu: 300m, memory: 50Mi}, defaultRequest: {cpu: 100m, memory: 20Mi}}]}}`)
	a.pod("plain", "", "")
	if got := a.field("pod/plain",
		"{.spec.containers[0].resources.requests.cpu} {.spec.containers[0].resources.limits.memory}"); got != "100m 50Mi" {
		a.t.Errorf("defaults are %q", got)
	}
	for _, cpu := range []string{"10m", "600m"} {
		m := strings.ReplaceAll(sleeper("refused", ""), "CONTAINER", fmt.Sprintf(`, resources: {requests: {cpu: %s}, limits: {cpu: %s}}`,
			cpu, cpu))
		if out, err := a.tryKubectl(m, "-n", a.ns, "apply", "-f", "-"); err == nil || !strings.Contains(out, "cpu usage per Container is") {
			a.t.Errorf("a pod with %s of CPU: %v %s", cpu, err, out)
		}
	}
	a.must(a.api.CoreV1().LimitRanges(a.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	a.pod("small", "", `, resources: {requests: {cpu: 10m}}`)
}
