package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// testDeletedVolumes: when the end of a deleted pod is told, its volumes are
// gone.
func testDeletedVolumes(a *kit.Namespace) {
	for i := range 5 {
		name := fmt.Sprint("going-", i)
		create(a, `{metadata: {name: `+name+
			`, finalizers: [e2e.example.com/hold]}, spec: {terminationGracePeriodSeconds: 2, volumes: [{name: data, emptyDir: {}}],
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve], volumeMounts: [{name: data, mountPath: /data}]}]}}`)
		p := podRuns(a, name)
		dir := filepath.Join(a.Dir, "agent", "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir", "data")
		if _, err := os.Stat(dir); err != nil {
			a.T.Fatal(err)
		}
		history(a, p, func() {
			a.Must(a.API.CoreV1().Pods(a.Name).Delete(a.Ctx, name, metav1.DeleteOptions{}))
		}, kit.PodEnded, func(_, now *v1.Pod) string {
			if _, err := os.Stat(dir); kit.PodEnded(now) && err == nil {
				return "its volume is still there"
			}
			return ""
		})
		a.K("patch", "pod", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		podGone(a, name)
	}
}

// testCriticalPods: a critical pod that says it comes from a file, and does not,
// gets its room from others with requests, and is deleted like any pod.
func testCriticalPods(t *testing.T, c *kit.Cluster, _ *devicePlugin) {
	c.Apply(kit.SimplePod("small", `{limits: {cpu: 100m, memory: 32Mi}}`) + "---" + kit.SimplePod("nothing", ""))
	c.WaitReady("default", "app=small", 1)
	c.WaitReady("default", "app=nothing", 1)
	node, err := c.Client.CoreV1().Nodes().Get(t.Context(), c.NodeName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(kit.SimplePod("vital", `{requests: {cpu: `+node.Status.Allocatable.Cpu().String()+`}}`)),
		p); err != nil {
		t.Fatal(err)
	}
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	p.Spec.NodeName, p.Spec.PriorityClassName = node.Name, "system-node-critical"
	system := c.Client.CoreV1().Pods("kube-system")
	if _, err := system.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.WaitReady("kube-system", "app=vital", 1)
	small := c.Pods("default", "app=small")[0]
	if small.Status.Phase != v1.PodSucceeded || small.Status.Reason != "Preempting" || !kit.Disrupted(&small) {
		t.Errorf("small is %s %s %v", small.Status.Phase, small.Status.Reason, small.Status.Conditions)
	}
	c.WaitReady("default", "app=nothing", 1)
	grace := int64(1)
	if err := system.Delete(t.Context(), "vital", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	c.Eventually("vital is gone", func() (bool, string) { return len(c.Pods("kube-system", "app=vital")) == 0, "it is there" })
	c.Kubectl("delete", "pod", "small", "nothing", "--wait")
}

// testMirrorOutlives: the mirror of a static pod whose manifest goes says Running
// until nothing of the pod runs.
func testMirrorOutlives(t *testing.T, c *kit.Cluster, _ *devicePlugin) {
	file := filepath.Join(c.Dir, "agent", "manifests", "fixed.yaml")
	manifest := strings.Replace(kit.SimplePod("fixed", ""), "args: [serve]",
		"command: [sleep, \"1000\"], lifecycle: {preStop: {sleep: {seconds: 2}}}", 1)
	if err := os.WriteFile(file, []byte(strings.Replace(manifest, "terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 10",
		1)), 0o600); err != nil {
		t.Fatal(err)
	}
	before := c.Container("fixed")
	mirror := c.Pods("default", "app=fixed")[0]
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.Eventually("the mirror is gone", func() (bool, string) {
		pods := c.Pods("default", "app=fixed")
		if len(pods) == 0 {
			return true, ""
		}
		if p := pods[0]; p.UID != mirror.UID || p.Status.Phase != v1.PodRunning {
			t.Errorf("meanwhile the mirror is %s: %s", p.UID, kit.Describe(&p))
		}
		return false, kit.Describe(&pods[0])
	})
	if _, lives := c.ContainerPIDs()[before.ID]; lives {
		t.Error("the mirror went before its pod")
	}
}
