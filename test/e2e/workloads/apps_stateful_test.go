package workloads

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var statefulTests = []kit.Subtest{
	{Name: "StatefulSet order", Run: statefulOrder},
	{Name: "StatefulSet burst", Run: statefulBurst},
	{Name: "StatefulSet updates", Run: statefulUpdates},
	{Name: "StatefulSet evicted", Run: statefulEvicted},
	{Name: "StatefulSet scale and status", Run: func(a *kit.Namespace) {
		a.Make(stateful(1, "podManagementPolicy: Parallel"))
		scaleEndpoint(a, "statefulset/s", "app=s")
		statusEndpoint(a, "/apis/apps/v1", "statefulsets", "s")
		a.K("delete", "statefulsets", "-l", "kind=set")
		a.Until("the pods go with their set", func() string { return names(a.Live("app=s")) })
	}},
}

var daemonTests = []kit.Subtest{
	{Name: "DaemonSet life", Run: daemonLife},
	{Name: "DaemonSet selects nodes", Run: daemonSelects},
	{Name: "DaemonSet revisions", Run: daemonRevisions},
	{Name: "DaemonSet status", Run: func(a *kit.Namespace) {
		a.Make(daemon("", pauseC))
		a.Ready("app=s", 1)
		statusEndpoint(a, "/apis/apps/v1", "daemonsets", "s")
		a.K("delete", "daemonsets", "-l", "kind=set")
		a.Until("the pods go with their set", func() string { return names(a.Live("app=s")) })
	}},
}

// breakable is ready as long as it has its file.
const breakable = `{name: c, image: "berth.dev/toolbox:1", command: [sh, -c, "touch /ok; exec sleep infinity"], readinessProbe: {exec: ` +
	`{command: [stat, /ok]}, periodSeconds: 1, failureThreshold: 1}}`

func stateful(replicas int, spec string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {clusterIP: None, selector: {app: s}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s, labels: {kind: set}}
spec:
  serviceName: s
  replicas: %d
  %s
  selector: {matchLabels: {app: s}}
  template:
    metadata: {labels: {app: s}}
    spec: {terminationGracePeriodSeconds: 0, containers: [%s]}
`, replicas, spec, breakable)
}

func breakProbe(a *kit.Namespace, pod string) { a.K("exec", pod, "--", "rm", "/ok") }

func healProbe(a *kit.Namespace, pod string) { a.K("exec", pod, "--", "touch", "/ok") }

func unready(a *kit.Namespace, pod string) {
	a.Until(pod+" is not ready", func() string {
		for _, p := range a.Live("app=s") {
			if p.Name == pod && !kit.PodReady(&p) {
				return ""
			}
		}
		return "it is"
	})
}

// order records in which order pods of app=s appear and are asked to go.
func order(a *kit.Namespace, f func()) (made, ended []string) {
	a.T.Helper()
	ctx, cancel := context.WithCancel(a.Ctx)
	list, err := a.API.CoreV1().Pods(a.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=s"})
	a.Must(err)
	w, err := a.API.CoreV1().Pods(a.Name).Watch(ctx, metav1.ListOptions{LabelSelector: "app=s", ResourceVersion: list.ResourceVersion})
	a.Must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*v1.Pod)
			switch {
			case !ok:
			case e.Type == "ADDED":
				made = append(made, p.Name)
			case e.Type == "DELETED" || p.DeletionTimestamp != nil:
				if !slices.Contains(ended, p.Name) {
					ended = append(ended, p.Name)
				}
			}
		}
	}()
	f()
	cancel()
	w.Stop()
	<-done
	return made, ended
}

func statefulOrder(a *kit.Namespace) {
	a.Make(stateful(1, ""))
	a.Ready("app=s", 1)
	made, _ := order(a, func() {
		breakProbe(a, "s-0")
		unready(a, "s-0")
		a.K("scale", "statefulset/s", "--replicas=3")
		staysAt(a, 1)
		healProbe(a, "s-0")
		a.Ready("app=s", 3)
	})
	if !slices.Equal(made, []string{"s-1", "s-2"}) {
		a.T.Errorf("pods were made in the order %v", made)
	}
	each := func(f func(string)) {
		for _, pod := range []string{"s-0", "s-1", "s-2"} {
			f(pod)
		}
	}
	_, ended := order(a, func() {
		each(func(pod string) { breakProbe(a, pod) })
		each(func(pod string) { unready(a, pod) })
		a.K("scale", "statefulset/s", "--replicas=0")
		staysAt(a, 3)
		each(func(pod string) { healProbe(a, pod) })
		a.Until("no pods are left", func() string { return names(a.Pods(a.Name, "app=s")) })
	})
	if !slices.Equal(ended, []string{"s-2", "s-1", "s-0"}) {
		a.T.Errorf("pods were ended in the order %v", ended)
	}
}

// staysAt proves that the controller saw the change of replicas and left the
// pods as they are.
func staysAt(a *kit.Namespace, n int) {
	a.T.Helper()
	a.Until("the change is seen", func() string {
		got := a.Field("statefulset/s", "{.metadata.generation} {.status.observedGeneration}")
		if f := strings.Fields(got); len(f) == 2 && f[0] == f[1] {
			return ""
		}
		return got
	})
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		wake := a.Changed()
		if got := a.Live("app=s"); len(got) != n {
			a.T.Fatalf("pods %s while one is not ready, want %d", names(got), n)
		}
		select {
		case <-wake:
		case <-time.After(time.Until(deadline)):
		}
	}
}

func statefulBurst(a *kit.Namespace) {
	a.Make(stateful(1, "podManagementPolicy: Parallel"))
	a.Ready("app=s", 1)
	breakProbe(a, "s-0")
	unready(a, "s-0")
	a.K("scale", "statefulset/s", "--replicas=3")
	a.Until("three pods beside an unready one", func() string {
		if got := a.Live("app=s"); len(got) != 3 {
			return names(got)
		}
		return ""
	})
	a.K("scale", "statefulset/s", "--replicas=0")
	a.Until("no pods are left", func() string { return names(a.Pods(a.Name, "app=s")) })
}

// statefulUpdates goes through a canary, a phased rollout, the rest, and back.
func statefulUpdates(a *kit.Namespace) {
	a.Make(stateful(3, "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 3}}"))
	a.Ready("app=s", 3)
	first := a.Field("statefulset/s", "{.status.currentRevision}")
	a.UntilField("statefulset/s", "{.status.updateRevision}", first)
	a.K("set", "env", "statefulset/s", "V=2")
	var second string
	a.Until("there is a second revision", func() string {
		if second = a.Field("statefulset/s", "{.status.updateRevision}"); second != first {
			return ""
		}
		return second
	})
	revisions := func(want ...string) {
		a.T.Helper()
		a.Until(fmt.Sprintf("revisions are %v", want), func() string {
			var got []string
			pods := a.Live("app=s")
			slices.SortFunc(pods, func(x, y v1.Pod) int { return strings.Compare(x.Name, y.Name) })
			for i := range pods {
				if kit.PodReady(&pods[i]) {
					got = append(got, pods[i].Labels["controller-revision-hash"])
				}
			}
			if slices.Equal(got, want) {
				return ""
			}
			return fmt.Sprint(got)
		})
	}
	revisions(first, first, first)
	partition := func(n int) {
		a.K("patch", "statefulset/s", "-p", fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, n))
	}
	partition(2)
	revisions(first, first, second)
	// Pods come back as what their ordinal has to be, not as the newest.
	a.K("delete", "pod", "s-0", "s-2", "--wait=false")
	a.Until("s-0 and s-2 are new", func() string {
		for _, p := range a.Live("app=s") {
			if p.Labels["controller-revision-hash"] == "" {
				return p.Name
			}
		}
		return ""
	})
	revisions(first, first, second)
	_, ended := order(a, func() {
		partition(0)
		revisions(second, second, second)
	})
	if !slices.Equal(ended, []string{"s-1", "s-0"}) {
		a.T.Errorf("the update went in the order %v", ended)
	}
	a.UntilField("statefulset/s", "{.status.currentRevision}", second)
	a.K("set", "env", "statefulset/s", "V-")
	revisions(first, first, first)
	a.UntilField("statefulset/s", "{.status.currentRevision}", first)
	if n := len(strings.Fields(a.Field("controllerrevisions", "{.items[*].metadata.name}"))); n != 2 {
		a.T.Errorf("%d revisions after going back, want 2", n)
	}
}

// statefulEvicted lets a pod of the set fail at the node's admission, because
// another holds its port, until the other goes.
func statefulEvicted(a *kit.Namespace) {
	node := a.Node().Name
	port := a.FirstPort + 900
	a.Make(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: berth.dev/pause:1, ports: [{containerPort: %d, hostPort: %d}]}]
`, node, port, port))
	a.UntilField("pod/holder", "{.status.phase}", "Running")
	set := strings.ReplaceAll(stateful(1, ""), "containers: [{",
		fmt.Sprintf("nodeName: %s, containers: [{ports: [{containerPort: %d, hostPort: %d}], ", node, port, port))
	uids := map[string]bool{}
	a.Make(set)
	a.Until("a failed pod is made again", func() string {
		for _, p := range a.Pods(a.Name, "app=s") {
			uids[string(p.UID)] = true
		}
		if len(uids) > 1 {
			return ""
		}
		return fmt.Sprint(uids)
	})
	a.K("delete", "pod", "holder", "--wait")
	a.Ready("app=s", 1)
}

func daemon(spec, container string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: s, labels: {kind: set}}
spec:
  %s
  selector: {matchLabels: {app: s}}
  template:
    metadata: {labels: {app: s}}
    spec: {terminationGracePeriodSeconds: 0, containers: [%s]}
`, spec, container)
}

func daemonLife(a *kit.Namespace) {
	a.Make(daemon("", pauseC))
	one := a.Ready("app=s", 1)[0]
	a.K("delete", "pod", one.Name)
	two := a.Ready("app=s", 1)[0]
	a.K("patch", "pod", two.Name, "--subresource=status", "-p", `{"status":{"phase":"Failed"}}`)
	a.Until("a failed pod is replaced", func() string {
		for _, p := range a.Live("app=s") {
			if p.UID != two.UID && kit.PodReady(&p) {
				return ""
			}
		}
		return names(a.Pods(a.Name, "app=s"))
	})
	three := a.Ready("app=s", 1)[0]
	a.K("set", "image", "daemonset/s", "c=berth.dev/missing:1")
	a.Until("the bad version is tried", func() string {
		for _, p := range a.Live("app=s") {
			if p.Spec.Containers[0].Image == "berth.dev/missing:1" {
				return ""
			}
		}
		return names(a.Live("app=s"))
	})
	a.K("rollout", "undo", "daemonset/s")
	a.K("rollout", "status", "daemonset/s", "--timeout=60s")
	if p := a.Ready("app=s", 1)[0]; p.UID == three.UID || p.Spec.Containers[0].Image != "berth.dev/pause:1" {
		a.T.Errorf("after going back: %s runs %s", p.Name, p.Spec.Containers[0].Image)
	}
}

func daemonSelects(a *kit.Namespace) {
	node := "node/" + a.Node().Name
	a.Make(strings.ReplaceAll(daemon("", pauseC), "spec: {term", "spec: {nodeSelector: {color: blue}, term"))
	a.UntilField("daemonset/s", "{.status.observedGeneration}/{.status.desiredNumberScheduled}", "1/0")
	a.Kubectl("label", node, "color=blue")
	a.Ready("app=s", 1)
	a.Kubectl("label", "--overwrite", node, "color=green")
	a.Until("the pod leaves", func() string { return names(a.Pods(a.Name, "app=s")) })
	a.K("patch", "daemonset/s", "--type=merge", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"color":"green"}}}}}`)
	a.Ready("app=s", 1)
	a.Kubectl("label", node, "color-")
	a.Until("the pod leaves again", func() string { return names(a.Pods(a.Name, "app=s")) })
}

func daemonRevisions(a *kit.Namespace) {
	a.Make(daemon("", pauseC))
	a.Ready("app=s", 1)
	revisions := func(want int) {
		a.T.Helper()
		a.Until(fmt.Sprintf("%d revisions", want), func() string {
			if got := strings.Fields(a.K("get", "controllerrevisions", "-l", "app=s", "-o", "name")); len(got) != want {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	revisions(1)
	list, err := a.API.AppsV1().ControllerRevisions(a.Name).List(a.Ctx, metav1.ListOptions{})
	a.Must(err)
	first := list.Items[0]
	// A second record of the same template takes the first one's place.
	copied := first.DeepCopy()
	copied.ObjectMeta = metav1.ObjectMeta{Name: "by-hand", Labels: map[string]string{"app": "s", "mine": "yes"},
		OwnerReferences: first.OwnerReferences}
	copied.Revision = 2
	_, err = a.API.AppsV1().ControllerRevisions(a.Name).Create(a.Ctx, copied, metav1.CreateOptions{})
	a.Must(err)
	revisions(2)
	a.K("delete", "controllerrevision", first.Name)
	revisions(1)
	a.K("patch", "daemonset/s", "-p", `{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}`)
	revisions(2)
	a.K("rollout", "status", "daemonset/s", "--timeout=60s")
	a.K("delete", "controllerrevision", "-l", "mine=yes")
	revisions(1)
	if got := a.Field("controllerrevisions", "{.items[0].revision}"); got != "3" {
		a.T.Errorf("the revision left is %s", got)
	}
}
