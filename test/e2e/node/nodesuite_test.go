package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestNodeSuite asks, on real containers, what upstream's suite asks of pods
// and of the node below them and what TestPodFeatures does not show already.
// See docs/conformance.md for which upstream test each subtest stands for.
func TestNodeSuite(t *testing.T) {
	kit.OnlyInAll(t, "212 s, the longest")
	c := kit.NewCluster(t)
	c.Up()
	c.RunPods(t, featurePods(t, "nodesuite.yaml", strings.NewReplacer("image: T", "image: berth.dev/toolbox:1")))
	for _, group := range [][]kit.Subtest{podLifeTests, podAPITests, hookTests, resizeTests, nodeAPITests} {
		for _, step := range group {
			t.Run(step.Name, func(t *testing.T) {
				ns := strings.ToLower(strings.NewReplacer("/", "-", " ", "-", ",", "").Replace(step.Name))
				step.Run(kit.NewNamespace(t, c, ns))
			})
		}
	}
}

var podLifeTests = []kit.Subtest{
	{Name: "statuses of quick pods", Run: testQuickPods},
	{Name: "statuses around init containers", Run: testInitStatuses},
	{Name: "all containers restart", Run: testRestartAll},
	{Name: "evicted pods are terminal", Run: testEvicted},
	{Name: "generations", Run: testGenerations},
	{Name: "rejected pods keep their class", Run: testRejected},
	{Name: "readiness while a pod ends", Run: testReadinessAtTheEnd},
	{Name: "deleted pods and their volumes", Run: testDeletedVolumes},
}

// create makes a pod of a manifest in the test's namespace.
func create(a *kit.Namespace, manifest string) *v1.Pod {
	a.T.Helper()
	p, err := tryCreate(a, manifest)
	a.Must(err)
	return p
}

func tryCreate(a *kit.Namespace, manifest string) (*v1.Pod, error) {
	a.T.Helper()
	p := &v1.Pod{}
	a.Must(yaml.UnmarshalStrict([]byte(manifest), p))
	return a.API.CoreV1().Pods(a.Name).Create(a.Ctx, p, metav1.CreateOptions{})
}

func getPod(a *kit.Namespace, name string) *v1.Pod {
	a.T.Helper()
	p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, name, metav1.GetOptions{})
	a.Must(err)
	return p
}

// podUntil waits until wrong has nothing to say of a pod, and returns the pod.
func podUntil(a *kit.Namespace, name, what string, wrong func(*v1.Pod) string) *v1.Pod {
	a.T.Helper()
	var last *v1.Pod
	a.Until(name+" "+what, func() string {
		p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		last = p
		if w := wrong(p); w != "" {
			return w + ": " + kit.Describe(p)
		}
		return ""
	})
	return last
}

func podRuns(a *kit.Namespace, name string) *v1.Pod {
	a.T.Helper()
	return podUntil(a, name, "is ready", func(p *v1.Pod) string {
		if !kit.PodReady(p) {
			return "not ready"
		}
		return ""
	})
}

func podGone(a *kit.Namespace, name string) {
	a.T.Helper()
	a.Until(name+" is gone", func() string {
		p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint(err, kit.Describe(p))
	})
}

// history follows a pod from its creation until it is deleted or over says so;
// check sees each version and says what is wrong with it, given the one before.
func history(a *kit.Namespace, p *v1.Pod, during func(), over func(*v1.Pod) bool, check func(before, now *v1.Pod) string) {
	a.T.Helper()
	w, err := a.API.CoreV1().Pods(a.Name).Watch(a.Ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name,
		ResourceVersion: p.ResourceVersion})
	a.Must(err)
	defer w.Stop()
	during()
	before := p
	for deadline := time.After(kit.Timeout); ; {
		select {
		case e, ok := <-w.ResultChan():
			now, isPod := e.Object.(*v1.Pod)
			if !ok || !isPod {
				a.T.Fatalf("%s: the watch ended: %v", p.Name, e)
			}
			if wrong := check(before, now); wrong != "" {
				a.T.Errorf("%s: %s; before: %+v; now: %+v", p.Name, wrong, before.Status, now.Status)
			}
			if e.Type == "DELETED" || over(now) {
				return
			}
			before = now
		case <-deadline:
			a.T.Fatalf("%s: not over in time: %s", p.Name, kit.Describe(before))
		}
	}
}

// testQuickPods deletes pods that fail at once at different moments of their
// start. No status may tell of a success, of a container that nobody started,
// or go back.
func testQuickPods(a *kit.Namespace) {
	const one = `{name: %s, image: berth.dev/toolbox:1, command: [sh, -c, exit 1], resources: {requests: {cpu: 5m, memory: 10Mi}}}`
	fail := fmt.Sprintf("containers: ["+one+"]", "fail")
	initFail := fmt.Sprintf("initContainers: ["+one+"], containers: [{name: blocked, image: berth.dev/toolbox:1}]", "fail")
	for moment, reached := range map[string]func(*v1.Pod) bool{
		"at-once": func(*v1.Pod) bool { return true },
		"bound":   func(p *v1.Pod) bool { return p.Spec.NodeName != "" },
		"sandbox": func(p *v1.Pod) bool { return conditionIs(p, v1.PodReadyToStartContainers) },
		"begun": func(p *v1.Pod) bool {
			return p.Status.Phase != v1.PodPending || kit.ContainerStatus(p, "fail").State.Terminated != nil
		},
	} {
		for kind, containers := range map[string]string{"fail": fail, "init": initFail} {
			p := create(a, fmt.Sprintf("{metadata: {name: %s-%s}, spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1, %s}}",
				kind,
				moment, containers))
			history(a, p, func() {
				podUntil(a, p.Name, moment, func(p *v1.Pod) string {
					if reached(p) {
						return ""
					}
					return "not yet"
				})
				a.Must(a.API.CoreV1().Pods(a.Name).Delete(a.Ctx, p.Name, metav1.DeleteOptions{}))
			}, func(*v1.Pod) bool { return false }, wrongQuickStatus)
		}
	}
}

func conditionIs(p *v1.Pod, kind v1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func wrongQuickStatus(before, now *v1.Pod) string {
	fail, blocked := kit.ContainerStatus(now, "fail"), kit.ContainerStatus(now, "blocked")
	was := kit.ContainerStatus(before, "fail")
	t := fail.State.Terminated
	over := func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded }
	switch {
	case blocked.Name != "" && (blocked.Started != nil && *blocked.Started || blocked.LastTerminationState.Terminated != nil ||
		blocked.State.Waiting == nil && now.DeletionTimestamp == nil):
		return "the blocked container was started"
	case was.State.Terminated != nil && t == nil:
		return "a terminated container came back"
	case t != nil && t.ExitCode != 1 && (t.ExitCode != 137 || t.Reason != "ContainerStatusUnknown" && t.Reason != "Error"):
		return fmt.Sprintf("exit code %d, %s", t.ExitCode, t.Reason)
	case t != nil && t.ExitCode == 1 && (t.StartedAt.IsZero() || t.FinishedAt.IsZero()):
		return "no times"
	case over(before) && !over(now):
		return "a terminal phase went back"
	case now.Status.Phase == v1.PodSucceeded:
		return "succeeded"
	}
	return ""
}

// testInitStatuses: while init containers run, nothing after them is more than
// initializing; the conditions and messages on the way are exact.
func testInitStatuses(a *kit.Namespace) {
	waits := func(p *v1.Pod, names ...string) string {
		for _, n := range names {
			if s := kit.ContainerStatus(p, n); s.Name != "" && (s.State.Waiting == nil || s.State.Waiting.Reason != "PodInitializing") {
				return n + " is not PodInitializing but " + kit.StateOf(s)
			}
		}
		return ""
	}
	condition := func(p *v1.Pod) string {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodInitialized {
				return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
			}
		}
		return "none"
	}
	const again = `{metadata: {name: again}, spec: {terminationGracePeriodSeconds: 0, initContainers: [{name: init1, image: ` +
		`berth.dev/toolbox:1, command: [sh, -c, exit 1]},
		{name: init2, image: berth.dev/toolbox:1, command: [id]}], containers: [{name: run1, image: berth.dev/pause:1}]}}`
	history(a, create(a, again), func() {}, func(p *v1.Pod) bool { return kit.ContainerStatus(p, "init1").RestartCount >= 2 },
		func(_, p *v1.Pod) string {
			if s := kit.ContainerStatus(p, "init1"); s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
				return "init1 succeeded"
			}
			return waits(p, "init2", "run1")
		})
	if p := getPod(a, "again"); condition(p) != "False ContainersNotInitialized containers with incomplete status: [init1 init2]" ||
		p.Status.Phase != v1.PodPending || kit.ContainerStatus(p, "init1").LastTerminationState.Terminated == nil {
		a.T.Errorf("after two restarts: %s %s", p.Status.Phase, condition(p))
	}
	const never = `{metadata: {name: never}, spec: {restartPolicy: Never, initContainers: [{name: init1, image: berth.dev/toolbox:1, ` +
		`command: [id]},
		{name: init2, image: berth.dev/toolbox:1, command: [sh, -c, exit 1]}], containers: [{name: run1, image: berth.dev/toolbox:1, ` +
		`command: [id]}]}}`
	history(a, create(a, never), func() {}, func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed },
		func(_, p *v1.Pod) string { return waits(p, "run1") })
	if p := getPod(a, "never"); condition(p) != "False ContainersNotInitialized containers with incomplete status: [init2]" ||
		len(p.Status.InitContainerStatuses) != 2 {
		a.T.Errorf("failed: %s", condition(p))
	}
	for policy, phase := range map[string]v1.PodPhase{"Always": v1.PodRunning, "Never": v1.PodSucceeded} {
		name := "good-" + strings.ToLower(policy)
		command := "pause"
		if policy == "Never" {
			command = "id"
		}
		p := create(a, fmt.Sprintf(`{metadata: {name: %s}, spec: {restartPolicy: %s, terminationGracePeriodSeconds: 0, initContainers: `+
			`[{name: init1, image: berth.dev/toolbox:1, command: [id]},
			{name: init2, image: berth.dev/toolbox:1, command: [id]}], containers: [{name: run1, image: berth.dev/toolbox:1, command: `+
			`[%s]}]}}`, name, policy, command))
		history(a, p, func() {}, func(p *v1.Pod) bool { return p.Status.Phase == phase }, func(_, p *v1.Pod) string {
			if kit.ContainerStatus(p, "init2").State.Terminated == nil {
				return waits(p, "run1")
			}
			return ""
		})
		now := getPod(a, name)
		for _, s := range now.Status.InitContainerStatuses {
			if !s.Ready || s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
				a.T.Errorf("%s: %+v", name, s)
			}
		}
		if !strings.HasPrefix(condition(now), "True") {
			a.T.Errorf("%s: initialized is %s", name, condition(now))
		}
	}
}

// testRestartAll: an exit that a rule names restarts every container in place,
// whichever kind the one that exited is of.
func testRestartAll(a *kit.Namespace) {
	const rules = `restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]`
	const once = `"if [ -e /w/done ]; then %s; else touch /w/done; exit 42; fi"`
	c := func(name, command, rest string) string {
		return fmt.Sprintf(`{name: %s, image: berth.dev/toolbox:1, command: [sh, -c, %s], volumeMounts: [{name: w, mountPath: /w}]%s}`,
			name, command, rest)
	}
	for _, tt := range []struct{ name, init, main, all string }{
		{"regular", c("init", "id", "") + "," + c("sidecar", "pause", ", restartPolicy: Always"),
			c("source", fmt.Sprintf(once, "pause"), ", restartPolicy: Never, "+rules) + "," + c("regular", "pause", ""),
			"init sidecar source regular"},
		{"sidecar", c("init", "id", "") + "," + c("sidecar", "pause", ", restartPolicy: Always") + "," + c("source",
			`"if [ -e /w/done ]; then pause; else touch /w/done; sleep 1; exit 42; fi"`, ", restartPolicy: Always, "+rules),
			c("regular", "pause", ""), "init sidecar source regular"},
		{"init", c("sidecar", "pause", ", restartPolicy: Always") + "," + c("init", "id", "") + "," + c("source",
			fmt.Sprintf(once, "exit 0"), ", restartPolicy: Never, "+rules),
			c("regular", "pause", ""), "init sidecar source"},
		{"again", "", c("source", `"if [ -e /w/done ]; then pause; elif [ -e /w/one ]; then touch /w/done; exit 42; else touch /w/one; `+
			`exit 1; fi"`, ", restartPolicy: Always, "+rules) + "," + c("regular", "pause", ""), "source regular"},
	} {
		create(a, fmt.Sprintf(`{metadata: {name: %s}, spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0, volumes: [{name: w, `+
			`emptyDir: {}}], initContainers: [%s], containers: [%s]}}`, tt.name, tt.init, tt.main))
		podUntil(a, tt.name, "restarted all", func(p *v1.Pod) string {
			for _, n := range strings.Fields(tt.all) {
				if s := kit.ContainerStatus(p, n); s.RestartCount == 0 || s.LastTerminationState.Terminated == nil {
					return fmt.Sprintf("%s did not restart or has no last state: %+v", n, s)
				}
			}
			if s := kit.ContainerStatus(p, "regular"); kit.StateOf(s) != "running" {
				return "regular is " + kit.StateOf(s)
			}
			return ""
		})
	}
}

func testEvicted(a *kit.Namespace) {
	create(a, `{metadata: {name: greedy}, spec: {restartPolicy: OnFailure, terminationGracePeriodSeconds: 1, containers: [{name: c, `+
		`image: berth.dev/toolbox:1,
		command: [sh, -c, "fill /f 10; pause"], resources: {limits: {ephemeral-storage: 5Mi}}}]}}`)
	p := podUntil(a, "greedy", "is evicted", func(p *v1.Pod) string {
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" {
			return "not yet"
		}
		return ""
	})
	if s := kit.StateOf(kit.ContainerStatus(p, "c")); !strings.HasPrefix(s, "terminated") {
		a.T.Errorf("the container of an evicted pod is %s: %s", s, kit.Describe(p))
	}
}

// testGenerations: the generation counts changes of the spec and nothing else;
// the status follows it.
func testGenerations(a *kit.Namespace) {
	p := create(a, `{metadata: {name: counted, generation: 100}, spec: {terminationGracePeriodSeconds: -1, initContainers: [{name: i, `+
		`image: berth.dev/toolbox:1, command: [id]}],
		containers: [{name: c, image: berth.dev/toolbox:1, command: [pause]}]}}`)
	if p.Generation != 1 || *p.Spec.TerminationGracePeriodSeconds != 1 {
		t := a.T
		t.Errorf("a new pod has generation %d, grace %d", p.Generation, *p.Spec.TerminationGracePeriodSeconds)
	}
	podRuns(a, "counted")
	want := int64(1)
	for _, c := range []struct {
		patch string
		bump  bool
	}{
		{`{}`, false}, {`{"spec":{"tolerations":[{"key":"foo","operator":"Exists","effect":"NoSchedule"}]}}`, true},
		{`{"spec":{"activeDeadlineSeconds":5000}}`, true},
		{`{"spec":{"containers":[{"name":"c","image":"berth.dev/pause:1"}]}}`, true},
		{`{"spec":{"initContainers":[{"name":"i","image":"berth.dev/pause:1"}]}}`, true},
		{`{"metadata":{"annotations":{"key":"value"}}}`, false}, {`{"metadata":{"generation":1}}`, false},
		{`{"spec":{"terminationGracePeriodSeconds":-1}}`, false},
	} {
		if c.bump {
			want++
		}
		a.K("patch", "pod", "counted", "-p", c.patch)
		if p := getPod(a, "counted"); p.Generation != want || *p.Spec.TerminationGracePeriodSeconds != 1 {
			a.T.Errorf("after %s: generation %d, want %d; grace %d", c.patch, p.Generation, want, *p.Spec.TerminationGracePeriodSeconds)
		}
	}
	podUntil(a, "counted", "observed it", func(p *v1.Pod) string {
		if p.Status.ObservedGeneration != want {
			return fmt.Sprint(p.Status.ObservedGeneration)
		}
		for _, c := range p.Status.Conditions {
			if c.ObservedGeneration == 0 {
				return fmt.Sprint(c)
			}
		}
		return ""
	})
	create(a, `{metadata: {name: going, finalizers: [e2e.example.com/hold]}, spec: {containers: [{name: c, image: berth.dev/toolbox:1, `+
		`command: [pause]}]}}`)
	podRuns(a, "going")
	a.K("delete", "pod", "going", "--grace-period=60", "--wait=false")
	if g := getPod(a, "going").Generation; g != 2 {
		a.T.Errorf("a pod that is being deleted has generation %d", g)
	}
	a.K("patch", "pod", "going", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	podGone(a, "going")
}

// testRejected: a pod that no node has room for, bound all the same, is refused
// with the status it had.
func testRejected(a *kit.Namespace) {
	create(a, `{metadata: {name: huge}, spec: {containers: [{name: c, image: berth.dev/pause:1, resources: {requests: {cpu: `+
		`"1000000000000"}}}]}}`)
	p := podUntil(a, "huge", "is unschedulable", func(p *v1.Pod) string {
		if len(p.Status.Conditions) == 0 {
			return "no condition"
		}
		return ""
	})
	if c := p.Status.Conditions; len(c) != 1 || c[0].Type != v1.PodScheduled || c[0].Reason != "Unschedulable" ||
		c[0].ObservedGeneration != 1 {
		a.T.Errorf("the conditions are %+v", c)
	}
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID},
		Target: v1.ObjectReference{Kind: "Node", Name: a.NodeName()}}
	a.Must(a.API.CoreV1().Pods(a.Name).Bind(a.Ctx, binding, metav1.CreateOptions{}))
	got := podUntil(a, "huge", "is refused", func(p *v1.Pod) string {
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "OutOfcpu" {
			return "not yet"
		}
		return ""
	})
	if got.Status.QOSClass != p.Status.QOSClass || got.Generation != 1 || got.Status.ObservedGeneration != 1 {
		a.T.Errorf("class %s, was %s; generation %d, observed %d: %+v", got.Status.QOSClass, p.Status.QOSClass, got.Generation,
			got.Status.ObservedGeneration, got.Status)
	}
}

// testReadinessAtTheEnd: while a pod ends, a container that ended is not ready
// and one that still works is; a readiness probe goes on, a liveness probe not.
func testReadinessAtTheEnd(a *kit.Namespace) {
	create(a, `{metadata: {name: two}, spec: {terminationGracePeriodSeconds: 600, containers: [{name: quick, image: berth.dev/toolbox:1, `+
		`command: [pause]},
		{name: slow, image: berth.dev/toolbox:1, command: [pause], lifecycle: {preStop: {sleep: {seconds: 500}}}}]}}`)
	create(a, `{metadata: {name: probed}, spec: {terminationGracePeriodSeconds: 30, volumes: [{name: w, emptyDir: {}}], containers: `+
		`[{name: c, image: berth.dev/toolbox:1, command: [sh, -c, touch /w/ready; pause],
		volumeMounts: [{name: w, mountPath: /w}], lifecycle: {preStop: {exec: {command: [sh, -c, "rm /w/ready; sleep 4"]}}},
		readinessProbe: {exec: {command: [cat, /w/ready]}, failureThreshold: 1, periodSeconds: 1}, livenessProbe: {exec: {command: [cat, `+
		`/w/ready]}, initialDelaySeconds: 1, failureThreshold: 1, periodSeconds: 1}}]}}`)
	podRuns(a, "two")
	probed := podRuns(a, "probed")
	a.K("delete", "pod", "two", "probed", "--wait=false")
	podUntil(a, "probed", "is not ready", func(p *v1.Pod) string {
		if kit.PodReady(p) {
			return "ready"
		}
		return ""
	})
	podUntil(a, "two", "has one ready container", func(p *v1.Pod) string {
		if kit.ContainerStatus(p, "quick").Ready || !kit.ContainerStatus(p, "slow").Ready {
			return "not yet"
		}
		return ""
	})
	podGone(a, "probed")
	if s := kit.ContainerStatus(getPod(a, "two"), "slow"); !s.Ready || kit.StateOf(s) != "running" {
		a.T.Errorf("the slow container is %s, ready %v", kit.StateOf(s), s.Ready)
	}
	if wrong := kit.Unmatched("event", "! failed liveness probe", a.PodEvents(probed)); len(wrong) > 0 {
		a.T.Error(wrong)
	}
	a.K("delete", "pod", "two", "--grace-period=0", "--force")
	podGone(a, "two")
}
