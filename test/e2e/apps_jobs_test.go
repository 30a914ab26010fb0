package e2e

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
)

var jobTests = []appTest{
	{"Job indexed", jobIndexed},
	{"Job adopts and releases", jobAdopts},
	{"Job fails early on an exit code", jobFailsEarly},
	{"Job ignores evictions", jobIgnoresEvictions},
	{"Job restarts locally", func(a *apps) {
		a.make(job("parallelism: 2\n  completions: 4", "OnFailure", `if [ -e /keep/once ]; then exit 0; fi; touch /keep/once; exit 1`))
		a.untilField("job/j", "{.status.succeeded}/{.status.failed}", "4/")
	}},
	{"Job suspend and status", jobSuspend},
	{"Job limits by index", func(a *apps) {
		a.make(job("completionMode: Indexed\n  parallelism: 4\n  completions: 4\n  backoffLimitPerIndex: 1", "Never",
			`if [ $JOB_COMPLETION_INDEX = 1 ]; then exit 3; fi`))
		a.untilField("job/j", "{.status.succeeded}/{.status.failed}/{.status.failedIndexes}/{.status.completedIndexes}", "3/2/1/0,2,3")
		a.untilField("job/j", `{.status.conditions[?(@.type=="Failed")].reason}`, "FailedIndexes")
	}},
	{"Job success policy", func(a *apps) {
		a.make(job("completionMode: Indexed\n  parallelism: 3\n  completions: 3\n  successPolicy: {rules: [{succeededIndexes: \"1\"}]}",
			"Never", `if [ $JOB_COMPLETION_INDEX = 1 ]; then exit 0; fi; exec sleep infinity`))
		a.untilField("job/j", `{.status.conditions[?(@.type=="Complete")].reason}/{.status.succeeded}`, "SuccessPolicy/1")
		a.until("the others ended", func() string { return names(a.live("job-name=j")[min(1, len(a.live("job-name=j"))):]) })
	}},
	{"Job deadline and time to live", func(a *apps) {
		a.make(job("activeDeadlineSeconds: 2\n  ttlSecondsAfterFinished: 1", "Never", "exec sleep infinity"))
		reason := ""
		a.until("the job is over and gone", func() string {
			j, err := a.api.BatchV1().Jobs(a.ns).Get(a.ctx, "j", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			a.must(err)
			for _, c := range j.Status.Conditions {
				if c.Type == batchv1.JobFailed {
					reason = c.Reason
				}
			}
			return fmt.Sprintf("%+v", j.Status)
		})
		if reason != "DeadlineExceeded" {
			a.t.Errorf("it failed for %q", reason)
		}
		a.until("its pods are gone", func() string { return names(a.pods(a.ns, "job-name=j")) })
	}},
	{"Job waits for the end of failed pods", func(a *apps) {
		// The hook keeps the pod ending for as long as a reader of the status needs.
		slow := strings.Replace(job("podReplacementPolicy: Failed\n  backoffLimit: 3", "Never", `exec sleep infinity`),
			"GracePeriodSeconds: 0", "GracePeriodSeconds: 30", 1)
		a.make(strings.Replace(slow, "        volumeMounts:", "        lifecycle: {preStop: {sleep: {seconds: 6}}}\n        volumeMounts:",
			1))
		p := a.ready("job-name=j", 1)[0]
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
		a.during("job-name=j", rule, func() {
			a.k("delete", "pod", p.Name, "--wait=false")
			a.untilField("job/j", "{.status.terminating}/{.status.active}", "1/")
			a.until("another runs", func() string {
				if live := a.live("job-name=j"); len(live) == 1 && live[0].UID != p.UID && podReady(&live[0]) {
					return ""
				}
				return names(a.pods(a.ns, "job-name=j"))
			})
		})
	}},
	{"Job elastic", func(a *apps) {
		a.make(job("completionMode: Indexed\n  parallelism: 3\n  completions: 3", "Never", `exec sleep infinity`))
		a.ready("job-name=j", 3)
		a.k("patch", "job/j", "-p", `{"spec":{"parallelism":2,"completions":2}}`)
		a.ready("job-name=j", 2)
		for _, p := range a.live("job-name=j") {
			if i := p.Annotations["batch.kubernetes.io/job-completion-index"]; i == "2" {
				a.t.Errorf("index %s is still there", i)
			}
		}
		a.k("patch", "job/j", "-p", `{"spec":{"parallelism":4,"completions":4}}`)
		a.ready("job-name=j", 4)
	}},
	{"Job limits", func(a *apps) {
		a.make(strings.ReplaceAll(job("backoffLimit: 0", "Never", "exit 1"), "name: j", "name: one"))
		a.untilField("job/one", `{.status.failed}/{.status.conditions[?(@.type=="Failed")].reason}`, "1/BackoffLimitExceeded")
		a.make(strings.ReplaceAll(job("completionMode: Indexed\n  parallelism: 3\n  completions: 3\n  backoffLimitPerIndex: 0\n  "+
			"maxFailedIndexes: 1", "Never", "[ $JOB_COMPLETION_INDEX = 2 ] && exec sleep infinity; exit 1"), "name: j", "name: two"))
		a.untilField("job/two", `{.status.conditions[?(@.type=="Failed")].reason}`, "MaxFailedIndexesExceeded")
		a.make(strings.ReplaceAll(job("managedBy: example.com/other", "Never", "exit 0"), "name: j", "name: three"))
		a.make(strings.ReplaceAll(job("suspend: true", "Never", "exit 0"), "name: j", "name: four"))
		a.untilField("job/four", `{.status.conditions[?(@.type=="Suspended")].status}`, "True")
		a.k("patch", "job/four", "-p",
			`{"spec":{"template":{"metadata":{"labels":{"q":"r"}},"spec":{"nodeSelector":{"kubernetes.io/os":"linux"}}}}}`)
		a.k("patch", "job/four", "-p", `{"spec":{"suspend":false}}`)
		a.untilField("job/four", "{.status.succeeded}", "1")
		if got := a.field("job/three", "{.status}"); got != "{}" && got != "" {
			a.t.Errorf("a job that somebody else manages got the status %s", got)
		}
	}},
	{"Job deleted", func(a *apps) {
		a.make(job("parallelism: 2\n  completions: 2", "Never", "exec sleep infinity"))
		a.ready("job-name=j", 2)
		a.k("delete", "job", "j", "--cascade=foreground", "--wait")
		if got := names(a.pods(a.ns, "job-name=j")); got != "" {
			a.t.Errorf("pods %s outlived a foreground deletion", got)
		}
	}},
}

var budgetTests = []appTest{
	{"PodDisruptionBudget", budgetBlocks},
	{"PodDisruptionBudget of unready pods", func(a *apps) {
		a.make(strings.ReplaceAll(deployment("d", 3, "", breakable), "\t", ""))
		a.make("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {minAvailable: 3, selector: {matchLabels: " +
			"{app: d}}}\n")
		pods := a.ready("app=d", 3)
		a.break_(pods[0].Name)
		a.untilField("pdb/b", "{.status.currentHealthy}/{.status.disruptionsAllowed}", "2/0")
		if err := a.tryEvict(pods[0].Name); !apierrors.IsTooManyRequests(err) {
			a.t.Errorf("evicting an unready pod of a budget in need answered %v, want 429", err)
		}
		a.k("patch", "pdb/b", "--type=merge", "-p", `{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
		a.evict(pods[0].Name)
		a.ready("app=d", 3)
		// A budget that counts unavailable pods has to know how many there ought to
		// be: a pod of nobody makes it forbid everything.
		a.make("apiVersion: v1\nkind: Pod\nmetadata: {name: bare, labels: {app: bare}}\nspec: {containers: [" + pauseC +
			"]}\n---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: bare}\nspec: {maxUnavailable: 1, selector: " +
			"{matchLabels: {app: bare}}}\n")
		a.untilField("pod/bare", "{.status.phase}", "Running")
		a.untilField("pdb/bare", `{.status.conditions[?(@.type=="DisruptionAllowed")].reason}`, "SyncFailed")
		if err := a.tryEvict("bare"); !apierrors.IsTooManyRequests(err) {
			a.t.Errorf("evicting a pod that no controller owns answered %v, want 429", err)
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

func jobIndexed(a *apps) {
	a.make(job("completionMode: Indexed\n  parallelism: 2\n  completions: 4", "Never", "echo $JOB_COMPLETION_INDEX $(hostname)"))
	a.untilField("job/j", "{.status.completedIndexes}", "0-3")
	a.untilField("job/j", `{.status.conditions[?(@.type=="Complete")].status}`, "True")
	seen := map[string]bool{}
	for _, p := range a.pods(a.ns, "job-name=j") {
		index := p.Annotations["batch.kubernetes.io/job-completion-index"]
		seen[index] = true
		if got, want := strings.TrimSpace(a.k("logs", p.Name)), index+" j-"+index; got != want {
			a.t.Errorf("pod %s says %q, want %q", p.Name, got, want)
		}
		if p.Labels["batch.kubernetes.io/job-completion-index"] != index {
			a.t.Errorf("pod %s has the label %q", p.Name, p.Labels["batch.kubernetes.io/job-completion-index"])
		}
	}
	if len(seen) != 4 {
		a.t.Errorf("indexes %v", seen)
	}
	// An elastic job grows after its end never, but while it runs.
	if out, err := a.tryKubectl("", "-n", a.ns, "patch", "job/j", "-p", `{"spec":{"completions":6}}`); err == nil ||
		!strings.Contains(out, "completions") {
		a.t.Errorf("completions changed without parallelism: %s", out)
	}
}

func jobAdopts(a *apps) {
	a.make(job("parallelism: 2\n  completions: 2", "Never", "exec sleep infinity"))
	pods := a.ready("job-name=j", 2)
	a.k("patch", "pod", pods[0].Name, "--type=json", "-p", `[{"op":"remove","path":"/metadata/ownerReferences"}]`)
	a.untilField("pod/"+pods[0].Name, "{.metadata.ownerReferences[0].name}", "j")
	a.k("patch", "pod", pods[1].Name, "--type=json", "-p", `[{"op":"remove","path":"/metadata/labels"}]`)
	a.untilField("pod/"+pods[1].Name, "{.metadata.ownerReferences}", "")
	a.ready("job-name=j", 2)
}

func jobFailsEarly(a *apps) {
	a.make(job("backoffLimit: 6\n  parallelism: 2\n  completions: 2\n  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: "+
		"{operator: In, values: [42]}}]}", "Never",
		`case $(hostname) in *) sleep 1; exit 42;; esac`))
	a.untilField("job/j", `{.status.conditions[?(@.type=="FailureTarget")].reason}/{.status.conditions[?(@.type=="Failed")].reason}`,
		"PodFailurePolicy/PodFailurePolicy")
	message := a.field("job/j", `{.status.conditions[?(@.type=="Failed")].message}`)
	if !strings.Contains(message, "failed with exit code 42 matching FailJob rule at index 0") || !strings.Contains(message,
		"Container c for pod "+a.ns+"/j-") {
		a.t.Errorf("the message is %q", message)
	}
	if got := a.field("job/j", "{.status.failed}"); got != "1" && got != "2" {
		a.t.Errorf("%s pods failed", got)
	}
}

// jobIgnoresEvictions evicts each pod once; the job has no failure to spend, yet
// it completes.
func jobIgnoresEvictions(a *apps) {
	host := a.t.(*testing.T).TempDir()
	a.make(strings.Replace(job("backoffLimit: 0\n  completionMode: Indexed\n  parallelism: 2\n  completions: 2\n  podFailurePolicy: "+
		"{rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}, {action: FailJob, onExitCodes: {operator: NotIn, "+
		"values: [0]}}]}", "Never",
		`if [ -e /keep/$JOB_COMPLETION_INDEX ]; then exit 0; fi; touch /keep/$JOB_COMPLETION_INDEX; exec sleep infinity`), "emptyDir: {}",
		"hostPath: {path: "+host+"}", 1))
	for _, p := range a.ready("job-name=j", 2) {
		a.until("the first run left its mark", func() string {
			if strings.Contains(a.k("exec", p.Name, "--", "ls", "/keep"), p.Annotations["batch.kubernetes.io/job-completion-index"]) {
				return ""
			}
			return "no mark"
		})
		a.evict(p.Name)
	}
	a.untilField("job/j", `{.status.succeeded}/{.status.failed}/{.status.conditions[?(@.type=="Complete")].status}`, "2//True")
}

func (a *apps) evict(pod string) {
	a.t.Helper()
	a.must(a.tryEvict(pod))
}

func (a *apps) tryEvict(pod string) error {
	body := []byte(fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, a.ns))
	return a.api.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces", a.ns, "pods", pod, "eviction").SetHeader("Content-Type",
		"application/json").Body(body).Do(a.ctx).Error()
}

func jobSuspend(a *apps) {
	a.make(job("suspend: true\n  parallelism: 1\n  completions: 1", "Never", "exec sleep infinity"))
	a.untilField("job/j", `{.status.conditions[?(@.type=="Suspended")].status}/{.status.startTime}`, "True/")
	a.k("patch", "job/j", "-p", `{"spec":{"suspend":false}}`)
	a.ready("job-name=j", 1)
	a.untilField("job/j", `{.status.conditions[?(@.type=="Suspended")].status}/{.status.active}/{.status.ready}`, "False/1/1")
	a.statusEndpoint("/apis/batch/v1", "jobs", "j")
	a.k("patch", "job/j", "-p", `{"spec":{"suspend":true}}`)
	a.until("its pods end", func() string { return names(a.pods(a.ns, "job-name=j")) })
	a.untilField("job/j", "{.status.startTime}", "")
	a.k("delete", "jobs", "-l", "kind=job")
	a.until("the job is gone", func() string { return a.field("jobs", "{.items[*].metadata.name}") })
}

func budgetBlocks(a *apps) {
	a.make(deployment("d", 3, "", pauseC))
	pods := a.ready("app=d", 3)
	a.make("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b, labels: {kind: budget}}\nspec: {minAvailable: 3, " +
		"selector: {matchLabels: {app: d}}}\n")
	a.untilField("pdb/b", "{.status.disruptionsAllowed}/{.status.currentHealthy}/{.status.desiredHealthy}/{.status.expectedPods}",
		"0/3/3/3")
	err := a.tryEvict(pods[0].Name)
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, "DisruptionBudget") {
		a.t.Errorf("the eviction answered %v, want 429 with the cause DisruptionBudget", err)
	}
	a.k("patch", "pdb/b", "--type=merge", "-p", `{"spec":{"minAvailable":null,"maxUnavailable":"30%"}}`)
	a.untilField("pdb/b", "{.status.disruptionsAllowed}/{.status.desiredHealthy}", "1/2")
	a.evict(pods[0].Name)
	if err := a.tryEvict(pods[1].Name); !apierrors.IsTooManyRequests(err) {
		a.t.Errorf("a second eviction at once answered %v, want 429", err)
	}
	a.ready("app=d", 3)
	a.untilField("pdb/b", "{.status.disruptionsAllowed}", "1")
	a.k("patch", "pdb/b", "--subresource=status", "--type=merge", "-p", `{"status":{"disruptedPods":{"nobody":"2020-01-01T00:00:00Z"}}}`)
	a.k("delete", "pdb", "-l", "kind=budget")
	a.evict(a.ready("app=d", 3)[1].Name)
}

// crons run beside the other subtests: their schedule has minutes.
type crons struct {
	*cluster
	began time.Time
}

// startCrons makes one CronJob for each policy; each starts a job a minute that
// lasts longer than a minute.
func startCrons(c *cluster) *crons {
	c.t.Helper()
	cr := &crons{cluster: c, began: time.Now()}
	c.kubectl("create", "namespace", "crons")
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
		c.apply(fmt.Sprintf(`
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
	a := &apps{cluster: cr.in(t), ns: "crons", ctx: context.Background(), api: cr.client}
	a.until("two jobs of one that allows them run at once", func() string {
		if n := len(a.live("cron=allow")); n < 2 {
			return fmt.Sprintf("%d", n)
		}
		return ""
	})
	jobs, err := a.api.BatchV1().Jobs("crons").List(a.ctx, metav1.ListOptions{})
	a.must(err)
	made := map[string]int{}
	for _, j := range jobs.Items {
		made[j.OwnerReferences[0].Name]++
		if j.Annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"] == "" {
			t.Errorf("job %s does not say for when it was made", j.Name)
		}
	}
	a.until("one that replaces has run its second job, alone", func() string {
		reasons := a.k("get", "events", "--field-selector=involvedObject.name=replace", "-o", "jsonpath={.items[*].reason}")
		if n := len(a.live("cron=replace")); n != 1 || strings.Count(reasons, "SuccessfulCreate") < 1 || !strings.Contains(reasons,
			"SuccessfulDelete") {
			return fmt.Sprintf("%d pods, events %s", n, reasons)
		}
		return ""
	})
	for _, name := range []string{"good", "bad"} {
		a.until("of the job of "+name+" only the last is kept", func() string {
			reasons := a.k("get", "events", "--field-selector=involvedObject.name="+name, "-o", "jsonpath={.items[*].reason}")
			var left int
			jobs, err := a.api.BatchV1().Jobs("crons").List(a.ctx, metav1.ListOptions{})
			a.must(err)
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
	a.untilField("cronjob/forbid", "{.status.active[0].kind}", "Job")
	a.k("patch", "cronjob/forbid", "--subresource=status", "--type=merge", "-p", `{"status":{"lastScheduleTime":"2020-01-01T00:00:00Z"}}`)
	now := int64(0)
	a.must(a.api.CoreV1().Pods("crons").DeleteCollection(a.ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	a.k("delete", "cronjob", "--all")
	a.until("their jobs and pods go with them", func() string {
		return a.field("jobs", "{.items[*].metadata.name}") + names(a.pods("crons", ""))
	})
}
