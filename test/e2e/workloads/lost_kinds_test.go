package workloads

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// drill is a taint that everything but the DaemonSet tolerates.
const drill = "berth.dev/drill"

// lostPod is the pod of a workload: spread over the nodes, it gives an
// unreachable node two seconds, and itself one to end (a pod without any grace
// would be gone from the API at once, whatever still runs). It fails when it is
// told to end.
func lostPod(app, restart, spread string) string {
	return fmt.Sprintf(`
    metadata: {labels: {app: %[1]s}}
    spec:
      restartPolicy: %[2]s
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      - {key: %[4]s, operator: Exists}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: %[3]s, nodeTaintsPolicy: Honor, labelSelector: `+
		`{matchLabels: {app: %[1]s}}}
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [sleep, "100000"]}
`, app, restart, spread, drill)
}

// lostKinds is one workload of each kind, with a pod for each of three nodes.
func lostKinds() string {
	job := func(name, more string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: " + name + "}\nspec:\n  parallelism: 3\n  completions: 3\n" + more +
			"  template:" + lostPod(name, "Never", "ScheduleAnyway")
	}
	always := func(head, name, more string) string {
		return head + "\nmetadata: {name: " + name + "}\nspec:\n  replicas: 3\n" + more + "  template:"
	}
	docs := []string{
		always("apiVersion: apps/v1\nkind: Deployment", "deployment", "  selector: {matchLabels: {app: deployment}}\n") +
			lostPod("deployment", "Always", "ScheduleAnyway"),
		always("apiVersion: v1\nkind: ReplicationController", "controller", "") + lostPod("controller", "Always", "ScheduleAnyway"),
		always("apiVersion: apps/v1\nkind: StatefulSet", "statefulset",
			"  serviceName: statefulset\n  podManagementPolicy: Parallel\n  selector: {matchLabels: {app: statefulset}}\n") +
			lostPod("statefulset", "Always", "DoNotSchedule"),
		job("job", ""),
		job("patient", "  podReplacementPolicy: Failed\n"),
		job("forgiving",
			"  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: \"True\"}]}]}\n"),
		"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: cronjob}\nspec:\n  schedule: \"" + longAgo(1) +
			"\"\n  concurrencyPolicy: Replace\n  jobTemplate:\n" +
			"    spec:\n      parallelism: 3\n      completions: 3\n      template:" + strings.ReplaceAll(lostPod("cronjob", "Never",
			"ScheduleAnyway"), "\n", "\n    "),
		"apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: statefulset}\nspec: {minAvailable: 2, selector: " +
			"{matchLabels: {app: statefulset}}}\n",
		`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: daemonset}
spec:
  selector: {matchLabels: {app: daemonset}}
  template:
    metadata: {labels: {app: daemonset}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [sleep, "100000"]}
`,
	}
	return strings.Join(docs, "\n---\n")
}

// longAgo is the schedule of a minute that is some hours past: a CronJob that
// missed it runs at once, and again when the schedule moves on to a later one.
func longAgo(minute int) string {
	return fmt.Sprintf("%d %d * * *", minute, time.Now().UTC().Add(-3*time.Hour).Hour())
}

// lostVolume is a pod on a node with a volume of the test's CSI driver.
func lostVolume(node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-%[1]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: late, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: volume-%[1]s, labels: {app: volume}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  tolerations:
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
  - {key: %[2]s, operator: Exists}
  containers:
  - {name: c, image: "berth.dev/toolbox:1", args: [sleep, "100000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data-%[1]s}}]
---
`, node, drill)
}

const lostDriver = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + kit.CSIDriver + `}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: ` + kit.CSIDriver + `
volumeBindingMode: WaitForFirstConsumer
---
`

// startDrivers runs the CSI driver that was built into dir on every host, and
// attaches what is to be attached as a driver's attacher would.
func startDrivers(r *kit.Hosts, t *testing.T, dir string) {
	t.Helper()
	for _, m := range r.Nodes {
		agent := filepath.Join(m.Dir, "agent")
		kit.StartTool(t, filepath.Join(dir, "csihostpath"), "--node-id="+m.Name, "--endpoint="+filepath.Join(agent, "plugins",
			kit.CSIDriver,
			"csi.sock"),
			"--state-dir="+filepath.Join(dir, m.Name), "--register="+filepath.Join(agent, "plugins_registry", "hostpath.sock"),
			"--kubeconfig="+filepath.Join(r.Dir, "admin.kubeconfig"))
	}
	ctx, cancel := context.WithCancel(context.Background())
	w, err := r.Client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{})
	kit.Must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		defer w.Stop()
		for e := range w.ResultChan() {
			if va, ok := e.Object.(*storagev1.VolumeAttachment); ok && !va.Status.Attached && va.DeletionTimestamp == nil {
				_, err := r.Client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType,
					[]byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, "status")
				if err != nil && ctx.Err() == nil {
					t.Logf("attaching: %v", err)
				}
			}
		}
	}()
}

// attachment is the VolumeAttachment of a node, nil for none.
func attachment(r *kit.Hosts, node string) *storagev1.VolumeAttachment {
	r.T.Helper()
	list, err := r.Client.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
	kit.Must(r.T, err)
	for i := range list.Items {
		if list.Items[i].Spec.NodeName == node {
			return &list.Items[i]
		}
	}
	return nil
}

// mounted says whether the host has a volume of the driver mounted.
func mounted(m *kit.Host) bool {
	m.Cluster.T.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	kit.Must(m.Cluster.T, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, m.Dir) && strings.Contains(line, "csi") {
			return true
		}
	}
	return false
}
