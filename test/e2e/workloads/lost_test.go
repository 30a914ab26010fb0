package workloads

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

	"github.com/berth-dev/berth/test/e2e/kit"
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

// TestLostNode has three hosts. One is cut off and plugged in again, one is
// cut off and its Node deleted before it comes back, and one is cut off and
// declared out of service. Each subtest is a cell of the table in
// docs/workloads.md: STATE/KIND.
func TestLostNode(t *testing.T) {
	kit.OnlyInAll(t, "113 s; other tests of this tier kill and restart nodes")
	l := newLost(t)
	l.unreachable(l.Nodes[0])
	l.returned(l.Nodes[0])
	l.deleted(l.Nodes[1])
	l.registered(l.Nodes[1])
	l.outOfService(l.Nodes[2])
}

// lost is the room and what is known of its pods.
type lost struct {
	*kit.Hosts
	top *testing.T
	// before are the pods of the node that is lost, as they were.
	before map[string][]v1.Pod
	// failures is what each Job has to count by now.
	failures map[string]int32
}

func newLost(t *testing.T) *lost {
	driver := kit.Tools{}.Build(t, "./csihostpath")
	r := kit.NewHosts(t, "--node-monitor-grace-period", "4s", "--node-startup-grace-period", "10s", "--node-eviction-rate", "10")
	beat := filepath.Join(t.TempDir(), "agent.yaml")
	kit.Must(t, os.WriteFile(beat, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: "+
		"KubeletConfiguration\nnodeLeaseDurationSeconds: 4\n"), 0o644))
	for _, name := range []string{"a", "b", "c"} {
		r.AddHost(name).Join("--agent-config", beat)
	}
	startDrivers(r, t, driver)
	manifests := lostKinds() + "\n---\n" + lostDriver
	for _, m := range r.Nodes {
		manifests += lostVolume(m.Name)
	}
	for _, m := range r.Nodes[:2] {
		kit.Must(t, os.WriteFile(filepath.Join(m.Dir, "agent", "manifests", "static.yaml"), []byte(staticPod), 0o644))
	}
	r.Apply(manifests)
	// The schedule's time is before the CronJob's own: it looks as if it had
	// run the day before.
	r.Kubectl("patch", "cronjob", "cronjob", "--subresource=status", "--type=merge", "-p", `{"status":{"lastScheduleTime":"`+
		metav1.Now().UTC().AddDate(0, 0, -1).Add(-6e12).Format("2006-01-02T15:04:05Z")+`"}}`)
	for _, app := range append([]string{"daemonset"}, evicted...) {
		r.WaitReady("default", "app="+app, 3)
	}
	r.WaitReady("default", "app=static", 2)
	return &lost{Hosts: r, top: t, failures: map[string]int32{}}
}

// cell is a subtest, whose name is a cell of the table.
func (l *lost) cell(state, kind string, check func()) {
	l.top.Run(state+"/"+kind, func(t *testing.T) {
		l.T = t
		defer func() { l.T = l.top }()
		check()
	})
}

// lose cuts a host off and waits until the controllers know.
func (l *lost) lose(m *kit.Host) {
	l.before = on(l.Hosts, m.Name)
	for _, app := range append([]string{"statefulset", "daemonset", "volume"}, movers...) {
		if len(l.before[app]) == 0 && m == l.Nodes[0] {
			l.T.Fatalf("node %s has no pod of the %s", m.Name, app)
		}
	}
	unplug(m)
	nodeIs(l.Hosts, m.Name, v1.ConditionUnknown, v1.TaintNodeUnreachable)
}

// unreachable shows what becomes of the pods of a node that is cut off.
func (l *lost) unreachable(m *kit.Host) {
	const state = "unreachable"
	l.lose(m)
	l.cell(state, "Pod", func() {
		l.Eventually("every pod of the lost node is not ready", func() (bool, string) {
			for _, pods := range on(l.Hosts, m.Name) {
				for i := range pods {
					if kit.PodReady(&pods[i]) {
						return false, kit.Describe(&pods[i])
					}
				}
			}
			return true, ""
		})
	})
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "Job": "job",
		"CronJob": "cronjob"} {
		l.cell(state, kind, func() {
			l.ready(app, m.Name, 3)
			l.ending(app, m.Name)
			if app == "job" {
				l.counts("job", 3, 1)
			}
		})
	}
	l.cell(state, "CronJobNextRun", func() {
		// The next run goes by its schedule, whatever still ends on the lost node.
		first := l.jobsOf("cronjob")
		l.Kubectl("patch", "cronjob", "cronjob", "-p", `{"spec":{"schedule":"`+longAgo(2)+`"}}`)
		l.Eventually("a new Job in place of the old one", func() (bool, string) {
			now := l.jobsOf("cronjob")
			return len(now) == 1 && now[0] != first[0], fmt.Sprint(first, now)
		})
		l.ready("cronjob", m.Name, 3)
		l.ending("cronjob", m.Name)
	})
	l.cell(state, "StatefulSet", func() {
		l.ready("statefulset", m.Name, 2)
		l.ending("statefulset", m.Name)
	})
	l.cell(state, "JobThatWaits", func() {
		for _, name := range []string{"patient", "forgiving"} {
			l.ready(name, m.Name, 2)
			l.ending(name, m.Name)
			l.counts(name, 2, 0)
		}
	})
	l.cell(state, "DaemonSet", func() {
		l.daemons(2, 1, 2) // its pods do not tolerate the NoSchedule taint
		l.stays("daemonset", m.Name)
	})
	l.cell(state, "StaticPod", func() { l.stays("static", m.Name) })
	l.cell(state, "PodDisruptionBudget", func() {
		l.budget(2, 0)
		for _, p := range l.Pods("default", "app=statefulset") {
			if p.Spec.NodeName == m.Name {
				continue
			}
			err := l.Client.PolicyV1().Evictions("default").Evict(l.T.Context(),
				&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
			if !apierrors.IsTooManyRequests(err) {
				l.T.Errorf("evicting %s says %v, want that there were too many", p.Name, err)
			}
		}
	})
	l.cell(state, "Volume", func() {
		l.ending("volume", m.Name)
		// Even without the pod: the host may still have it mounted.
		l.Kubectl("delete", "pod", "volume-"+m.Name, "--force", "--grace-period=0")
		if va := attachment(l.Hosts, m.Name); va == nil || va.DeletionTimestamp != nil || !va.Status.Attached || !mounted(m) {
			l.T.Errorf("the volume's attachment is %+v, want it kept as long as the node has it mounted", va)
		}
	})
}

// returned shows what becomes of them when it can be reached again.
func (l *lost) returned(m *kit.Host) {
	const state = "returned"
	replacements := map[string][]v1.Pod{}
	for _, app := range movers {
		replacements[app] = slices.DeleteFunc(l.Pods("default", "app="+app), func(p v1.Pod) bool { return p.Spec.NodeName == m.Name })
	}
	plugIn(m)
	nodeIs(l.Hosts, m.Name, v1.ConditionTrue, "")
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "Job": "job",
		"CronJob": "cronjob"} {
		l.cell(state, kind, func() {
			for _, p := range l.WaitReady("default", "app="+app, 3) {
				if !slices.ContainsFunc(replacements[app], func(r v1.Pod) bool { return r.UID == p.UID }) {
					l.T.Errorf("%s is none of those that replaced the lost one", p.Name)
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
			l.WaitReady("default", "app="+name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "StatefulSet", func() {
		for _, p := range l.WaitReady("default", "app=statefulset", 3) {
			if p.UID == l.before["statefulset"][0].UID {
				l.T.Errorf("%s is the one that was told to end", p.Name)
			}
		}
	})
	for kind, app := range map[string]string{"DaemonSet": "daemonset", "StaticPod": "static"} {
		l.cell(state, kind, func() { l.outlived(app, m.Name, true) })
	}
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.Eventually("the volume is unmounted and detached", func() (bool, string) {
			va := attachment(l.Hosts, m.Name)
			return va == nil && !mounted(m), fmt.Sprintf("%+v, mounted %t", va, mounted(m))
		})
	})
	l.cell(state, "Containers", func() { l.ended(m, evicted) })
}

// deleted shows what becomes of the pods of a node that is cut off and whose
// Node is then deleted.
func (l *lost) deleted(m *kit.Host) {
	const state = "deleted"
	l.lose(m)
	for _, name := range []string{"job", "patient"} {
		l.failures[name] += int32(len(l.before[name]))
	}
	l.Kubectl("delete", "node", m.Name)
	l.cell("tainted", "DaemonSet", func() { l.drill(l.Nodes[0].Name) }) // pods of the lost node go after 40 s
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "CronJob": "cronjob",
		"StatefulSet": "statefulset"} {
		l.cell(state, kind, func() { l.settled(app, m.Name, 3) })
	}
	l.cell(state, "Job", func() {
		l.settled("job", m.Name, 3)
		l.counts("job", 3, l.failures["job"])
	})
	l.cell(state, "JobThatWaits", func() {
		for _, name := range []string{"patient", "forgiving"} {
			l.settled(name, m.Name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "DaemonSet", func() {
		l.settled("daemonset", m.Name, 2)
		l.daemons(2, 0, 2)
	})
	l.cell(state, "StaticPod", func() { l.settled("static", m.Name, 1) })
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.Eventually("the volume of the deleted node is detached", func() (bool, string) {
			va := attachment(l.Hosts, m.Name)
			return va == nil, fmt.Sprintf("%+v", va)
		})
	})
}

// registered shows what its return does then.
func (l *lost) registered(m *kit.Host) {
	const state = "registered"
	plugIn(m)
	nodeIs(l.Hosts, m.Name, v1.ConditionTrue, "")
	l.cell(state, "DaemonSet", func() {
		l.WaitReady("default", "app=daemonset", 3)
		l.daemons(3, 0, 3)
	})
	l.cell(state, "StaticPod", func() {
		l.WaitReady("default", "app=static", 2)
		l.outlived("static", m.Name, false)
	})
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "CronJob": "cronjob",
		"StatefulSet": "statefulset"} {
		l.cell(state, kind, func() { l.WaitReady("default", "app="+app, 3) })
	}
	l.cell(state, "Job", func() {
		for _, name := range []string{"job", "patient", "forgiving"} {
			l.WaitReady("default", "app="+name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.Eventually("the volume is unmounted", func() (bool, string) { return !mounted(m), "still mounted" })
	})
	l.cell(state, "Containers", func() { l.ended(m, append([]string{"daemonset"}, evicted...)) })
}

// outOfService shows what becomes of the pods of a node that is cut off and
// declared dead by its taint, and what its return does then.
func (l *lost) outOfService(m *kit.Host) {
	const state = "outOfService"
	l.lose(m)
	for _, name := range []string{"job", "patient"} {
		l.failures[name] += int32(len(l.before[name]))
	}
	l.Kubectl("taint", "nodes", m.Name, v1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	for kind, app := range map[string]string{"Deployment": "deployment", "ReplicationController": "controller", "CronJob": "cronjob",
		"StatefulSet": "statefulset"} {
		l.cell(state, kind, func() { l.settled(app, m.Name, 3) })
	}
	l.cell(state, "Job", func() {
		for _, name := range []string{"job", "patient", "forgiving"} {
			l.settled(name, m.Name, 3)
			l.counts(name, 3, l.failures[name])
		}
	})
	l.cell(state, "DaemonSet", func() {
		l.settled("daemonset", m.Name, 2)
		l.daemons(2, 0, 2)
	})
	l.cell(state, "PodDisruptionBudget", func() { l.budget(3, 1) })
	l.cell(state, "Volume", func() {
		l.Eventually("the volume is detached though it is mounted", func() (bool, string) {
			va := attachment(l.Hosts, m.Name)
			return va == nil, fmt.Sprintf("%+v", va)
		})
		if !mounted(m) {
			l.T.Error("the machine that is cut off has unmounted the volume: nothing was shown")
		}
	})
	plugIn(m)
	l.Kubectl("taint", "nodes", m.Name, v1.TaintNodeOutOfService+"-")
	nodeIs(l.Hosts, m.Name, v1.ConditionTrue, "")
	l.cell(state, "Return", func() {
		l.WaitReady("default", "app=daemonset", 3)
		l.Eventually("the volume is unmounted", func() (bool, string) { return !mounted(m), "still mounted" })
		l.ended(m, append([]string{"daemonset"}, evicted...))
	})
}

// drill taints a node that is well. Only the DaemonSet does not tolerate it.
func (l *lost) drill(node string) {
	old := on(l.Hosts, node)["daemonset"][0]
	l.Kubectl("taint", "nodes", node, drill+":NoSchedule")
	l.Eventually("the pod of the DaemonSet counts as out of place", func() (bool, string) {
		d, err := l.Client.AppsV1().DaemonSets("default").Get(l.T.Context(), "daemonset", metav1.GetOptions{})
		kit.Must(l.T, err)
		return d.Status.NumberMisscheduled > 0, fmt.Sprintf("%+v", d.Status)
	})
	if now := on(l.Hosts, node)["daemonset"]; len(now) != 1 || now[0].UID != old.UID || now[0].DeletionTimestamp != nil {
		l.T.Errorf("a NoSchedule taint changed the pod of the DaemonSet: %d pods", len(now))
	}
	l.Kubectl("taint", "nodes", node, drill+":NoExecute")
	l.Eventually("the pod of the DaemonSet goes", func() (bool, string) {
		return len(on(l.Hosts, node)["daemonset"]) == 0, "it is there"
	})
	l.Kubectl("taint", "nodes", node, drill+"-")
	l.Eventually("the DaemonSet has a pod there again", func() (bool, string) {
		now := on(l.Hosts, node)["daemonset"]
		return len(now) == 1 && kit.PodReady(&now[0]), fmt.Sprint(len(now))
	})
}

// ready waits until so many pods of a workload are ready on other nodes.
func (l *lost) ready(app, node string, want int) {
	l.T.Helper()
	l.Eventually(fmt.Sprintf("%d pods of the %s run elsewhere", want, app), func() (bool, string) {
		n, words := 0, []string{}
		for _, p := range l.Pods("default", "app="+app) {
			words = append(words, p.Spec.NodeName+" "+kit.Describe(&p))
			if p.Spec.NodeName != node && kit.PodReady(&p) && p.DeletionTimestamp == nil {
				n++
			}
		}
		return n == want, strings.Join(words, "; ")
	})
}

// settled waits until a workload has so many pods, all ready, none on the node.
func (l *lost) settled(app, node string, want int) {
	l.T.Helper()
	for _, p := range l.WaitReady("default", "app="+app, want) {
		if p.Spec.NodeName == node {
			l.T.Errorf("%s runs on the lost node %s", p.Name, node)
		}
	}
}

// ending waits until the lost node's pod of a workload, the same as before, was
// told to end and why.
func (l *lost) ending(app, node string) {
	l.T.Helper()
	l.Eventually("the lost pod of the "+app+" is told to end", func() (bool, string) {
		pods := on(l.Hosts, node)[app]
		if len(pods) != 1 {
			return false, fmt.Sprintf("%d pods", len(pods))
		}
		p := &pods[0]
		return p.UID == l.before[app][0].UID && p.DeletionTimestamp != nil && hasDisruption(p), fmt.Sprintf("%s, conditions %+v",
			kit.Describe(p), p.Status.Conditions)
	})
}

// stays checks that the lost node's pod is the one of before, not ready, and
// not told to end.
func (l *lost) stays(app, node string) {
	l.T.Helper()
	pods := on(l.Hosts, node)[app]
	if len(pods) != 1 || pods[0].UID != l.before[app][0].UID || pods[0].DeletionTimestamp != nil || kit.PodReady(&pods[0]) {
		l.T.Errorf("pods of the %s on the lost node: %+v, want the one of before, not ready", app, pods)
	}
}

// outlived waits until the node's pod is ready in the container of before; same
// says that the object in the API is the one of before, too.
func (l *lost) outlived(app, node string, same bool) {
	l.T.Helper()
	old := l.before[app][0]
	l.Eventually("the pod of the "+app+" is ready in its old container", func() (bool, string) {
		pods := on(l.Hosts, node)[app]
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return false, fmt.Sprintf("%d pods", len(pods))
		}
		p := &pods[0]
		return kit.PodReady(p) && (p.UID == old.UID) == same &&
				p.Status.ContainerStatuses[0].ContainerID == old.Status.ContainerStatuses[0].ContainerID,
			kit.Describe(p) + " " + p.Status.ContainerStatuses[0].ContainerID
	})
}

// ended waits until no container of the pods of before is left on the host.
func (l *lost) ended(m *kit.Host, apps []string) {
	l.T.Helper()
	host := &kit.Cluster{T: l.T, Dir: m.Dir}
	l.Eventually("no container of the pods that left runs on "+m.Name, func() (bool, string) {
		running := host.ContainerPIDs()
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
	l.T.Helper()
	l.Eventually(fmt.Sprintf("Job %s has %d active and %d failed", name, active, failed), func() (bool, string) {
		j, err := l.Client.BatchV1().Jobs("default").Get(l.T.Context(), name, metav1.GetOptions{})
		kit.Must(l.T, err)
		return j.Status.Active == active && j.Status.Failed == failed, fmt.Sprintf("%+v", j.Status)
	})
}

// jobsOf names the Jobs of a CronJob that are not over.
func (l *lost) jobsOf(cron string) (names []string) {
	l.T.Helper()
	list, err := l.Client.BatchV1().Jobs("default").List(l.T.Context(), metav1.ListOptions{})
	kit.Must(l.T, err)
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
	l.T.Helper()
	l.Eventually(fmt.Sprintf("the DaemonSet wants %d pods, has %d out of place and %d ready", desired, misplaced, ready),
		func() (bool, string) {
			d, err := l.Client.AppsV1().DaemonSets("default").Get(l.T.Context(), "daemonset", metav1.GetOptions{})
			kit.Must(l.T, err)
			return d.Status.DesiredNumberScheduled == desired && d.Status.NumberMisscheduled == misplaced && d.Status.NumberReady == ready,
				fmt.Sprintf("%+v", d.Status)
		})
}

func (l *lost) budget(healthy, allowed int32) {
	l.T.Helper()
	l.Eventually(fmt.Sprintf("the budget counts %d healthy pods and allows %d disruptions", healthy, allowed), func() (bool, string) {
		b, err := l.Client.PolicyV1().PodDisruptionBudgets("default").Get(l.T.Context(), "statefulset", metav1.GetOptions{})
		kit.Must(l.T, err)
		return b.Status.CurrentHealthy == healthy && b.Status.DisruptionsAllowed == allowed, fmt.Sprintf("%+v", b.Status)
	})
}

// on lists the pods bound to a node by their app label.
func on(r *kit.Hosts, node string) map[string][]v1.Pod {
	r.T.Helper()
	out := map[string][]v1.Pod{}
	for _, p := range r.Pods(metav1.NamespaceDefault, "app") {
		if p.Spec.NodeName == node {
			out[p.Labels["app"]] = append(out[p.Labels["app"]], p)
		}
	}
	return out
}

// nodeIs waits until a node's Ready condition has the status, and it has the
// NoExecute taint; an empty taint: none.
func nodeIs(r *kit.Hosts, name string, ready v1.ConditionStatus, taint string) {
	r.T.Helper()
	r.Eventually(fmt.Sprintf("node %s Ready=%s, taint %q", name, ready, taint), func() (bool, string) {
		n, err := r.Client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
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
