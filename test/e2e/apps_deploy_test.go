package e2e

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var deploymentTests = []appTest{
	{"Deployment recreate", deploymentRecreate},
	{"Deployment rollover", deploymentRollover},
	{"Deployment proportional", deploymentProportional},
	{"Deployment history", deploymentHistory},
	{"Deployment scale and status", func(a *apps) {
		a.make(deployment("d", 1, "", pauseC))
		a.scaleEndpoint("deployment/d", "app=d")
		a.statusEndpoint("/apis/apps/v1", "deployments", "d")
	}},
}

var setTests = []appTest{
	{"ReplicaSet adopt and release", func(a *apps) { adoptRelease(a, "apps/v1", "ReplicaSet", "replicasets", "{matchLabels: {app: s}}") }},
	{"ReplicationController adopt and release", func(a *apps) {
		adoptRelease(a, "v1", "ReplicationController", "replicationcontrollers",
			"{app: s}")
	}},
	{"ReplicaSet quota", func(a *apps) { quotaCondition(a, "apps/v1", "ReplicaSet", "replicasets", "{matchLabels: {app: s}}") }},
	{"ReplicationController quota", func(a *apps) {
		quotaCondition(a, "v1", "ReplicationController", "replicationcontrollers",
			"{app: s}")
	}},
	{"ReplicaSet scale and status", func(a *apps) {
		a.make(set("apps/v1", "ReplicaSet", "{matchLabels: {app: s}}", 1))
		a.scaleEndpoint("replicaset/s", "app=s")
		a.statusEndpoint("/apis/apps/v1", "replicasets", "s")
		a.k("delete", "replicasets", "-l", "kind=set")
		a.until("the pods go with their set", func() string { return names(a.live("app=s")) })
	}},
	{"ReplicationController scale and status", func(a *apps) {
		a.make(set("v1", "ReplicationController", "{app: s}", 1))
		a.scaleEndpoint("replicationcontroller/s", "app=s")
		a.statusEndpoint("/api/v1", "replicationcontrollers", "s")
	}},
}

const (
	pauseC = "{name: c, image: berth.dev/pause:1}"
	toolC  = "{name: c, image: berth.dev/toolbox:1, command: [sleep, infinity]}"
)

func deployment(name string, replicas int, spec, container string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  %s
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec: {terminationGracePeriodSeconds: 1, containers: [%s]}
`, name, replicas, spec, name, name, container)
}

func set(version, kind, selector string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: %s
kind: %s
metadata: {name: s, labels: {kind: set}}
spec:
  replicas: %d
  selector: %s
  template:
    metadata: {labels: {app: s}}
    spec: {terminationGracePeriodSeconds: 0, containers: [%s]}
`, version, kind, replicas, selector, pauseC)
}

func names(pods []v1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func deploymentRecreate(a *apps) {
	a.make(deployment("d", 2, "strategy: {type: Recreate}", pauseC))
	a.ready("app=d", 2)
	rule := func(pods []v1.Pod) string {
		images := map[string]bool{}
		for _, p := range pods {
			if p.Status.Phase != v1.PodFailed && p.Status.Phase != v1.PodSucceeded {
				images[p.Spec.Containers[0].Image] = true
			}
		}
		if len(images) > 1 {
			return fmt.Sprintf("pods of two versions at once: %s", names(pods))
		}
		return ""
	}
	a.during("app=d", rule, func() {
		a.make(deployment("d", 2, "strategy: {type: Recreate}", toolC))
		a.k("rollout", "status", "deployment/d", "--timeout=60s")
	})
	for _, p := range a.ready("app=d", 2) {
		if p.Spec.Containers[0].Image != "berth.dev/toolbox:1" {
			a.t.Errorf("%s still runs %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

// deploymentRollover takes over the pods of a set that was there before, and is
// changed while its first rollout goes nowhere.
func deploymentRollover(a *apps) {
	orphan := strings.ReplaceAll(set("apps/v1", "ReplicaSet", "{matchLabels: {app: s}}", 1), "{app: s}", "{app: d}")
	a.make(strings.Replace(orphan, "{kind: set}", "{app: d}", 1))
	a.ready("app=d", 1)
	yaml := func(container string) string {
		return deployment("d", 1, "minReadySeconds: 2\n  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}", container)
	}
	rule := func(pods []v1.Pod) string {
		for i := range pods {
			if podReady(&pods[i]) && pods[i].DeletionTimestamp == nil {
				return ""
			}
		}
		return "no ready pod: " + names(pods)
	}
	a.during("app=d", rule, func() {
		a.make(yaml("{name: c, image: berth.dev/missing:1, imagePullPolicy: Never}"))
		a.until("the first rollout hangs", func() string {
			for _, p := range a.live("app=d") {
				if p.Spec.Containers[0].Image == "berth.dev/missing:1" {
					return ""
				}
			}
			return names(a.live("app=d"))
		})
		a.make(yaml(toolC))
		a.k("rollout", "status", "deployment/d", "--timeout=60s")
	})
	sets, err := a.api.AppsV1().ReplicaSets(a.ns).List(a.ctx, metav1.ListOptions{})
	a.must(err)
	with := 0
	for _, s := range sets.Items {
		if !metav1.IsControlledBy(&s, &metav1.ObjectMeta{UID: types.UID(a.field("deployment/d", "{.metadata.uid}"))}) {
			a.t.Errorf("set %s does not belong to the deployment", s.Name)
		}
		if *s.Spec.Replicas > 0 {
			with++
		}
	}
	if len(sets.Items) != 3 || with != 1 {
		a.t.Errorf("%d sets, %d with replicas; want 3 and 1", len(sets.Items), with)
	}
	a.untilField("deployment/d", `{.metadata.annotations.deployment\.kubernetes\.io/revision}`, "2")
}

// deploymentProportional scales while a rollout hangs: both sets grow by their
// share.
func deploymentProportional(a *apps) {
	spec := "strategy: {rollingUpdate: {maxSurge: 3, maxUnavailable: 2}}"
	a.make(deployment("d", 10, spec, pauseC))
	a.ready("app=d", 10)
	first := a.field("replicaset", "{.items[0].metadata.name}")
	a.make(deployment("d", 10, spec, "{name: c, image: berth.dev/missing:1, imagePullPolicy: Never}"))
	replicas := func(old, young int) func() string {
		return func() string {
			sets, err := a.api.AppsV1().ReplicaSets(a.ns).List(a.ctx, metav1.ListOptions{})
			a.must(err)
			got := map[bool]int32{}
			for _, s := range sets.Items {
				got[s.Name == first] += *s.Spec.Replicas
			}
			if got[true] == int32(old) && got[false] == int32(young) {
				return ""
			}
			return fmt.Sprintf("the old set has %d, the new one %d", got[true], got[false])
		}
	}
	a.until("the rollout hangs at 8 and 5", replicas(8, 5))
	a.k("scale", "deployment/d", "--replicas=30")
	a.until("the sets grow to 20 and 13", replicas(20, 13))
	a.until("old pods are ready", func() string {
		if got := a.field("deployment/d", "{.status.readyReplicas}/{.status.updatedReplicas}/{.status.replicas}"); got != "20/13/33" {
			return got
		}
		return ""
	})
}

func deploymentHistory(a *apps) {
	a.make(deployment("d", 1, "revisionHistoryLimit: 1", pauseC))
	a.k("rollout", "status", "deployment/d", "--timeout=60s")
	for i := range 3 {
		a.k("set", "env", "deployment/d", fmt.Sprintf("N=%d", i))
		a.k("rollout", "status", "deployment/d", "--timeout=60s")
	}
	a.until("two sets are left", func() string {
		got := strings.Fields(a.field("replicaset", "{.items[*].metadata.name}"))
		if len(got) == 2 {
			return ""
		}
		return fmt.Sprint(got)
	})
	a.k("rollout", "undo", "deployment/d")
	a.k("rollout", "status", "deployment/d", "--timeout=60s")
	if got := a.field("deployment/d", "{.spec.template.spec.containers[0].env[0].value}"); got != "1" {
		a.t.Errorf("undo went to N=%q, want 1", got)
	}
	a.k("rollout", "pause", "deployment/d")
	a.k("set", "env", "deployment/d", "N=9")
	a.untilField("deployment/d", `{.status.conditions[?(@.type=="Progressing")].reason}`, "DeploymentPaused")
	a.k("patch", "deployment/d", "-p",
		`{"spec":{"progressDeadlineSeconds":2,"template":{"spec":{"containers":[{"name":"c","image":"berth.dev/missing:1",`+
			`"imagePullPolicy":"Never"}]}}}}`)
	a.k("rollout", "resume", "deployment/d")
	a.untilField("deployment/d", `{.status.conditions[?(@.type=="Progressing")].reason}`, "ProgressDeadlineExceeded")
	a.untilField("deployment/d", `{.status.conditions[?(@.type=="Progressing")].status}`, "False")
}

func adoptRelease(a *apps, version, kind, resource, selector string) {
	a.make(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: orphan, labels: {app: s}}\nspec: {containers: [%s]}\n", pauseC))
	a.make(set(version, kind, selector, 1))
	a.untilField("pod/orphan", "{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].controller}", kind+"/true")
	if got := names(a.ready("app=s", 1)); got != "orphan" {
		a.t.Errorf("pods %s beside the adopted one", got)
	}
	a.k("label", "--overwrite", "pod/orphan", "app=free")
	a.untilField("pod/orphan", "{.metadata.ownerReferences}", "")
	a.ready("app=s", 1)
	// Deleting the set with its pods must leave the released one.
	a.k("delete", resource, "s", "--cascade=foreground", "--wait")
	if got := names(a.pods(a.ns, "app=s")); got != "" {
		a.t.Errorf("pods %s outlived a foreground deletion", got)
	}
	a.ready("app=free", 1)
}

func quotaCondition(a *apps, version, kind, resource, selector string) {
	a.make("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {pods: \"2\"}}\n")
	a.untilField("quota/q", "{.status.hard.pods}", "2")
	a.make(set(version, kind, selector, 3))
	a.untilField(resource+"/s", `{.status.conditions[?(@.type=="ReplicaFailure")].reason}`, "FailedCreate")
	a.ready("app=s", 2)
	a.k("scale", resource+"/s", "--replicas=2")
	a.untilField(resource+"/s", `{.status.conditions}`, "")
}
