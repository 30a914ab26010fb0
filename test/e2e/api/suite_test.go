package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestSuite asks of one cluster what the upstream suite asks of kubectl, the
// network and the scheduler, with real containers. What needs none is asked of
// the API server alone, beside its packages.
func TestSuite(t *testing.T) {
	kit.OnlyInAll(t, "75 s, the longest of api beside TestMetricsServer")
	c := kit.NewCluster(t)
	c.Up()
	for _, group := range [][]kit.Subtest{kubectlTests, networkTests, schedulingTests} {
		for _, tt := range group {
			t.Run(tt.Name, func(t *testing.T) {
				ns := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(tt.Name))
				tt.Run(kit.NewNamespace(t, c, ns))
			})
		}
	}
}

var schedulingTests = []kit.Subtest{
	{Name: "unfitting pods", Run: unfittingPods},
	{Name: "preemption", Run: preemption},
	{Name: "preemption by owners", Run: preemptionByOwners},
	{Name: "classes and limits", Run: classesAndLimits},
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

// podNamed makes a sleeper; container is more of its one container, as in
// ", ports: [...]".
func podNamed(a *kit.Namespace, name, spec, container string) {
	a.T.Helper()
	a.Make(strings.ReplaceAll(sleeper(name, spec), "CONTAINER", container))
}

// unplaced waits until the scheduler said of a pod that it fits nowhere, and
// why.
func unplaced(a *kit.Namespace, name, why string) {
	a.T.Helper()
	a.Until("an event that "+name+" fits nowhere", func() string {
		out, _ := a.TryKubectl("", "-n", a.Name, "get", "events", "--field-selector",
			"involvedObject.name="+name+",reason=FailedScheduling",
			"-o", "jsonpath={.items[*].message}")
		if strings.Contains(out, why) {
			return ""
		}
		return out
	})
	if p := a.Field("pod/"+name, "{.status.phase} {.status.conditions[?(@.type==\"PodScheduled\")].reason}"); p != "Pending Unschedulable" {
		a.T.Errorf("pod %s is %s", name, p)
	}
}

func unfittingPods(a *kit.Namespace) {
	podNamed(a, "selecting", "nodeSelector: {label: nonempty}", "")
	unplaced(a, "selecting", "didn't match Pod's node affinity/selector")
	podNamed(a, "big", "", `, resources: {requests: {cpu: "100000"}}`)
	unplaced(a, "big", "Insufficient cpu")
	podNamed(a, "first", "", `, ports: [{containerPort: 8080, hostPort: 54322, protocol: TCP}]`)
	a.Ready("app=first", 1)
	podNamed(a, "clashing", "", `, ports: [{containerPort: 8080, hostPort: 54322, protocol: TCP, hostIP: 127.0.0.1}]`)
	unplaced(a, "clashing", "didn't have free ports for the requested pod ports")
	// A label that comes to the node makes the first one fit.
	a.Kubectl("label", "node", a.NodeName(), "label=nonempty")
	defer a.Kubectl("label", "node", a.NodeName(), "label-")
	a.Ready("app=selecting", 1)
}

// fakeResource gives the node something to count that nothing else uses, as an
// administrator would, and takes it away with the test.
func fakeResource(a *kit.Namespace, name, n string) {
	a.T.Helper()
	node, err := a.API.CoreV1().Nodes().Get(a.Ctx, a.NodeName(), metav1.GetOptions{})
	a.Must(err)
	node.ResourceVersion = "0" // whatever the node is by now
	node.Status.Capacity[v1.ResourceName(name)] = resource.MustParse(n)
	_, err = a.API.CoreV1().Nodes().UpdateStatus(a.Ctx, node, metav1.UpdateOptions{})
	a.Must(err)
	path := `{.status.allocatable.` + strings.ReplaceAll(name, ".", `\.`) + `}`
	a.Until("the node offers "+name, func() string {
		got, err := resource.ParseQuantity(a.Kubectl("get", "node", node.Name, "-o", "jsonpath="+path))
		if err != nil || got.Cmp(resource.MustParse(n)) != 0 {
			return fmt.Sprint(got.String(), err)
		}
		return ""
	})
	a.T.Cleanup(func() {
		patch := fmt.Sprintf(`[{"op":"remove","path":"/status/capacity/%s"}]`, strings.ReplaceAll(name, "/", "~1"))
		_, _ = a.TryKubectl("", "patch", "node", node.Name, "--subresource=status", "--type=json", "-p", patch)
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
func preemption(a *kit.Namespace) {
	const what = "scheduling.example.com/foo"
	fakeResource(a, what, "5")
	a.Make(classOf("suite-low", 1) + classOf("suite-high", 1000))
	a.T.Cleanup(func() { _, _ = a.TryKubectl("", "delete", "priorityclass", "suite-low", "suite-high") })
	podNamed(a, "low", "priorityClassName: suite-low", needs(what, 3))
	podNamed(a, "medium", "priorityClassName: suite-high", needs(what, 2))
	a.Ready("app in (low, medium)", 2)
	podNamed(a, "high", "priorityClassName: suite-high", needs(what, 3))
	a.Ready("app=high", 1)
	a.Until("the weaker pod went", func() string {
		if got := a.Live("app=low"); len(got) > 0 {
			return kit.Describe(&got[0])
		}
		return ""
	})
	a.Ready("app=medium", 1)
	podNamed(a, "critical", "priorityClassName: system-cluster-critical", needs(what, 3))
	a.Ready("app=critical", 1)
	a.Until("one of the others went", func() string {
		if n := len(a.Live("app in (high, medium)")); n != 1 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// preemptionByOwners: ReplicaSets of growing weight push each other out, and
// only as many of their pods go as must.
func preemptionByOwners(a *kit.Namespace) {
	const what = "example.com/fakecpu"
	fakeResource(a, what, "1000")
	classes := ""
	for i := 1; i <= 4; i++ {
		classes += classOf(fmt.Sprint("suite-p", i), i)
	}
	a.Make(classes)
	a.T.Cleanup(func() {
		_, _ = a.TryKubectl("", "delete", "priorityclass", "suite-p1", "suite-p2", "suite-p3", "suite-p4")
	})
	set := func(i, replicas, each int) {
		a.Make(fmt.Sprintf(`
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
	a.Ready("app=rs-1", 5)
	set(2, 4, 200)
	a.Until("four of the heavier set", func() string { return runningPod(a, "app=rs-2", 4) })
	set(3, 1, 200)
	a.Until("one of the third", func() string { return runningPod(a, "app=rs-3", 1) })
	set(4, 1, 400)
	a.Until("one of the fourth", func() string { return runningPod(a, "app=rs-4", 1) })
	for selector, n := range map[string]int{"app=rs-1": 0, "app=rs-2": 2, "app=rs-3": 1} {
		a.Until(fmt.Sprint(n, " of ", selector), func() string { return runningPod(a, selector, n) })
	}
}

// runningPod complains unless n pods run.
func runningPod(a *kit.Namespace, selector string, n int) string {
	a.T.Helper()
	got := 0
	for _, p := range a.Live(selector) {
		if kit.PodReady(&p) {
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
func classesAndLimits(a *kit.Namespace) {
	a.Make(classOf("suite-class", 5))
	defer a.Kubectl("delete", "priorityclass", "suite-class")
	if out, err := a.TryKubectl("", "patch", "priorityclass", "suite-class", "--type=merge", "-p", `{"value":6}`); err == nil ||
		!strings.Contains(out, "value") {
		a.T.Errorf("the value of a class was changed: %s", out)
	}
	a.Kubectl("patch", "priorityclass", "suite-class", "--type=merge", "-p", `{"description":"words"}`)
	a.Make(`{apiVersion: v1, kind: LimitRange, metadata: {name: limits}, spec: {limits: [{type: Container, min: {cpu: 50m, memory: 10Mi},` +
		` max: {cpu: 500m, memory: 500Mi}, default: {cpu: 300m, memory: 50Mi}, defaultRequest: {cpu: 100m, memory: 20Mi}}]}}`)
	podNamed(a, "plain", "", "")
	if got := a.Field("pod/plain",
		"{.spec.containers[0].resources.requests.cpu} {.spec.containers[0].resources.limits.memory}"); got != "100m 50Mi" {
		a.T.Errorf("defaults are %q", got)
	}
	for _, cpu := range []string{"10m", "600m"} {
		m := strings.ReplaceAll(sleeper("refused", ""), "CONTAINER", fmt.Sprintf(`, resources: {requests: {cpu: %s}, limits: {cpu: %s}}`,
			cpu, cpu))
		if out, err := a.TryKubectl(m, "-n", a.Name, "apply", "-f", "-"); err == nil ||
			!strings.Contains(out, "cpu usage per Container is") {
			a.T.Errorf("a pod with %s of CPU: %v %s", cpu, err, out)
		}
	}
	a.Must(a.API.CoreV1().LimitRanges(a.Name).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	podNamed(a, "small", "", `, resources: {requests: {cpu: 10m}}`)
}
