package node

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestPodFeatures starts one pod for each feature of testdata/pods.yaml, all at
// once, and waits for what each says must come of it. What has to be done to a
// running pod comes after.
func TestPodFeatures(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	node := c.Node()
	name := node.Name
	host := t.TempDir()
	profile := filepath.Join(c.Dir, "agent", "seccomp", "allow.json")
	if err := os.MkdirAll(filepath.Dir(profile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["acct"],"action":"SCMP_ACT_ERRNO"}]}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	pidns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(podFeatureObjects)
	supported := hostSupports(node)
	pods := featurePods(t, "pods.yaml", strings.NewReplacer("image: T", "image: berth.dev/toolbox:1", "reference: T",
		"reference: berth.dev/toolbox:1",
		"HOSTDIR", host, "HOSTPID", regexp.QuoteMeta(pidns), "nodeName: NODE", "nodeName: "+name))
	pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool {
		on, matters := supported[p.Annotations["only"]]
		return matters && !on
	})
	c.RunPods(t, pods)
	for _, step := range podSteps {
		t.Run(step.name, func(t *testing.T) { step.run(t, c.In(t), host) })
	}
}

const podFeatureObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {KEY: fromall, ONE: chosen, hosts: mine}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nothing}
handler: nothing
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: heavy}
handler: runc
overhead: {podFixed: {cpu: 50m, memory: 16Mi}}
`

// hostSupports says which of the things that pods of the file depend on this
// host has; a pod is left out if its annotation "only" names what is not so.
func hostSupports(n *v1.Node) map[string]bool {
	out := map[string]bool{}
	for _, h := range n.Status.RuntimeHandlers {
		out["userns"] = out["userns"] || h.Features != nil && h.Features.UserNamespaces != nil && *h.Features.UserNamespaces
	}
	enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	out["apparmor"] = strings.HasPrefix(string(enabled), "Y")
	out["no userns"], out["no apparmor"] = !out["userns"], !out["apparmor"]
	return out
}

// featurePods reads a file of testdata with words replaced. What the file leaves
// out is what makes a pod end soon.
func featurePods(t *testing.T, file string, words *strings.Replacer) []*v1.Pod {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var pods []*v1.Pod
	if err := yaml.UnmarshalStrict([]byte(words.Replace(string(data))), &pods); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if p.Spec.RestartPolicy == "" {
			p.Spec.RestartPolicy = v1.RestartPolicyNever
		}
		if p.Spec.TerminationGracePeriodSeconds == nil {
			grace := int64(1)
			p.Spec.TerminationGracePeriodSeconds = &grace
		}
		if len(kit.Expectations(p)) == 0 {
			t.Fatalf("pod %s says nothing of what must come of it", p.Name)
		}
	}
	return pods
}
