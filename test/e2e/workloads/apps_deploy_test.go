package workloads

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var deploymentTests = []kit.Subtest{
	{Name: "Deployment recreate", Run: deploymentRecreate},
	{Name: "Deployment rollover", Run: deploymentRollover},
	{Name: "Deployment proportional", Run: deploymentProportional},
	{Name: "Deployment history", Run: deploymentHistory},
	{Name: "Deployment scale and status", Run: func(a *kit.Namespace) {
		a.Make(deployment("d", 1, "", pauseC))
		scaleEndpoint(a, "deployment/d", "app=d")
		statusEndpoint(a, "/apis/apps/v1", "deployments", "d")
	}},
}

var setTests = []kit.Subtest{
	{Name: "ReplicaSet adopt and release", Run: func(a *kit.Namespace) {
		adoptRelease(a, "apps/v1", "ReplicaSet", "replicasets", "{matchLabels: {app: s}}")
	}},
	{Name: "ReplicationController adopt and release", Run: func(a *kit.Namespace) {
		adoptRelease(a, "v1", "ReplicationController", "replicationcontrollers",
			"{app: s}")
	}},
	{Name: "ReplicaSet quota", Run: func(a *kit.Namespace) {
		quotaCondition(a, "apps/v1", "ReplicaSet", "replicasets", "{matchLabels: {app: s}}")
	}},
	{Name: "ReplicationController quota", Run: func(a *kit.Namespace) {
		quotaCondition(a, "v1", "ReplicationController", "replicationcontrollers",
			"{app: s}")
	}},
	{Name: "ReplicaSet scale and status", Run: func(a *kit.Namespace) {
		a.Make(set("apps/v1", "ReplicaSet", "{matchLabels: {app: s}}", 1))
		scaleEndpoint(a, "replicaset/s", "app=s")
		statusEndpoint(a, "/apis/apps/v1", "replicasets", "s")
		a.K("delete", "replicasets", "-l", "kind=set")
		a.Until("the pods go with their set", func() string { return names(a.Live("app=s")) })
	}},
	{Name: "ReplicationController scale and status", Run: func(a *kit.Namespace) {
		a.Make(set("v1", "ReplicationController", "{app: s}", 1))
		scaleEndpoint(a, "replicationcontroller/s", "app=s")
		statusEndpoint(a, "/api/v1", "replicationcontrollers", "s")
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

func deploymentRecreate(a *kit.Namespace) {
	a.Make(deployment("d", 2, "strategy: {type: Recreate}", pauseC))
	a.Ready("app=d", 2)
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
	duringChanges(a, "app=d", rule, func() {
		a.Make(deployment("d", 2, "strategy: {type: Recreate}", toolC))
		a.K("rollout", "status", "deployment/d", "--timeout=60s")
	})
	for _, p := range a.Ready("app=d", 2) {
		if p.Spec.Containers[0].Image != "berth.dev/toolbox:1" {
			a.T.Errorf("%s still runs %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

// deploymentRollover takes over the pods of a set that was there before, and is
// changed while its first rollout goes nowhere.
func deploymentRollover(a *kit.Namespace) {
	orphan := strings.ReplaceAll(set("apps/v1", "ReplicaSet", "{matchLabels: {app: s}}", 1), "{app: s}", "{app: d}")
	a.Make(strings.Replace(orphan, "{kind: set}", "{app: d}", 1))
	a.Ready("app=d", 1)
	yaml := func(container string) string {
		return deployment("d", 1, "minReadySeconds: 2\n  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}", container)
	}
	rule := func(pods []v1.Pod) string {
		for i := range pods {
			if kit.PodReady(&pods[i]) && pods[i].DeletionTimestamp == nil {
				return ""
			}
		}
		return "no ready pod: " + names(pods)
	}
	duringChanges(a, "app=d", rule, func() {
		a.Make(yaml("{name: c, image: berth.dev/missing:1, imagePullPolicy: Never}"))
		a.Until("the first rollout hangs", func() string {
			for _, p := range a.Live("app=d") {
				if p.Spec.Containers[0].Image == "berth.dev/missing:1" {
					return ""
				}
			}
			return names(a.Live("app=d"))
		})
		a.Make(yaml(toolC))
		a.K("rollout", "status", "deployment/d", "--timeout=60s")
	})
	sets, err := a.API.AppsV1().ReplicaSets(a.Name).List(a.Ctx, metav1.ListOptions{})
	a.Must(err)
	with := 0
	for _, s := range sets.Items {
		if !metav1.IsControlledBy(&s, &metav1.ObjectMeta{UID: types.UID(a.Field("deployment/d", "{.metadata.uid}"))}) {
			a.T.Errorf("set %s does not belong to the deployment", s.Name)
		}
		if *s.Spec.Replicas > 0 {
			with++
		}
	}
	if len(sets.Items) != 3 || with != 1 {
		a.T.Errorf("%d sets, %d with replicas; want 3 and 1", len(sets.Items), with)
	}
	a.UntilField("deployment/d", `{.metadata.annotations.deployment\.kubernetes\.io/revision}`, "2")
}

// deploymentProportional scales while a rollout hangs: both sets grow by their
// share.
func deploymentProportional(a *kit.Namespace) {
	spec := "strategy: {rollingUpdate: {maxSurge: 3, maxUnavailable: 2}}"
	a.Make(deployment("d", 10, spec, pauseC))
	a.Ready("app=d", 10)
	first := a.Field("replicaset", "{.items[0].metadata.name}")
	a.Make(deployment("d", 10, spec, "{name: c, image: berth.dev/missing:1, imagePullPolicy: Never}"))
	replicas := func(old, young int) func() string {
		return func() string {
			sets, err := a.API.AppsV1().ReplicaSets(a.Name).List(a.Ctx, metav1.ListOptions{})
			a.Must(err)
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
	a.Until("the rollout hangs at 8 and 5", replicas(8, 5))
	a.K("scale", "deployment/d", "--replicas=30")
	a.Until("the sets grow to 20 and 13", replicas(20, 13))
	a.Until("old pods are ready", func() string {
		if got := a.Field("deployment/d", "{.status.readyReplicas}/{.status.updatedReplicas}/{.status.replicas}"); got != "20/13/33" {
			return got
		}
		return ""
	})
}

func deploymentHistory(a *kit.Namespace) {
	a.Make(deployment("d", 1, "revisionHistoryLimit: 1", pauseC))
	a.K("rollout", "status", "deployment/d", "--timeout=60s")
	for i := range 3 {
		a.K("set", "env", "deployment/d", fmt.Sprintf("N=%d", i))
		a.K("rollout", "status", "deployment/d", "--timeout=60s")
	}
	a.Until("two sets are left", func() string {
		got := strings.Fields(a.Field("replicaset", "{.items[*].metadata.name}"))
		if len(got) == 2 {
			return ""
		}
		return fmt.Sprint(got)
	})
	a.K("rollout", "undo", "deployment/d")
	a.K("rollout", "status", "deployment/d", "--timeout=60s")
	if got := a.Field("deployment/d", "{.spec.template.spec.containers[0].env[0].value}"); got != "1" {
		a.T.Errorf("undo went to N=%q, want 1", got)
	}
	a.K("rollout", "pause", "deployment/d")
	a.K("set", "env", "deployment/d", "N=9")
	a.UntilField("deployment/d", `{.status.conditions[?(@.type=="Progressing")].reason}`, "DeploymentPaused")
	a.K("patch", "deployment/d", "-p",
		`{"spec":{"progressDeadlineSeconds":2,"template":{"spec":{"containers":[{"name":"c","image":"berth.dev/missing:1",`+
			`"imagePullPolicy":"Never"}]}}}}`)
	a.K("rollout", "resume", "deployment/d")
	a.UntilField("deployment/d", `{.status.conditions[?(@.type=="Progressing")].reason}`, "ProgressDeadlineExceeded")
	a.UntilField("deployment/d", `{.status.conditions[?(@.type=="Progressing")].status}`, "False")
}

func adoptRelease(a *kit.Namespace, version, kind, resource, selector string) {
	a.Make(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: orphan, labels: {app: s}}\nspec: {containers: [%s]}\n", pauseC))
	a.Make(set(version, kind, selector, 1))
	a.UntilField("pod/orphan", "{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].controller}", kind+"/true")
	if got := names(a.Ready("app=s", 1)); got != "orphan" {
		a.T.Errorf("pods %s beside the adopted one", got)
	}
	a.K("label", "--overwrite", "pod/orphan", "app=free")
	a.UntilField("pod/orphan", "{.metadata.ownerReferences}", "")
	a.Ready("app=s", 1)
	// Deleting the set with its pods must leave the released one.
	a.K("delete", resource, "s", "--cascade=foreground", "--wait")
	if got := names(a.Pods(a.Name, "app=s")); got != "" {
		a.T.Errorf("pods %s outlived a foreground deletion", got)
	}
	a.Ready("app=free", 1)
}

func quotaCondition(a *kit.Namespace, version, kind, resource, selector string) {
	a.Make("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {pods: \"2\"}}\n")
	a.UntilField("quota/q", "{.status.hard.pods}", "2")
	a.Make(set(version, kind, selector, 3))
	a.UntilField(resource+"/s", `{.status.conditions[?(@.type=="ReplicaFailure")].reason}`, "FailedCreate")
	a.Ready("app=s", 2)
	a.K("scale", resource+"/s", "--replicas=2")
	a.UntilField(resource+"/s", `{.status.conditions}`, "")
}
