package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// testDeletedVolumes: when the end of a deleted pod is told, its volumes are
// gone.
func testDeletedVolumes(a *apps) {
	for i := range 5 {
		name := fmt.Sprint("going-", i)
		a.create(`{metadata: {name: ` + name +
			`, finalizers: [e2e.example.com/hold]}, spec: {terminationGracePeriodSeconds: 2, volumes: [{name: data, emptyDir: {}}],
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve], volumeMounts: [{name: data, mountPath: /data}]}]}}`)
		p := a.podRuns(name)
		dir := filepath.Join(a.dir, "agent", "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir", "data")
		if _, err := os.Stat(dir); err != nil {
			a.t.Fatal(err)
		}
		a.history(p, func() {
			a.must(a.api.CoreV1().Pods(a.ns).Delete(a.ctx, name, metav1.DeleteOptions{}))
		}, over, func(_, now *v1.Pod) string {
			if _, err := os.Stat(dir); over(now) && err == nil {
				return "its volume is still there"
			}
			return ""
		})
		a.k("patch", "pod", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		a.podGone(name)
	}
}

// testCriticalPods: a critical pod that says it comes from a file, and does not,
// gets its room from others with requests, and is deleted like any pod.
func testCriticalPods(t *testing.T, c *cluster, _ *devicePlugin) {
	c.apply(simplePod("small", `{limits: {cpu: 100m, memory: 32Mi}}`) + "---" + simplePod("nothing", ""))
	c.waitReady("default", "app=small", 1)
	c.waitReady("default", "app=nothing", 1)
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), c.nodeName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(simplePod("vital", `{requests: {cpu: `+node.Status.Allocatable.Cpu().String()+`}}`)),
		p); err != nil {
		t.Fatal(err)
	}
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	p.Spec.NodeName, p.Spec.PriorityClassName = node.Name, "system-node-critical"
	system := c.client.CoreV1().Pods("kube-system")
	if _, err := system.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitReady("kube-system", "app=vital", 1)
	small := c.pods("default", "app=small")[0]
	if small.Status.Phase != v1.PodSucceeded || small.Status.Reason != "Preempting" || !disrupted(&small) {
		t.Errorf("small is %s %s %v", small.Status.Phase, small.Status.Reason, small.Status.Conditions)
	}
	c.waitReady("default", "app=nothing", 1)
	grace := int64(1)
	if err := system.Delete(t.Context(), "vital", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	c.eventually("vital is gone", func() (bool, string) { return len(c.pods("kube-system", "app=vital")) == 0, "it is there" })
	c.kubectl("delete", "pod", "small", "nothing", "--wait")
}

// testMirrorOutlives: the mirror of a static pod whose manifest goes says Running
// until nothing of the pod runs.
func testMirrorOutlives(t *testing.T, c *cluster, _ *devicePlugin) {
	file := filepath.Join(c.dir, "agent", "manifests", "fixed.yaml")
	manifest := strings.Replace(simplePod("fixed", ""), "args: [serve]",
		"command: [sleep, \"1000\"], lifecycle: {preStop: {sleep: {seconds: 2}}}", 1)
	if err := os.WriteFile(file, []byte(strings.Replace(manifest, "terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 10",
		1)), 0o600); err != nil {
		t.Fatal(err)
	}
	before := c.container("fixed")
	mirror := c.pods("default", "app=fixed")[0]
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.eventually("the mirror is gone", func() (bool, string) {
		pods := c.pods("default", "app=fixed")
		if len(pods) == 0 {
			return true, ""
		}
		if p := pods[0]; p.UID != mirror.UID || p.Status.Phase != v1.PodRunning {
			t.Errorf("meanwhile the mirror is %s: %s", p.UID, describe(&p))
		}
		return false, describe(&pods[0])
	})
	if _, lives := c.containerPIDs()[before.id]; lives {
		t.Error("the mirror went before its pod")
	}
}
