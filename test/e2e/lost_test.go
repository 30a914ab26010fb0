package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const staticPod = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default, labels: {app: static}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "berth.dev/toolbox:1", args: [sleep, "100000"]}
`

// movers are the workloads that run a pod elsewhere as soon as the old one is
// told to end; evicted are all whose pods leave an unreachable node.
var (
	movers  = []string{"deployment", "controller", "job", "cronjob"}
	evicted = append([]string{"statefulset", "patient", "forgiving", "volume"}, movers...)
)

// TestLostNode has three machines. One is cut off and plugged in again, one is
// cut off and its Node deleted before it comes back, and one is cut off and
// declared out of service. Each subtest is a cell of the table in
// docs/workloads.md: STATE/KIND.
func TestLostNode(t *testing.T) {
	l := newLost(t)
	l.unreachable(l.nodes[0])
	l.returned(l.nodes[0])
	l.deleted(l.nodes[1])
	l.registered(l.nodes[1])
	l.outOfService(l.nodes[2])
}

// lost is the room and what is known of its pods.
type lost struct {
	*room
	top *testing.T
	// before are the pods of the node that is lost, as they were.
	before map[string][]v1.Pod
	// failures is what each Job has to count by now.
	failures map[string]int32
}

func newLost(t *testing.T) *lost {
	driver := buildDriver(t)
	r := newRoom(t, "--node-monitor-grace-period", "4s", "--node-startup-grace-period", "10s", "--node-eviction-rate", "10")
	beat := filepath.Join(t.TempDir(), "agent.yaml")
	must(t, os.WriteFile(beat, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: "+
		"KubeletConfiguration\nnodeLeaseDurationSeconds: 4\n"), 0o644))
	for _, name := range []string{"a", "b", "c"} {
		r.machine(name).join("--agent-config", beat)
	}
	r.startDrivers(t, driver)
	manifests := lostKinds() + "\n---\n" + lostDriver
	for _, m := range r.nodes {
		manifests += lostVolume(m.name)
	}
	for _, m := range r.nodes[:2] {
		must(t, os.WriteFile(filepath.Join(m.dir, "agent", "manifests", "static.yaml"), []byte(staticPod), 0o644))
	}
	r.apply(manifests)
	// The schedule's time is before the CronJob's own: it looks as if it had run the day before.
	r.kubectl("patch", "cronjob", "cronjob", "--subresource=status", "--type=merge", "-p", `{"status":{"lastScheduleTime":"`+
		metav1.Now().UTC().AddDate(0, 0, -1).Add(-6e12).Format("2006-01-02T15:04:05Z")+`"}}`)
	for _, app := range append([]string{"daemonset"}, evicted...) {
		r.waitReady("default", "app="+app, 3)
	}
	r.waitReady("default", "app=static", 2)
	return &lost{room: r, top: t, failures: map[string]int32{}}
}

// cell is a subtest, whose name is a cell of the table.
func (l *lost) cell(state, kind string, check func()) {
	l.top.Run(state+"/"+kind, func(t *testing.T) {
		l.t = t
		defer func() { l.t = l.top }()
		check()
	})
}

// lose cuts a machine off and waits until the controllers know.
func (l *lost) lose(m *member) {
	l.before = l.on(m.name)
	for _, app := range append([]string{"statefulset", "daemonset", "volume"}, movers...) {
		if len(l.before[app]) == 0 && m == l.nodes[0] {
			l.t.Fatalf("node %s has no pod of the %s", m.name, app)
		}
	}
	m.cut()
	l.nodeIs(m.name, v1.ConditionUnknown, v1.TaintNodeUnreachable)
}

// unreachable shows what becomes of the pods of a node that is cut off.
func (l *lost) unreachable(m *member) {
	const state = "unreachable"
	l.lose(m)
	l.cell(state, "Pod", func() {
		l.eventually("every pod of the lost node is not ready", func() (bool, string) {
			for _, pods := range l.on(m.name) {
				for i := range pods {
					if podReady(&pods[i]) {
						return false, describe(&pods[i])
					}
				}
			}
			return true, ""
		})
	})
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "Job": "job",
		"CronJob": "cronjob"} {
		l.cell(state, kind, func() {
			l.ready(app, m.name, 3)
			l.ending(app, m.name)
			if app == "job" {
				l.counts("job", 3, 1)
			}
		})
	}
	l.cell(state, "CronJobNextRun", func() {
		// The next run goes by its schedule, whatever still ends on the lost node.
		first := l.jobsOf("cronjob")
		l.kubectl("patch", "cronjob", "cronjob", "-p", `{"spec":{"schedule":"`+longAgo(2)+`"}}`)
		l.eventually("a new Job in place of the old one", func() (bool, string) {
			now := l.jobsOf("cronjob")
			return len(now) == 1 && now[0] != first[0], fmt.Sprint(first, now)
		})
		l.ready("cronjob", m.name, 3)
		l.ending("cronjob", m.name)
	})
	l.cell(state, "StatefulSet", func() {
		l.ready("statefulset", m.name, 2)
		l.ending("statefulset", m.name)
	})
	l.cell(state, "JobThatWaits", func() {
		for _, name := range []string{"patient", "forgiving"} {
			l.ready(name, m.name, 2)
			l.ending(name, m.name)
			l.counts(name, 2, 0)
		}
	})
	l.cell(state, "DaemonSet", func() {
		l.daemons(2, 1, 2) // its pods do not tolerate the NoSchedule taint
		l.stays("daemonset", m.name)
	})
	l.cell(state, "StaticPod", func() { l.stays("static", m.name) })
	l.cell(state, "PodDisruptionBudget", func() {
		l.budget(2, 0)
		for _, p := range l.pods("default", "app=statefulset") {
			if p.Spec.NodeName == m.name {
				continue
			}
			err := l.client.PolicyV1().Evictions("default").Evict(l.t.Context(),
				&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
			if !apierrors.IsTooManyRequests(err) {
				l.t.Errorf("evicting %s says %v, want that there were too many", p.Name, err)
			}
		}
	})
	l.cell(state, "Volume", func() {
		l.ending("volume", m.name)
		// Even without the pod: the machine may still have it mounted.
		l.kubectl("delete", "pod", "volume-"+m.name, "--force", "--grace-period=0")
		if va := l.attachment(m.name); va == nil || va.DeletionTimestamp != nil || !va.Status.Attached || !m.mounted() {
			l.t.Errorf("the volume's attachment is %+v, want it kept as long as the node has it mounted", va)
		}
	})
}

// returned shows what becomes of them when it can be reached again.
func (l *lost) returned(m *member) {
	const state = "returned"
	replacements := map[string][]v1.Pod{}
	for _, app := range movers {
		replacements[app] = slices.DeleteFunc(l.pods("default", "app="+app), func(p v1.Pod) bool { return p.Spec.NodeName == m.name })
	}
	m.heal()
	l.nodeIs(m.name, v1.ConditionTrue, "")
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "Job": "job",
		"CronJob": "cronjob"} {
		l.cell(state, kind, func() {
			for _, p := range l.waitReady("default", "app="+app, 3) {
				if !slices.ContainsFunc(replacements[app], func(r v1.Pod) bool { return r.UID == p.UID }) {
					l.t.Errorf("%s is none of those that replaced the lost one", p.Name)
				}
			}
			if app == "job" {
				l.counts("job", 3, 1)
			}
		})
	}
	l.failures = map[string]int32{"job": 1, "patient": 1, "forgiving": 0}
	l.cell(state, "JobThatWaits", func() {
		for _, name := range []string{"patient", "forgiving"} {
			l.waitReady("default", "app="+name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "StatefulSet", func() {
		for _, p := range l.waitReady("default", "app=statefulset", 3) {
			if p.UID == l.before["statefulset"][0].UID {
				l.t.Errorf("%s is the one that was told to end", p.Name)
			}
		}
	})
	for kind, app := range map[string]string{"DaemonSet": "daemonset", "StaticPod": "static"} {
		l.cell(state, kind, func() { l.outlived(app, m.name, true) })
	}
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.eventually("the volume is unmounted and detached", func() (bool, string) {
			va := l.attachment(m.name)
			return va == nil && !m.mounted(), fmt.Sprintf("%+v, mounted %t", va, m.mounted())
		})
	})
	l.cell(state, "Containers", func() { l.ended(m, evicted) })
}

// deleted shows what becomes of the pods of a node that is cut off and whose
// Node is then deleted.
func (l *lost) deleted(m *member) {
	const state = "deleted"
	l.lose(m)
	for _, name := range []string{"job", "patient"} {
		l.failures[name] += int32(len(l.before[name]))
	}
	l.kubectl("delete", "node", m.name)
	l.cell("tainted", "DaemonSet", func() { l.drill(l.nodes[0].name) }) // pods of the lost node go after 40 s
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "CronJob": "cronjob",
		"StatefulSet": "statefulset"} {
		l.cell(state, kind, func() { l.settled(app, m.name, 3) })
	}
	l.cell(state, "Job", func() {
		l.settled("job", m.name, 3)
		l.counts("job", 3, l.failures["job"])
	})
	l.cell(state, "JobThatWaits", func() {
		for _, name := range []string{"patient", "forgiving"} {
			l.settled(name, m.name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "DaemonSet", func() {
		l.settled("daemonset", m.name, 2)
		l.daemons(2, 0, 2)
	})
	l.cell(state, "StaticPod", func() { l.settled("static", m.name, 1) })
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.eventually("the volume of the deleted node is detached", func() (bool, string) {
			va := l.attachment(m.name)
			return va == nil, fmt.Sprintf("%+v", va)
		})
	})
}

// registered shows what its return does then.
func (l *lost) registered(m *member) {
	const state = "registered"
	m.heal()
	l.nodeIs(m.name, v1.ConditionTrue, "")
	l.cell(state, "DaemonSet", func() {
		l.waitReady("default", "app=daemonset", 3)
		l.daemons(3, 0, 3)
	})
	l.cell(state, "StaticPod", func() {
		l.waitReady("default", "app=static", 2)
		l.outlived("static", m.name, false)
	})
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "CronJob": "cronjob",
		"StatefulSet": "statefulset"} {
		l.cell(state, kind, func() { l.waitReady("default", "app="+app, 3) })
	}
	l.cell(state, "Job", func() {
		for _, name := range []string{"job", "patient", "forgiving"} {
			l.waitReady("default", "app="+name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.eventually("the volume is unmounted", func() (bool, string) { return !m.mounted(), "still mounted" })
	})
	l.cell(state, "Containers", func() { l.ended(m, append([]string{"daemonset"}, evicted...)) })
}

// outOfService shows what becomes of the pods of a node that is cut off and
// declared dead by its taint, and what its return does then.
func (l *lost) outOfService(m *member) {
	const state = "outOfService"
	l.lose(m)
	for _, name := range []string{"job", "patient"} {
		l.failures[name] += int32(len(l.before[name]))
	}
	l.kubectl("taint", "nodes", m.name, v1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "CronJob": "cronjob",
		"StatefulSet": "statefulset"} {
		l.cell(state, kind, func() { l.settled(app, m.name, 3) })
	}
	l.cell(state, "Job", func() {
		for _, name := range []string{"job", "patient", "forgiving"} {
			l.settled(name, m.name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "DaemonSet", func() {
		l.settled("daemonset", m.name, 2)
		l.daemons(2, 0, 2)
	})
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.eventually("the volume is detached though it is mounted", func() (bool, string) {
			va := l.attachment(m.name)
			return va == nil, fmt.Sprintf("%+v", va)
		})
		if !m.mounted() {
			l.t.Error("the machine that is cut off has unmounted the volume: nothing was shown")
		}
	})
	m.heal()
	l.kubectl("taint", "nodes", m.name, v1.TaintNodeOutOfService+"-")
	l.nodeIs(m.name, v1.ConditionTrue, "")
	l.cell(state, "Return", func() {
		l.waitReady("default", "app=daemonset", 3)
		l.eventually("the volume is unmounted", func() (bool, string) { return !m.mounted(), "still mounted" })
		l.ended(m, append([]string{"daemonset"}, evicted...))
	})
}

// drill taints a node that is well. Only the DaemonSet does not tolerate it.
func (l *lost) drill(node string) {
	old := l.on(node)["daemonset"][0]
	l.kubectl("taint", "nodes", node, drill+":NoSchedule")
	l.eventually("the pod of the DaemonSet counts as out of place", func() (bool, string) {
		d, err := l.client.AppsV1().DaemonSets("default").Get(l.t.Context(), "daemonset", metav1.GetOptions{})
		must(l.t, err)
		return d.Status.NumberMisscheduled > 0, fmt.Sprintf("%+v", d.Status)
	})
	if now := l.on(node)["daemonset"]; len(now) != 1 || now[0].UID != old.UID || now[0].DeletionTimestamp != nil {
		l.t.Errorf("a NoSchedule taint changed the pod of the DaemonSet: %d pods", len(now))
	}
	l.kubectl("taint", "nodes", node, drill+":NoExecute")
	l.eventually("the pod of the DaemonSet goes", func() (bool, string) {
		return len(l.on(node)["daemonset"]) == 0, "it is there"
	})
	l.kubectl("taint", "nodes", node, drill+"-")
	l.eventually("the DaemonSet has a pod there again", func() (bool, string) {
		now := l.on(node)["daemonset"]
		return len(now) == 1 && podReady(&now[0]), fmt.Sprint(len(now))
	})
}

// ready waits until so many pods of a workload are ready on other nodes.
func (l *lost) ready(app, node string, want int) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%d pods of the %s run elsewhere", want, app), func() (bool, string) {
		n, words := 0, []string{}
		for _, p := range l.pods("default", "app="+app) {
			words = append(words, p.Spec.NodeName+" "+describe(&p))
			if p.Spec.NodeName != node && podReady(&p) && p.DeletionTimestamp == nil {
				n++
			}
		}
		return n == want, strings.Join(words, "; ")
	})
}

// settled waits until a workload has so many pods, all ready, none on the node.
func (l *lost) settled(app, node string, want int) {
	l.t.Helper()
	for _, p := range l.waitReady("default", "app="+app, want) {
		if p.Spec.NodeName == node {
			l.t.Errorf("%s runs on the lost node %s", p.Name, node)
		}
	}
}

// ending waits until the lost node's pod of a workload, the same as before, was
// told to end and why.
func (l *lost) ending(app, node string) {
	l.t.Helper()
	l.eventually("the lost pod of the "+app+" is told to end", func() (bool, string) {
		pods := l.on(node)[app]
		if len(pods) != 1 {
			return false, fmt.Sprintf("%d pods", len(pods))
		}
		p := &pods[0]
		return p.UID == l.before[app][0].UID && p.DeletionTimestamp != nil && hasDisruption(p), fmt.Sprintf("%s, conditions %+v",
			describe(p), p.Status.Conditions)
	})
}

// stays checks that the lost node's pod is the one of before, not ready, and
// not told to end.
func (l *lost) stays(app, node string) {
	l.t.Helper()
	pods := l.on(node)[app]
	if len(pods) != 1 || pods[0].UID != l.before[app][0].UID || pods[0].DeletionTimestamp != nil || podReady(&pods[0]) {
		l.t.Errorf("pods of the %s on the lost node: %+v, want the one of before, not ready", app, pods)
	}
}

// outlived waits until the node's pod is ready in the container of before; same
// says that the object in the API is the one of before, too.
func (l *lost) outlived(app, node string, same bool) {
	l.t.Helper()
	old := l.before[app][0]
	l.eventually("the pod of the "+app+" is ready in its old container", func() (bool, string) {
		pods := l.on(node)[app]
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return false, fmt.Sprintf("%d pods", len(pods))
		}
		p := &pods[0]
		return podReady(p) && (p.UID == old.UID) == same &&
				p.Status.ContainerStatuses[0].ContainerID == old.Status.ContainerStatuses[0].ContainerID,
			describe(p) + " " + p.Status.ContainerStatuses[0].ContainerID
	})
}

// ended waits until no container of the pods of before is left on the machine.
func (l *lost) ended(m *member, apps []string) {
	l.t.Helper()
	machine := &cluster{t: l.t, dir: m.dir}
	l.eventually("no container of the pods that left runs on "+m.name, func() (bool, string) {
		running := machine.containerPIDs()
		if len(running) == 0 {
			return false, "no container at all"
		}
		for _, app := range apps {
			for _, p := range l.before[app] {
				for _, c := range p.Status.ContainerStatuses {
					if pid, runs := running[strings.TrimPrefix(c.ContainerID, "containerd://")]; runs {
						return false, fmt.Sprintf("%s of %s is process %d", c.ContainerID, p.Name, pid)
					}
				}
			}
		}
		return true, ""
	})
}

// counts waits until a Job has so many pods that run, and so many failures.
func (l *lost) counts(name string, active, failed int32) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("Job %s has %d active and %d failed", name, active, failed), func() (bool, string) {
		j, err := l.client.BatchV1().Jobs("default").Get(l.t.Context(), name, metav1.GetOptions{})
		must(l.t, err)
		return j.Status.Active == active && j.Status.Failed == failed, fmt.Sprintf("%+v", j.Status)
	})
}

// jobsOf names the Jobs of a CronJob that are not over.
func (l *lost) jobsOf(cron string) (names []string) {
	l.t.Helper()
	list, err := l.client.BatchV1().Jobs("default").List(l.t.Context(), metav1.ListOptions{})
	must(l.t, err)
	for _, j := range list.Items {
		over := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete ||
				c.Type == batchv1.JobFailed
		})
		if owner := metav1.GetControllerOf(&j); owner != nil && owner.Name == cron && !over && j.DeletionTimestamp == nil {
			names = append(names, j.Name)
		}
	}
	return names
}

// daemons waits until the DaemonSet counts so many nodes that should have its
// pod, that have it and should not, and whose pod is ready.
func (l *lost) daemons(desired, misplaced, ready int32) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("the DaemonSet wants %d pods, has %d out of place and %d ready", desired, misplaced, ready),
		func() (bool, string) {
			d, err := l.client.AppsV1().DaemonSets("default").Get(l.t.Context(), "daemonset", metav1.GetOptions{})
			must(l.t, err)
			return d.Status.DesiredNumberScheduled == desired && d.Status.NumberMisscheduled == misplaced && d.Status.NumberReady == ready,
				fmt.Sprintf("%+v", d.Status)
		})
}

func (l *lost) budget(healthy, allowed int32) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("the budget counts %d healthy pods and allows %d disruptions", healthy, allowed), func() (bool, string) {
		b, err := l.client.PolicyV1().PodDisruptionBudgets("default").Get(l.t.Context(), "statefulset", metav1.GetOptions{})
		must(l.t, err)
		return b.Status.CurrentHealthy == healthy && b.Status.DisruptionsAllowed == allowed, fmt.Sprintf("%+v", b.Status)
	})
}

// on lists the pods bound to a node by their app label.
func (r *room) on(node string) map[string][]v1.Pod {
	r.t.Helper()
	out := map[string][]v1.Pod{}
	for _, p := range r.pods(metav1.NamespaceDefault, "app") {
		if p.Spec.NodeName == node {
			out[p.Labels["app"]] = append(out[p.Labels["app"]], p)
		}
	}
	return out
}

// nodeIs waits until a node's Ready condition has the status, and it has the
// NoExecute taint; an empty taint: none.
func (r *room) nodeIs(name string, ready v1.ConditionStatus, taint string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("node %s Ready=%s, taint %q", name, ready, taint), func() (bool, string) {
		n, err := r.client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
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
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget &&
			c.Status == v1.ConditionTrue
	})
}
