package node

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// podSteps are what TestPodFeatures does to running pods.
var podSteps = []struct {
	name string
	run  func(t *testing.T, c *kit.Cluster, host string)
}{
	{"a failing subPath can be mended by an annotation", stepMendSubPath},
	{"a readiness gate opens", stepReadinessGate},
	{"ephemeral containers share the target's processes", stepEphemeral},
	{"cpu and memory change in place", stepResize},
	{"a change that restarts the container", stepResizeRestart},
	{"a pod ends in order", stepOrderOfEnd},
	{"the grace can be cut short", stepCutGrace},
	{"the deadline can be set later", stepDeadlineLater},
	{"trust bundles reach pods", stepTrustBundle},
}

func untilGone(c *kit.Cluster, name string) {
	c.T.Helper()
	c.Eventually(name+" is gone", func() (bool, string) {
		p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return true, ""
		}
		return false, kit.Describe(p)
	})
}

func stepMendSubPath(t *testing.T, c *kit.Cluster, _ string) {
	c.Kubectl("annotate", "--overwrite", "pod", "sub-path-absolute", "p=inside")
	c.WaitPod("sub-path-absolute", "runs", kit.PodReady)
}

func stepReadinessGate(t *testing.T, c *kit.Cluster, _ string) {
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec:
  terminationGracePeriodSeconds: 0
  readinessGates: [{conditionType: example.com/one}]
  containers: [{name: c, image: berth.dev/pause:1}]
`)
	c.WaitPod("gated", "is held back", func(p *v1.Pod) bool {
		for _, cond := range p.Status.Conditions {
			if cond.Type == v1.PodReady {
				return cond.Reason == "ReadinessGatesNotReady" && strings.Contains(cond.Message,
					`readiness gate "example.com/one" does not exist`)
			}
		}
		return false
	})
	c.Kubectl("patch", "pod", "gated", "--subresource=status", "-p",
		`{"status":{"conditions":[{"type":"example.com/one","status":"True"}]}}`)
	c.WaitPod("gated", "is ready", kit.PodReady)
	c.Kubectl("patch", "pod", "gated", "--subresource=status", "-p",
		`{"status":{"conditions":[{"type":"example.com/one","status":"False"}]}}`)
	c.WaitPod("gated", "is held back again", func(p *v1.Pod) bool { return !kit.PodReady(p) })
}

func stepEphemeral(t *testing.T, c *kit.Cluster, _ string) {
	p := c.Pod("late-ready")
	e := v1.EphemeralContainer{TargetContainerName: "c"}
	e.Name, e.Image, e.Command = "look", "berth.dev/toolbox:1", []string{"cat", "/proc/1/cmdline"}
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, e)
	if _, err := c.Client.CoreV1().Pods("default").UpdateEphemeralContainers(context.Background(), p.Name, p,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.WaitPod("late-ready", "has run it",
		func(p *v1.Pod) bool { return kit.StateOf(kit.ContainerStatus(p, "look")) == "terminated/Completed" })
	if got := c.Kubectl("logs", "late-ready", "-c", "look"); !strings.Contains(got, "serve") {
		t.Errorf("process 1 of the target is %q", got)
	}
	if p := c.Pod("late-ready"); p.Status.Phase != v1.PodRunning || !kit.PodReady(p) {
		t.Errorf("an ephemeral container changed the pod: %s", kit.Describe(p))
	}
}

func resizable(c *kit.Cluster, name, policy string) {
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: berth.dev/toolbox:1
    command: [sleep, "10000"]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: %s}]
`, name, policy))
	c.WaitPod(name, "runs", kit.PodReady)
}

// resizeTo changes cpu and memory and waits until the status says so and no
// resize is under way.
func resizeTo(c *kit.Cluster, name, cpu, memory string) *v1.Pod {
	c.Kubectl("patch", "pod", name, "--subresource=resize", "-p", fmt.Sprintf(
		`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":%[1]q,"memory":%[2]q},"limits":{"cpu":%[1]q,`+
			`"memory":%[2]q}}}]}}`, cpu, memory))
	c.WaitPod(name, "has "+cpu+" and "+memory, func(p *v1.Pod) bool {
		for _, cond := range p.Status.Conditions {
			if cond.Type == v1.PodResizePending || cond.Type == v1.PodResizeInProgress {
				return false
			}
		}
		s := kit.ContainerStatus(p, "c")
		return s.Resources != nil && s.Resources.Limits.Cpu().String() == cpu && s.Resources.Limits.Memory().String() == memory &&
			s.AllocatedResources.Memory().String() == memory && s.State.Running != nil && p.Status.ObservedGeneration == p.Generation
	})
	return c.Pod(name)
}

func stepResize(t *testing.T, c *kit.Cluster, _ string) {
	resizable(c, "resized", "NotRequired")
	for _, to := range [][3]string{{"200m", "64Mi", "67108864"}, {"50m", "16Mi", "16777216"}} {
		p := resizeTo(c, "resized", to[0], to[1])
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("a resize in place restarted the container %d times", n)
		}
		got := c.Kubectl("exec", "resized", "--", "sh", "-c",
			"if stat /sys/fs/cgroup/memory.max; then cat /sys/fs/cgroup/memory.max; else cat "+
				"/sys/fs/cgroup/memory/memory.limit_in_bytes; fi")
		if !strings.Contains(got, to[2]) {
			t.Errorf("the container's limit is %q, want %s", got, to[2])
		}
	}
	wrong := kit.Unmatched("event",
		"ResizeStarted Pod resize started: {\"containers\":\nResizeCompleted Pod resize completed: {\"containers\":",
		c.PodEvents(c.Pod("resized")))
	if len(wrong) > 0 {
		t.Error(wrong)
	}
}

func stepResizeRestart(t *testing.T, c *kit.Cluster, _ string) {
	resizable(c, "restarted", "RestartContainer")
	if n := resizeTo(c, "restarted", "100m", "64Mi").Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("the container restarted %d times, want 1", n)
	}
}

// stepOrderOfEnd: pre-stop hooks of all begin at once, sidecars end after the
// main container, the last declared first.
func stepOrderOfEnd(t *testing.T, c *kit.Cluster, host string) {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  terminationGracePeriodSeconds: 30
  volumes: [{name: host, hostPath: {path: %s}}]
  initContainers:
`, host)
	one := func(name, more string) {
		fmt.Fprintf(&b, `  - name: %[1]s
    image: berth.dev/toolbox:1
    command: [serve, "%[2]s"]
    lifecycle: {preStop: {exec: {command: [sh, -c, "echo hook %[1]s >> /host/hooks"]}}}
    volumeMounts: [{name: host, mountPath: /host}]
%[3]s`, name, map[string]string{"first": "8081", "second": "8082", "main": "8083"}[name], more)
	}
	one("first", "    restartPolicy: Always\n")
	one("second", "    restartPolicy: Always\n")
	b.WriteString("  containers:\n")
	one("main", "")
	c.Apply(b.String())
	c.WaitPod("ordered", "runs", kit.PodReady)
	// The last status that anybody sees has all three ends in it.
	last := followEnd(c, "ordered")
	c.Kubectl("delete", "pod", "ordered", "--wait=false")
	end := last()
	at := func(name string) *v1.ContainerStateTerminated { return kit.ContainerStatus(end, name).State.Terminated }
	for _, name := range []string{"first", "second", "main"} {
		if at(name) == nil {
			t.Fatalf("container %s is %s in the pod's last status", name, kit.StateOf(kit.ContainerStatus(end, name)))
		}
	}
	if at("second").FinishedAt.Before(&at("main").FinishedAt) || at("first").FinishedAt.Before(&at("second").FinishedAt) {
		t.Errorf("main ended at %v, second at %v, first at %v", at("main").FinishedAt, at("second").FinishedAt, at("first").FinishedAt)
	}
	hooks, err := os.ReadFile(filepath.Join(host, "hooks"))
	if err != nil || strings.Count(string(hooks), "hook") != 3 {
		t.Errorf("pre-stop hooks that ran: %q, %v", hooks, err)
	}
}

// followEnd watches a pod and returns what waits until it is gone and answers
// with how it was last seen.
func followEnd(c *kit.Cluster, name string) func() *v1.Pod {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	w, err := c.Client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		cancel()
		c.T.Fatal(err)
	}
	return func() *v1.Pod {
		defer cancel()
		defer w.Stop()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*v1.Pod); ok && e.Type == "DELETED" {
				return p
			}
		}
		c.T.Fatalf("pod %s is not gone within %v", name, kit.Timeout)
		return nil
	}
}

// stepCutGrace: a second deletion with less grace ends a hook that sleeps.
func stepCutGrace(t *testing.T, c *kit.Cluster, _ string) {
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: sleepy}
spec:
  terminationGracePeriodSeconds: 600
  containers: [{name: c, image: berth.dev/pause:1, lifecycle: {preStop: {sleep: {seconds: 500}}}}]
`)
	c.WaitPod("sleepy", "runs", kit.PodReady)
	c.Kubectl("delete", "pod", "sleepy", "--wait=false")
	c.WaitPod("sleepy", "is being deleted", func(p *v1.Pod) bool { return p.DeletionTimestamp != nil })
	c.Kubectl("delete", "pod", "sleepy", "--wait=false", "--grace-period=2")
	untilGone(c, "sleepy")
}

func stepDeadlineLater(t *testing.T, c *kit.Cluster, _ string) {
	c.Kubectl("patch", "pod", "gated", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
	c.WaitPod("gated", "is over", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed && p.Status.Reason == "DeadlineExceeded" })
}

// stepTrustBundle: what a signer's anchors are reaches a pod that projects them,
// and so does a change.
func stepTrustBundle(t *testing.T, c *kit.Cluster, _ string) {
	caBundle := func() string {
		cert, _, err := certutil.GenerateSelfSignedCertKey("a", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for rest := cert; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				t.Fatal("no authority was made")
			}
			if x, err := x509.ParseCertificate(block.Bytes); err == nil && x.IsCA {
				return string(pem.EncodeToMemory(block))
			}
		}
	}
	bundles := c.Client.CertificatesV1().ClusterTrustBundles()
	bundle := &certificates.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "example.com:one:v1",
		Labels: map[string]string{"l": "a"}}}
	bundle.Spec = certificates.ClusterTrustBundleSpec{SignerName: "example.com/one", TrustBundle: caBundle()}
	made, err := bundles.Create(context.Background(), bundle, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: trusting}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - name: ca
    projected:
      sources:
      - clusterTrustBundle: {name: "example.com:one:v1", path: named}
      - clusterTrustBundle: {signerName: example.com/one, labelSelector: {matchLabels: {l: a}}, path: chosen}
  containers: [{name: c, image: berth.dev/toolbox:1, command: [sleep, "10000"], volumeMounts: [{name: ca, mountPath: /ca}]}]
`)
	c.WaitPod("trusting", "runs", kit.PodReady)
	for _, file := range []string{"named", "chosen"} {
		if got := c.Kubectl("exec", "trusting", "--", "cat", "/ca/"+file); got != bundle.Spec.TrustBundle {
			t.Errorf("/ca/%s holds %q", file, got)
		}
	}
	made.Spec.TrustBundle = caBundle()
	if _, err := bundles.Update(context.Background(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.Dir, "agent", "pods", string(c.Pod("trusting").UID), "volumes", "kubernetes.io~projected", "ca")
	c.Eventually("the change reaches the pod", func() (bool, string) {
		got, err := os.ReadFile(filepath.Join(dir, "chosen"))
		return err == nil && string(got) == made.Spec.TrustBundle, fmt.Sprintf("%q %v", got, err)
	})
}
