package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestPodFeatures starts one pod for each feature of testdata/pods.yaml, all at
// once, and waits for what each says must come of it. What has to be done to a
// running pod comes after.
func TestPodFeatures(t *testing.T) {
	c := newCluster(t)
	c.up()
	node := c.node()
	name := node.Name
	host := t.TempDir()
	profile := filepath.Join(c.dir, "agent", "seccomp", "allow.json")
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
	c.apply(podFeatureObjects)
	supported := hostSupports(node)
	pods := featurePods(t, "pods.yaml", strings.NewReplacer("image: T", "image: berth.dev/toolbox:1", "reference: T",
		"reference: berth.dev/toolbox:1",
		"HOSTDIR", host, "HOSTPID", regexp.QuoteMeta(pidns), "nodeName: NODE", "nodeName: "+name))
	pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool {
		on, matters := supported[p.Annotations["only"]]
		return matters && !on
	})
	c.come(t, pods)
	for _, step := range podSteps {
		t.Run(step.name, func(t *testing.T) { step.run(t, c.in(t), host) })
	}
}

// come creates pods and waits until of each there came what it says.
func (c *cluster) come(t *testing.T, pods []*v1.Pod) {
	for _, p := range pods {
		if _, err := c.client.CoreV1().Pods("default").Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
			t.Errorf("creating pod %s: %v", p.Name, err)
		}
	}
	for _, p := range pods {
		t.Run(p.Name, func(t *testing.T) {
			sub := c.in(t)
			sub.eventually("pod "+p.Name, func() (bool, string) {
				wrong := sub.differs(p)
				return len(wrong) == 0, strings.Join(wrong, "; ")
			})
		})
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

// in is the same cluster whose failures belong to a subtest.
func (c *cluster) in(t *testing.T) *cluster {
	sub := *c
	sub.t = t
	return &sub
}

// hostSupports says which of the things that pods of the file depend on this
// machine has; a pod is left out if its annotation "only" names what is not so.
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

// node is the only node.
func (c *cluster) node() *v1.Node {
	c.t.Helper()
	list, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		c.t.Fatalf("listing nodes: %d, %v", len(list.Items), err)
	}
	return &list.Items[0]
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
		if len(wants(p)) == 0 {
			t.Fatalf("pod %s says nothing of what must come of it", p.Name)
		}
	}
	return pods
}

// wants are the expectations among a pod's annotations.
func wants(p *v1.Pod) map[string]string {
	out := map[string]string{}
	for _, key := range []string{"phase", "reason", "state", "restarts", "message", "ready", "log", "event"} {
		if v, ok := p.Annotations[key]; ok {
			out[key] = v
		}
	}
	return out
}

// differs compares a pod with what its manifest expects of it.
func (c *cluster) differs(manifest *v1.Pod) (wrong []string) {
	p, err := c.client.CoreV1().Pods("default").Get(context.Background(), manifest.Name, metav1.GetOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for key, want := range wants(manifest) {
		switch key {
		case "phase":
			if string(p.Status.Phase) != want {
				bad("phase %s, want %s", p.Status.Phase, want)
			}
		case "reason":
			if p.Status.Reason != want {
				bad("reason %q, want %q", p.Status.Reason, want)
			}
		case "ready":
			if got := strconv.FormatBool(podReady(p)); !strings.EqualFold(got, want) {
				bad("ready %s, want %s", got, want)
			}
		case "state":
			for _, word := range strings.Fields(want) {
				name, state, _ := strings.Cut(word, "=")
				if got := stateOf(containerStatus(p, name)); got != state {
					bad("container %s is %s, want %s", name, got, state)
				}
			}
		case "restarts":
			if !restartsHold(p, want) {
				bad("restarts, want %s (%s)", want, describe(p))
			}
		case "message":
			if got := messageOf(containerStatus(p, "c")); !regexp.MustCompile(want).MatchString(got) {
				bad("message %q, want %q", got, want)
			}
		case "log", "event":
		}
	}
	if len(wrong) > 0 {
		return wrong // what follows is dearer
	}
	if want, ok := manifest.Annotations["log"]; ok {
		out, err := c.tryKubectl("", "logs", manifest.Name, "-c", "c")
		if err != nil {
			return []string{err.Error()}
		}
		wrong = append(wrong, unmatched("log", want, strings.Split(out, "\n"))...)
	}
	if want, ok := manifest.Annotations["event"]; ok {
		wrong = append(wrong, unmatched("event", want, c.podEvents(p))...)
	}
	return wrong
}

// podEvents are a pod's events as "REASON message".
func (c *cluster) podEvents(p *v1.Pod) (out []string) {
	list, err := c.client.CoreV1().Events(p.Namespace).List(context.Background(),
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range list.Items {
		out = append(out, list.Items[i].Reason+" "+list.Items[i].Message)
	}
	return out
}

// unmatched names the patterns that no line matches, and those starting with
// "! " that one does.
func unmatched(what, patterns string, lines []string) (wrong []string) {
	for _, pattern := range strings.Split(patterns, "\n") {
		pattern, none := strings.CutPrefix(pattern, "! ")
		re := regexp.MustCompile(pattern)
		found := false
		for _, l := range lines {
			found = found || re.MatchString(l)
		}
		if found == none {
			wrong = append(wrong, fmt.Sprintf("%s %q found %v in %q", what, pattern, found, lines))
		}
	}
	return wrong
}

func containerStatus(p *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return &v1.ContainerStatus{}
}

func stateOf(s *v1.ContainerStatus) string {
	switch {
	case s.State.Running != nil:
		return "running"
	case s.State.Terminated != nil:
		return "terminated/" + s.State.Terminated.Reason
	case s.State.Waiting != nil:
		return "waiting/" + s.State.Waiting.Reason
	}
	return "nowhere"
}

func messageOf(s *v1.ContainerStatus) string {
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated.Message
	case s.State.Waiting != nil:
		return s.State.Waiting.Message
	}
	return ""
}

// restartsHold checks "NAME=N" or "NAME>=N".
func restartsHold(p *v1.Pod, want string) bool {
	name, number, exact := strings.Cut(want, "=")
	name, atLeast := strings.CutSuffix(name, ">")
	n, err := strconv.Atoi(number)
	got := int(containerStatus(p, name).RestartCount)
	return err == nil && exact && (got == n || atLeast && got > n)
}
