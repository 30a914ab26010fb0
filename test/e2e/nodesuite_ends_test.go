package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testDeletedVolumes: when the end of a deleted pod is told, its volumes are
// gone.
func testDeletedVolumes(a *apps) {
	for i := range 5 {
		name := fmt.Sprint("going-", i)
		p := a.create(`{metadata: {name: ` + name + `, finalizers: [e2e.example.com/hold]}, spec: {terminationGracePeriodSeconds: 2, volumes: [{name: data, emptyDir: {}}],
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve], volumeMounts: [{name: data, mountPath: /data}]}]}}`)
		p = a.podRuns(name)
		dir := filepath.Join(a.c.dir, "agent", "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir", "data")
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

// testCriticalPods: a critical pod, even one that says it comes from a file,
// gets its room from others and is deleted like any pod.
func testCriticalPods(a *apps) {
}
