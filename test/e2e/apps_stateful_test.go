package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var statefulTests = []appTest{
	{"StatefulSet order", statefulOrder},
	{"StatefulSet burst", statefulBurst},
	{"StatefulSet updates", statefulUpdates},
	{"StatefulSet evicted", statefulEvicted},
	{"StatefulSet scale and status", func(a *apps) {
		a.make(stateful(1, "podManagementPolicy: Parallel"))
		a.scaleEndpoint("statefulset/s", "app=s")
		a.statusEndpoint("/apis/apps/v1", "statefulsets", "s")
		a.k("delete", "statefulsets", "-l", "kind=set")
		a.until("the pods go with their set", func() string { return names(a.live("app=s")) })
	}},
}

var daemonTests = []appTest{
	{"DaemonSet life", daemonLife},
	{"DaemonSet selects nodes", daemonSelects},
	{"DaemonSet revisions", daemonRevisions},
	{"DaemonSet status", func(a *apps) {
		a.make(daemon("", pauseC))
		a.ready("app=s", 1)
		a.statusEndpoint("/apis/apps/v1", "daemonsets", "s")
		a.k("delete", "daemonsets", "-l", "kind=set")
		a.until("the pods go with their set", func() string { return names(a.live("app=s")) })
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

func (a *apps) break_(pod string) { a.k("exec", pod, "--", "rm", "/ok") }
func (a *apps) mend(pod string)   { a.k("exec", pod, "--", "touch", "/ok") }

func (a *apps) unready(pod string) {
	a.until(pod+" is not ready", func() string {
		for _, p := range a.live("app=s") {
			if p.Name == pod && !podReady(&p) {
				return ""
			}
		}
		return "it is"
	})
}

// order records in which order pods of app=s appear and are asked to go.
func (a *apps) order(f func()) (made, ended []string) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.ctx)
	list, err := a.api.CoreV1().Pods(a.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=s"})
	a.must(err)
	w, err := a.api.CoreV1().Pods(a.ns).Watch(ctx, metav1.ListOptions{LabelSelector: "app=s", ResourceVersion: list.ResourceVersion})
	a.must(err)
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

func statefulOrder(a *apps) {
	a.make(stateful(1, ""))
	a.ready("app=s", 1)
	made, _ := a.order(func() {
		a.break_("s-0")
		a.unready("s-0")
		a.k("scale", "statefulset/s", "--replicas=3")
		a.staysAt(1)
		a.mend("s-0")
		a.ready("app=s", 3)
	})
	if !slices.Equal(made, []string{"s-1", "s-2"}) {
		a.t.Errorf("pods were made in the order %v", made)
	}
	each := func(f func(string)) {
		for _, pod := range []string{"s-0", "s-1", "s-2"} {
			f(pod)
		}
	}
	_, ended := a.order(func() {
		each(a.break_)
		each(a.unready)
		a.k("scale", "statefulset/s", "--replicas=0")
		a.staysAt(3)
		each(a.mend)
		a.until("no pods are left", func() string { return names(a.pods(a.ns, "app=s")) })
	})
	if !slices.Equal(ended, []string{"s-2", "s-1", "s-0"}) {
		a.t.Errorf("pods were ended in the order %v", ended)
	}
}

// staysAt proves that the controller saw the change of replicas and left the
// pods as they are.
func (a *apps) staysAt(n int) {
	a.t.Helper()
	a.until("the change is seen", func() string {
		got := a.field("statefulset/s", "{.metadata.generation} {.status.observedGeneration}")
		if f := strings.Fields(got); len(f) == 2 && f[0] == f[1] {
			return ""
		}
		return got
	})
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		wake := a.changes.wait()
		if got := a.live("app=s"); len(got) != n {
			a.t.Fatalf("pods %s while one is not ready, want %d", names(got), n)
		}
		select {
		case <-wake:
		case <-time.After(time.Until(deadline)):
		}
	}
}

func statefulBurst(a *apps) {
	a.make(stateful(1, "podManagementPolicy: Parallel"))
	a.ready("app=s", 1)
	a.break_("s-0")
	a.unready("s-0")
	a.k("scale", "statefulset/s", "--replicas=3")
	a.until("three pods beside an unready one", func() string {
		if got := a.live("app=s"); len(got) != 3 {
			return names(got)
		}
		return ""
	})
	a.k("scale", "statefulset/s", "--replicas=0")
	a.until("no pods are left", func() string { return names(a.pods(a.ns, "app=s")) })
}

// statefulUpdates goes through a canary, a phased rollout, the rest, and back.
func statefulUpdates(a *apps) {
	a.make(stateful(3, "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 3}}"))
	a.ready("app=s", 3)
	first := a.field("statefulset/s", "{.status.currentRevision}")
	a.untilField("statefulset/s", "{.status.updateRevision}", first)
	a.k("set", "env", "statefulset/s", "V=2")
	var second string
	a.until("there is a second revision", func() string {
		if second = a.field("statefulset/s", "{.status.updateRevision}"); second != first {
			return ""
		}
		return second
	})
	revisions := func(want ...string) {
		a.t.Helper()
		a.until(fmt.Sprintf("revisions are %v", want), func() string {
			var got []string
			pods := a.live("app=s")
			slices.SortFunc(pods, func(x, y v1.Pod) int { return strings.Compare(x.Name, y.Name) })
			for i := range pods {
				if podReady(&pods[i]) {
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
		a.k("patch", "statefulset/s", "-p", fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, n))
	}
	partition(2)
	revisions(first, first, second)
	// Pods come back as what their ordinal has to be, not as the newest.
	a.k("delete", "pod", "s-0", "s-2", "--wait=false")
	a.until("s-0 and s-2 are new", func() string {
		for _, p := range a.live("app=s") {
			if p.Labels["controller-revision-hash"] == "" {
				return p.Name
			}
		}
		return ""
	})
	revisions(first, first, second)
	_, ended := a.order(func() {
		partition(0)
		revisions(second, second, second)
	})
	if !slices.Equal(ended, []string{"s-1", "s-0"}) {
		a.t.Errorf("the update went in the order %v", ended)
	}
	a.untilField("statefulset/s", "{.status.currentRevision}", second)
	a.k("set", "env", "statefulset/s", "V-")
	revisions(first, first, first)
	a.untilField("statefulset/s", "{.status.currentRevision}", first)
	if n := len(strings.Fields(a.field("controllerrevisions", "{.items[*].metadata.name}"))); n != 2 {
		a.t.Errorf("%d revisions after going back, want 2", n)
	}
}

// statefulEvicted lets a pod of the set fail at the node's admission, because
// another holds its port, until the other goes.
func statefulEvicted(a *apps) {
	node := a.node().Name
	port := a.first + 900
	a.make(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: berth.dev/pause:1, ports: [{containerPort: %d, hostPort: %d}]}]
`, node, port, port))
	a.untilField("pod/holder", "{.status.phase}", "Running")
	set := strings.ReplaceAll(stateful(1, ""), "containers: [{",
		fmt.Sprintf("nodeName: %s, containers: [{ports: [{containerPort: %d, hostPort: %d}], ", node, port, port))
	uids := map[string]bool{}
	a.make(set)
	a.until("a failed pod is made anew", func() string {
		for _, p := range a.pods(a.ns, "app=s") {
			uids[string(p.UID)] = true
		}
		if len(uids) > 1 {
			return ""
		}
		return fmt.Sprint(uids)
	})
	a.k("delete", "pod", "holder", "--wait")
	a.ready("app=s", 1)
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

func daemonLife(a *apps) {
	a.make(daemon("", pauseC))
	one := a.ready("app=s", 1)[0]
	a.k("delete", "pod", one.Name)
	two := a.ready("app=s", 1)[0]
	a.k("patch", "pod", two.Name, "--subresource=status", "-p", `{"status":{"phase":"Failed"}}`)
	a.until("a failed pod is replaced", func() string {
		for _, p := range a.live("app=s") {
			if p.UID != two.UID && podReady(&p) {
				return ""
			}
		}
		return names(a.pods(a.ns, "app=s"))
	})
	three := a.ready("app=s", 1)[0]
	a.k("set", "image", "daemonset/s", "c=berth.dev/missing:1")
	a.until("the bad version is tried", func() string {
		for _, p := range a.live("app=s") {
			if p.Spec.Containers[0].Image == "berth.dev/missing:1" {
				return ""
			}
		}
		return names(a.live("app=s"))
	})
	a.k("rollout", "undo", "daemonset/s")
	a.k("rollout", "status", "daemonset/s", "--timeout=60s")
	if p := a.ready("app=s", 1)[0]; p.UID == three.UID || p.Spec.Containers[0].Image != "berth.dev/pause:1" {
		a.t.Errorf("after going back: %s runs %s", p.Name, p.Spec.Containers[0].Image)
	}
}

func daemonSelects(a *apps) {
	node := "node/" + a.node().Name
	a.make(strings.ReplaceAll(daemon("", pauseC), "spec: {term", "spec: {nodeSelector: {color: blue}, term"))
	a.untilField("daemonset/s", "{.status.observedGeneration}/{.status.desiredNumberScheduled}", "1/0")
	a.kubectl("label", node, "color=blue")
	a.ready("app=s", 1)
	a.kubectl("label", "--overwrite", node, "color=green")
	a.until("the pod leaves", func() string { return names(a.pods(a.ns, "app=s")) })
	a.k("patch", "daemonset/s", "--type=merge", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"color":"green"}}}}}`)
	a.ready("app=s", 1)
	a.kubectl("label", node, "color-")
	a.until("the pod leaves again", func() string { return names(a.pods(a.ns, "app=s")) })
}

func daemonRevisions(a *apps) {
	a.make(daemon("", pauseC))
	a.ready("app=s", 1)
	revisions := func(want int) {
		a.t.Helper()
		a.until(fmt.Sprintf("%d revisions", want), func() string {
			if got := strings.Fields(a.k("get", "controllerrevisions", "-l", "app=s", "-o", "name")); len(got) != want {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	revisions(1)
	list, err := a.api.AppsV1().ControllerRevisions(a.ns).List(a.ctx, metav1.ListOptions{})
	a.must(err)
	first := list.Items[0]
	// A second record of the same template takes the first one's place.
	copied := first.DeepCopy()
	copied.ObjectMeta = metav1.ObjectMeta{Name: "by-hand", Labels: map[string]string{"app": "s", "mine": "yes"},
		OwnerReferences: first.OwnerReferences}
	copied.Revision = 2
	_, err = a.api.AppsV1().ControllerRevisions(a.ns).Create(a.ctx, copied, metav1.CreateOptions{})
	a.must(err)
	revisions(2)
	a.k("delete", "controllerrevision", first.Name)
	revisions(1)
	a.k("patch", "daemonset/s", "-p", `{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}`)
	revisions(2)
	a.k("rollout", "status", "daemonset/s", "--timeout=60s")
	a.k("delete", "controllerrevision", "-l", "mine=yes")
	revisions(1)
	if got := a.field("controllerrevisions", "{.items[0].revision}"); got != "3" {
		a.t.Errorf("the revision left is %s", got)
	}
}
