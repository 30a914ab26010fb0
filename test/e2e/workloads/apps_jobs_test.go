package workloads

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var jobTests = []kit.Subtest{
	{Name: "Job indexed", Run: jobIndexed},
	{Name: "Job adopts and releases", Run: jobAdopts},
	{Name: "Job fails early on an exit code", Run: jobFailsEarly},
	{Name: "Job ignores evictions", Run: jobIgnoresEvictions},
	{Name: "Job restarts locally", Run: func(a *kit.Namespace) {
		a.Make(job("parallelism: 2\n  completions: 4", "OnFailure", `if [ -e /keep/once ]; then exit 0; fi; touch /keep/once; exit 1`))
		a.UntilField("job/j", "{.status.succeeded}/{.status.failed}", "4/")
	}},
	{Name: "Job suspend and status", Run: jobSuspend},
	{Name: "Job limits by index", Run: func(a *kit.Namespace) {
		a.Make(job("completionMode: Indexed\n  parallelism: 4\n  completions: 4\n  backoffLimitPerIndex: 1", "Never",
			`if [ $JOB_COMPLETION_INDEX = 1 ]; then exit 3; fi`))
		a.UntilField("job/j", "{.status.succeeded}/{.status.failed}/{.status.failedIndexes}/{.status.completedIndexes}", "3/2/1/0,2,3")
		a.UntilField("job/j", `{.status.conditions[?(@.type=="Failed")].reason}`, "FailedIndexes")
	}},
	{Name: "Job success policy", Run: func(a *kit.Namespace) {
		a.Make(job("completionMode: Indexed\n  parallelism: 3\n  completions: 3\n  successPolicy: {rules: [{succeededIndexes: \"1\"}]}",
			"Never", `if [ $JOB_COMPLETION_INDEX = 1 ]; then exit 0; fi; exec sleep infinity`))
		a.UntilField("job/j", `{.status.conditions[?(@.type=="Complete")].reason}/{.status.succeeded}`, "SuccessPolicy/1")
		a.Until("the others ended", func() string { return names(a.Live("job-name=j")[min(1, len(a.Live("job-name=j"))):]) })
	}},
	{Name: "Job deadline and time to live", Run: func(a *kit.Namespace) {
		a.Make(job("activeDeadlineSeconds: 2\n  ttlSecondsAfterFinished: 1", "Never", "exec sleep infinity"))
		reason := ""
		a.Until("the job is over and gone", func() string {
			j, err := a.API.BatchV1().Jobs(a.Name).Get(a.Ctx, "j", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			a.Must(err)
			for _, c := range j.Status.Conditions {
				if c.Type == batchv1.JobFailed {
					reason = c.Reason
				}
			}
			return fmt.Sprintf("%+v", j.Status)
		})
		if reason != "DeadlineExceeded" {
			a.T.Errorf("it failed for %q", reason)
		}
		a.Until("its pods are gone", func() string { return names(a.Pods(a.Name, "job-name=j")) })
	}},
	{Name: "Job waits for the end of failed pods", Run: func(a *kit.Namespace) {
		// The hook keeps the pod ending for as long as a reader of the status needs.
		slow := strings.Replace(job("podReplacementPolicy: Failed\n  backoffLimit: 3", "Never", `exec sleep infinity`),
			"GracePeriodSeconds: 0", "GracePeriodSeconds: 30", 1)
		a.Make(strings.Replace(slow, "        volumeMounts:", "        lifecycle: {preStop: {sleep: {seconds: 6}}}\n        volumeMounts:",
			1))
		p := a.Ready("job-name=j", 1)[0]
		rule := func(pods []v1.Pod) string {
			running := 0
			for i := range pods {
				if pods[i].Status.Phase == v1.PodRunning || pods[i].Status.Phase == v1.PodPending {
					running++
				}
			}
			if running > 1 {
				return "a second pod before the first had failed: " + names(pods)
			}
			return ""
		}
		duringChanges(a, "job-name=j", rule, func() {
			a.K("delete", "pod", p.Name, "--wait=false")
			a.UntilField("job/j", "{.status.terminating}/{.status.active}", "1/")
			a.Until("another runs", func() string {
				if live := a.Live("job-name=j"); len(live) == 1 && live[0].UID != p.UID && kit.PodReady(&live[0]) {
					return ""
				}
				return names(a.Pods(a.Name, "job-name=j"))
			})
		})
	}},
	{Name: "Job elastic", Run: func(a *kit.Namespace) {
		a.Make(job("completionMode: Indexed\n  parallelism: 3\n  completions: 3", "Never", `exec sleep infinity`))
		a.Ready("job-name=j", 3)
		a.K("patch", "job/j", "-p", `{"spec":{"parallelism":2,"completions":2}}`)
		a.Ready("job-name=j", 2)
		for _, p := range a.Live("job-name=j") {
			if i := p.Annotations["batch.kubernetes.io/job-completion-index"]; i == "2" {
				a.T.Errorf("index %s is still there", i)
			}
		}
		a.K("patch", "job/j", "-p", `{"spec":{"parallelism":4,"completions":4}}`)
		a.Ready("job-name=j", 4)
	}},
	{Name: "Job limits", Run: func(a *kit.Namespace) {
		a.Make(strings.ReplaceAll(job("backoffLimit: 0", "Never", "exit 1"), "name: j", "name: one"))
		a.UntilField("job/one", `{.status.failed}/{.status.conditions[?(@.type=="Failed")].reason}`, "1/BackoffLimitExceeded")
		a.Make(strings.ReplaceAll(job("completionMode: Indexed\n  parallelism: 3\n  completions: 3\n  backoffLimitPerIndex: 0\n  "+
			"maxFailedIndexes: 1", "Never", "[ $JOB_COMPLETION_INDEX = 2 ] && exec sleep infinity; exit 1"), "name: j", "name: two"))
		a.UntilField("job/two", `{.status.conditions[?(@.type=="Failed")].reason}`, "MaxFailedIndexesExceeded")
		a.Make(strings.ReplaceAll(job("managedBy: example.com/other", "Never", "exit 0"), "name: j", "name: three"))
		a.Make(strings.ReplaceAll(job("suspend: true", "Never", "exit 0"), "name: j", "name: four"))
		a.UntilField("job/four", `{.status.conditions[?(@.type=="Suspended")].status}`, "True")
		a.K("patch", "job/four", "-p",
			`{"spec":{"template":{"metadata":{"labels":{"q":"r"}},"spec":{"nodeSelector":{"kubernetes.io/os":"linux"}}}}}`)
		a.K("patch", "job/four", "-p", `{"spec":{"suspend":false}}`)
		a.UntilField("job/four", "{.status.succeeded}", "1")
		if got := a.Field("job/three", "{.status}"); got != "{}" && got != "" {
			a.T.Errorf("a job that somebody else manages got the status %s", got)
		}
	}},
	{Name: "Job deleted", Run: func(a *kit.Namespace) {
		a.Make(job("parallelism: 2\n  completions: 2", "Never", "exec sleep infinity"))
		a.Ready("job-name=j", 2)
		a.K("delete", "job", "j", "--cascade=foreground", "--wait")
		if got := names(a.Pods(a.Name, "job-name=j")); got != "" {
			a.T.Errorf("pods %s outlived a foreground deletion", got)
		}
	}},
}

var budgetTests = []kit.Subtest{
	{Name: "PodDisruptionBudget", Run: budgetBlocks},
	{Name: "PodDisruptionBudget of unready pods", Run: func(a *kit.Namespace) {
		a.Make(strings.ReplaceAll(deployment("d", 3, "", breakable), "\t", ""))
		a.Make("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {minAvailable: 3, selector: {matchLabels: " +
			"{app: d}}}\n")
		pods := a.Ready("app=d", 3)
		breakProbe(a, pods[0].Name)
		a.UntilField("pdb/b", "{.status.currentHealthy}/{.status.disruptionsAllowed}", "2/0")
		if err := tryEvict(a, pods[0].Name); !apierrors.IsTooManyRequests(err) {
			a.T.Errorf("evicting an unready pod of a budget in need answered %v, want 429", err)
		}
		a.K("patch", "pdb/b", "--type=merge", "-p", `{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
		evict(a, pods[0].Name)
		a.Ready("app=d", 3)
		// A budget that counts unavailable pods has to know how many there ought to
		// be: a pod of nobody makes it forbid everything.
		a.Make("apiVersion: v1\nkind: Pod\nmetadata: {name: bare, labels: {app: bare}}\nspec: {containers: [" + pauseC +
			"]}\n---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: bare}\nspec: {maxUnavailable: 1, selector: " +
			"{matchLabels: {app: bare}}}\n")
		a.UntilField("pod/bare", "{.status.phase}", "Running")
		a.UntilField("pdb/bare", `{.status.conditions[?(@.type=="DisruptionAllowed")].reason}`, "SyncFailed")
		if err := tryEvict(a, "bare"); !apierrors.IsTooManyRequests(err) {
			a.T.Errorf("evicting a pod that no controller owns answered %v, want 429", err)
		}
	}},
}

func job(spec, restart, script string) string {
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: j, labels: {kind: job}}
spec:
  %s
  template:
    spec:
      restartPolicy: %s
      terminationGracePeriodSeconds: 0
      volumes: [{name: keep, emptyDir: {}}]
      containers:
      - name: c
        image: berth.dev/toolbox:1
        command: [sh, -c, %q]
        volumeMounts: [{name: keep, mountPath: /keep}]
`, spec, restart, script)
}

func jobIndexed(a *kit.Namespace) {
	a.Make(job("completionMode: Indexed\n  parallelism: 2\n  completions: 4", "Never", "echo $JOB_COMPLETION_INDEX $(hostname)"))
	a.UntilField("job/j", "{.status.completedIndexes}", "0-3")
	a.UntilField("job/j", `{.status.conditions[?(@.type=="Complete")].status}`, "True")
	seen := map[string]bool{}
	for _, p := range a.Pods(a.Name, "job-name=j") {
		index := p.Annotations["batch.kubernetes.io/job-completion-index"]
		seen[index] = true
		if got, want := strings.TrimSpace(a.K("logs", p.Name)), index+" j-"+index; got != want {
			a.T.Errorf("pod %s says %q, want %q", p.Name, got, want)
		}
		if p.Labels["batch.kubernetes.io/job-completion-index"] != index {
			a.T.Errorf("pod %s has the label %q", p.Name, p.Labels["batch.kubernetes.io/job-completion-index"])
		}
	}
	if len(seen) != 4 {
		a.T.Errorf("indexes %v", seen)
	}
	// An elastic job grows after its end never, but while it runs.
	if out, err := a.TryKubectl("", "-n", a.Name, "patch", "job/j", "-p", `{"spec":{"completions":6}}`); err == nil ||
		!strings.Contains(out, "completions") {
		a.T.Errorf("completions changed without parallelism: %s", out)
	}
}

func jobAdopts(a *kit.Namespace) {
	a.Make(job("parallelism: 2\n  completions: 2", "Never", "exec sleep infinity"))
	pods := a.Ready("job-name=j", 2)
	a.K("patch", "pod", pods[0].Name, "--type=json", "-p", `[{"op":"remove","path":"/metadata/ownerReferences"}]`)
	a.UntilField("pod/"+pods[0].Name, "{.metadata.ownerReferences[0].name}", "j")
	a.K("patch", "pod", pods[1].Name, "--type=json", "-p", `[{"op":"remove","path":"/metadata/labels"}]`)
	a.UntilField("pod/"+pods[1].Name, "{.metadata.ownerReferences}", "")
	a.Ready("job-name=j", 2)
}

func jobFailsEarly(a *kit.Namespace) {
	a.Make(job("backoffLimit: 6\n  parallelism: 2\n  completions: 2\n  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: "+
		"{operator: In, values: [42]}}]}", "Never",
		`case $(hostname) in *) sleep 1; exit 42;; esac`))
	a.UntilField("job/j", `{.status.conditions[?(@.type=="FailureTarget")].reason}/{.status.conditions[?(@.type=="Failed")].reason}`,
		"PodFailurePolicy/PodFailurePolicy")
	message := a.Field("job/j", `{.status.conditions[?(@.type=="Failed")].message}`)
	if !strings.Contains(message, "failed with exit code 42 matching FailJob rule at index 0") || !strings.Contains(message,
		"Container c for pod "+a.Name+"/j-") {
		a.T.Errorf("the message is %q", message)
	}
	if got := a.Field("job/j", "{.status.failed}"); got != "1" && got != "2" {
		a.T.Errorf("%s pods failed", got)
	}
}

// jobIgnoresEvictions evicts each pod once; the job has no failure to spend, yet
// it completes.
func jobIgnoresEvictions(a *kit.Namespace) {
	host := a.T.(*testing.T).TempDir()
	a.Make(strings.Replace(job("backoffLimit: 0\n  completionMode: Indexed\n  parallelism: 2\n  completions: 2\n  podFailurePolicy: "+
		"{rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}, {action: FailJob, onExitCodes: {operator: NotIn, "+
		"values: [0]}}]}", "Never",
		`if [ -e /keep/$JOB_COMPLETION_INDEX ]; then exit 0; fi; touch /keep/$JOB_COMPLETION_INDEX; exec sleep infinity`), "emptyDir: {}",
		"hostPath: {path: "+host+"}", 1))
	for _, p := range a.Ready("job-name=j", 2) {
		a.Until("the first run left its mark", func() string {
			if strings.Contains(a.K("exec", p.Name, "--", "ls", "/keep"), p.Annotations["batch.kubernetes.io/job-completion-index"]) {
				return ""
			}
			return "no mark"
		})
		evict(a, p.Name)
	}
	a.UntilField("job/j", `{.status.succeeded}/{.status.failed}/{.status.conditions[?(@.type=="Complete")].status}`, "2//True")
}

func evict(a *kit.Namespace, pod string) {
	a.T.Helper()
	a.Must(tryEvict(a, pod))
}

func tryEvict(a *kit.Namespace, pod string) error {
	body := []byte(fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, a.Name))
	return a.API.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces", a.Name, "pods", pod, "eviction").SetHeader("Content-Type",
		"application/json").Body(body).Do(a.Ctx).Error()
}

func jobSuspend(a *kit.Namespace) {
	a.Make(job("suspend: true\n  parallelism: 1\n  completions: 1", "Never", "exec sleep infinity"))
	a.UntilField("job/j", `{.status.conditions[?(@.type=="Suspended")].status}/{.status.startTime}`, "True/")
	a.K("patch", "job/j", "-p", `{"spec":{"suspend":false}}`)
	a.Ready("job-name=j", 1)
	a.UntilField("job/j", `{.status.conditions[?(@.type=="Suspended")].status}/{.status.active}/{.status.ready}`, "False/1/1")
	statusEndpoint(a, "/apis/batch/v1", "jobs", "j")
	a.K("patch", "job/j", "-p", `{"spec":{"suspend":true}}`)
	a.Until("its pods end", func() string { return names(a.Pods(a.Name, "job-name=j")) })
	a.UntilField("job/j", "{.status.startTime}", "")
	a.K("delete", "jobs", "-l", "kind=job")
	a.Until("the job is gone", func() string { return a.Field("jobs", "{.items[*].metadata.name}") })
}

func budgetBlocks(a *kit.Namespace) {
	a.Make(deployment("d", 3, "", pauseC))
	pods := a.Ready("app=d", 3)
	a.Make("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b, labels: {kind: budget}}\nspec: {minAvailable: 3, " +
		"selector: {matchLabels: {app: d}}}\n")
	a.UntilField("pdb/b", "{.status.disruptionsAllowed}/{.status.currentHealthy}/{.status.desiredHealthy}/{.status.expectedPods}",
		"0/3/3/3")
	err := tryEvict(a, pods[0].Name)
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, "DisruptionBudget") {
		a.T.Errorf("the eviction answered %v, want 429 with the cause DisruptionBudget", err)
	}
	a.K("patch", "pdb/b", "--type=merge", "-p", `{"spec":{"minAvailable":null,"maxUnavailable":"30%"}}`)
	a.UntilField("pdb/b", "{.status.disruptionsAllowed}/{.status.desiredHealthy}", "1/2")
	evict(a, pods[0].Name)
	if err := tryEvict(a, pods[1].Name); !apierrors.IsTooManyRequests(err) {
		a.T.Errorf("a second eviction at once answered %v, want 429", err)
	}
	a.Ready("app=d", 3)
	a.UntilField("pdb/b", "{.status.disruptionsAllowed}", "1")
	a.K("patch", "pdb/b", "--subresource=status", "--type=merge", "-p", `{"status":{"disruptedPods":{"nobody":"2020-01-01T00:00:00Z"}}}`)
	a.K("delete", "pdb", "-l", "kind=budget")
	evict(a, a.Ready("app=d", 3)[1].Name)
}

// crons run beside the other subtests: their schedule has minutes.
type crons struct {
	*kit.Cluster
	began time.Time
}

// startCrons makes one CronJob for each policy; each starts a job a minute that
// lasts longer than a minute.
func startCrons(c *kit.Cluster) *crons {
	c.T.Helper()
	cr := &crons{Cluster: c, began: time.Now()}
	c.Kubectl("create", "namespace", "crons")
	for name, spec := range map[string]string{
		"allow": "concurrencyPolicy: Allow", "forbid": "concurrencyPolicy: Forbid", "replace": "concurrencyPolicy: Replace",
		"suspended": "suspend: true", "zone": "timeZone: Asia/Kolkata", "good": "successfulJobsHistoryLimit: 1",
		"bad": "failedJobsHistoryLimit: 1",
	} {
		container := toolC
		switch name {
		case "good":
			container = strings.Replace(toolC, "sleep, infinity", "sleep, 0s", 1)
		case "bad":
			container = strings.Replace(toolC, "sleep, infinity", "stat, /nothing", 1)
		}
		c.Apply(fmt.Sprintf(`
apiVersion: batch/v1
kind: CronJob
metadata: {name: %s, namespace: crons}
spec:
  schedule: "* * * * *"
  %s
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        metadata: {labels: {cron: %s}}
        spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0, containers: [%s]}
`, name, spec, name, container))
	}
	return cr
}

// check looks at them in the minutes after their start.
func (cr *crons) check(t *testing.T) {
	a := &kit.Namespace{Cluster: cr.In(t), Name: "crons", Ctx: context.Background(), API: cr.Client}
	a.Until("two jobs of one that allows them run at once", func() string {
		if n := len(a.Live("cron=allow")); n < 2 {
			return fmt.Sprintf("%d", n)
		}
		return ""
	})
	jobs, err := a.API.BatchV1().Jobs("crons").List(a.Ctx, metav1.ListOptions{})
	a.Must(err)
	made := map[string]int{}
	for _, j := range jobs.Items {
		made[j.OwnerReferences[0].Name]++
		if j.Annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"] == "" {
			t.Errorf("job %s does not say for when it was made", j.Name)
		}
	}
	a.Until("one that replaces has run its second job, alone", func() string {
		reasons := a.K("get", "events", "--field-selector=involvedObject.name=replace", "-o", "jsonpath={.items[*].reason}")
		if n := len(a.Live("cron=replace")); n != 1 || strings.Count(reasons, "SuccessfulCreate") < 1 || !strings.Contains(reasons,
			"SuccessfulDelete") {
			return fmt.Sprintf("%d pods, events %s", n, reasons)
		}
		return ""
	})
	for _, name := range []string{"good", "bad"} {
		a.Until("of the job of "+name+" only the last is kept", func() string {
			reasons := a.K("get", "events", "--field-selector=involvedObject.name="+name, "-o", "jsonpath={.items[*].reason}")
			var left int
			jobs, err := a.API.BatchV1().Jobs("crons").List(a.Ctx, metav1.ListOptions{})
			a.Must(err)
			for _, j := range jobs.Items {
				if j.OwnerReferences[0].Name == name && j.Status.CompletionTime != nil || j.OwnerReferences[0].Name == name &&
					j.Status.Failed > 0 {
					left++
				}
			}
			if left != 1 || !strings.Contains(reasons, "SuccessfulDelete") {
				return fmt.Sprintf("%d are left, events %s", left, reasons)
			}
			return ""
		})
	}
	if made["forbid"] != 1 || made["suspended"] != 0 || made["zone"] < 1 {
		t.Errorf("jobs made by each: %v", made)
	}
	a.UntilField("cronjob/forbid", "{.status.active[0].kind}", "Job")
	a.K("patch", "cronjob/forbid", "--subresource=status", "--type=merge", "-p", `{"status":{"lastScheduleTime":"2020-01-01T00:00:00Z"}}`)
	now := int64(0)
	a.Must(a.API.CoreV1().Pods("crons").DeleteCollection(a.Ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	a.K("delete", "cronjob", "--all")
	a.Until("their jobs and pods go with them", func() string {
		return a.Field("jobs", "{.items[*].metadata.name}") + names(a.Pods("crons", ""))
	})
}
