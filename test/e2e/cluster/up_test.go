package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestMainJob follows a new user through one cluster's life. The steps build
// on each other; each is a sub-test so that a failure names the step.
func TestMainJob(t *testing.T) {
	c := kit.NewCluster(t)
	before := kit.ReadHostState(t, c.Dir)
	step := func(name string, f func(t *testing.T)) {
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			c.T = t
			defer func() { c.T = t }()
			f(t)
		})
	}
	defer func() { c.T = t }()

	step("up", func(t *testing.T) {
		out := c.Up()
		if !strings.Contains(out, "Ready") || !strings.Contains(out, "next:") {
			t.Errorf("up must end with the node table and the next command:\n%s", out)
		}
		if again, err := c.TryUp(); err != nil || !strings.Contains(again, "already up") {
			t.Errorf("a second up must be a no-op with a status line: %v\n%s", err, again)
		}
		if out := c.Berth("status", "--data-dir", c.Dir); !strings.Contains(out, c.Dir) || strings.Contains(out, "BAD") {
			t.Errorf("status:\n%s", out)
		}
	})
	step("hello", func(t *testing.T) {
		c.Kubectl("apply", "-f", filepath.Join("..", "..", "..", "examples", "hello.yaml"))
		c.WaitReady("default", "app=hello", 2)
	})
	step("service from the node and from a pod", func(t *testing.T) { testService(t, c) })
	step("logs, exec, port-forward, describe", func(t *testing.T) { testKubectl(t, c) })
	step("static pod", func(t *testing.T) { testStaticPod(t, c) })
	step("pod features", func(t *testing.T) { testPodFeatures(t, c) })
	step("rolling update", func(t *testing.T) { testRollingUpdate(t, c) })
	step("cordon and drain", func(t *testing.T) { testDrain(t, c) })
	step("restart of berth", func(t *testing.T) {
		testRestart(t, c, func() {
			if err := unix.Kill(c.PID(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		})
	})
	step("kill -9 of berth", func(t *testing.T) {
		testRestart(t, c, func() {
			if err := unix.Kill(c.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		})
	})
	step("kill -9 of the runtime", func(t *testing.T) { testRuntimeKill(t, c) })
	step("down keeps the data, up brings everything back", func(t *testing.T) {
		c.Kubectl("create", "configmap", "kept", "--from-literal=a=b")
		c.Disconnect()
		c.Down()
		if left := c.ContainerPIDs(); len(left) != 0 {
			t.Errorf("containers still run after down: %v", left)
		}
		c.Up()
		c.WaitReady("default", "app=hello", 2)
		if got := c.Kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}"); got != "b" {
			t.Errorf("configmap after down and up: %q", got)
		}
	})
	step("the audit log says who did what", func(t *testing.T) { testAudit(t, c) })
	step("purge leaves nothing", func(t *testing.T) {
		c.Disconnect()
		c.Berth("down", "--data-dir", c.Dir, "--purge")
		if left := kit.ReadHostState(t, c.Dir).LeftSince(before); len(left) != 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("data directory is still there: %v", err)
		}
	})
}

func get(url string) (string, error) {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func testService(t *testing.T, c *kit.Cluster) {
	svc, err := c.Client.CoreV1().Services("default").Get(context.Background(), "hello", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://%s/hostname", svc.Spec.ClusterIP)
	c.Eventually("answers of both pods through the service, from the node", func() (bool, string) {
		seen := map[string]bool{}
		for range 40 {
			body, err := get(url)
			if err != nil {
				return false, err.Error()
			}
			seen[strings.TrimSpace(body)] = true
		}
		return len(seen) == 2, fmt.Sprint(seen)
	})
	pod := c.WaitReady("default", "app=hello", 2)[0].Name
	if out := c.Kubectl("exec", pod, "--", "wget", "-T", "5", url); !strings.HasPrefix(out, "hello-") {
		t.Errorf("service from a pod: %q", out)
	}
	for _, name := range []string{"hello", "hello.default", "hello.default.svc.cluster.local"} {
		if out := c.Kubectl("exec", pod, "--", "wget", "-T", "5", "http://"+name+"/hostname"); !strings.HasPrefix(out, "hello-") {
			t.Errorf("service by the name %s from a pod: %q", name, out)
		}
	}
	if out := c.Berth("why", "pod", pod, "--data-dir", c.Dir); !strings.Contains(out, "placed on") ||
		!strings.Contains(out, "starting container web") {
		t.Errorf("why pod:\n%s", out)
	}
}

func testKubectl(t *testing.T, c *kit.Cluster) {
	pod := c.WaitReady("default", "app=hello", 2)[0].Name
	if out := c.Kubectl("logs", pod); !strings.Contains(out, "serving on port 8080") {
		t.Errorf("logs: %q", out)
	}
	if out := c.Kubectl("exec", pod, "--", "sh", "-c",
		"echo $HOSTNAME $KUBERNETES_SERVICE_HOST; ls /var/run/secrets/kubernetes.io/serviceaccount"); !strings.Contains(out, pod) ||
		!strings.Contains(out, "token") {
		t.Errorf("exec: %q", out)
	}
	if out, err := c.TryKubectl("hello stdin", "exec", "-i", pod, "--", "cat"); err != nil || out != "hello stdin" {
		t.Errorf("exec -i: %q %v", out, err)
	}
	if out, err := c.TryKubectl("", "exec", pod, "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exec exit code: %q %v", out, err)
	}
	if out := c.Kubectl("describe", "node"); !strings.Contains(out, "KubeletReady") || !strings.Contains(out, "PodCIDR") {
		t.Errorf("describe node:\n%s", out)
	}
	if out := c.Kubectl("get", "pods", "-o", "wide"); !strings.Contains(out, "1/1") || !strings.Contains(out, "Running") {
		t.Errorf("get pods:\n%s", out)
	}
	if out := c.Kubectl("explain", "deployment.spec.strategy"); !strings.Contains(out, "rollingUpdate") {
		t.Errorf("explain:\n%s", out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	cmd := c.KubectlCommand(ctx, "port-forward", "service/hello", ":80")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		cmd.Wait() //nolint:errcheck // it was cancelled
	}()
	sc := bufio.NewScanner(out)
	if !sc.Scan() {
		t.Fatal("port-forward said nothing")
	}
	var port int
	if _, err := fmt.Sscanf(sc.Text(), "Forwarding from 127.0.0.1:%d", &port); err != nil {
		t.Fatalf("port-forward: %q: %v", sc.Text(), err)
	}
	for range 3 {
		if body, err := get(fmt.Sprintf("http://127.0.0.1:%d/", port)); err != nil || !strings.Contains(body, "Hello from hello-") {
			t.Errorf("through port-forward: %q %v", body, err)
		}
	}
}

func testStaticPod(t *testing.T, c *kit.Cluster) {
	file := filepath.Join(c.Dir, "agent", "manifests", "static.yaml")
	write := func(arg string) {
		manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static, labels: {app: static}}\nspec:\n  containers:\n  - "+
			"{name: c, image: 'berth.dev/toolbox:1', args: [sh, -c, 'echo %s; sleep infinity']}\n", arg)
		if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	first := c.WaitReady("default", "app=static", 1)[0]
	if first.Annotations["kubernetes.io/config.mirror"] == "" {
		t.Errorf("the mirror pod has no mirror annotation: %v", first.Annotations)
	}
	c.Kubectl("delete", "pod", first.Name, "--grace-period=0", "--force")
	c.Eventually("mirror pod made again, container untouched", func() (bool, string) {
		pods := c.Pods("default", "app=static")
		if len(pods) != 1 || pods[0].UID == first.UID || !kit.PodReady(&pods[0]) {
			return false, fmt.Sprint(len(pods))
		}
		return pods[0].Status.ContainerStatuses[0].ContainerID == first.Status.ContainerStatuses[0].ContainerID,
			pods[0].Status.ContainerStatuses[0].ContainerID
	})
	write("two")
	c.Eventually("changed static pod runs the new command", func() (bool, string) {
		out, err := c.TryKubectl("", "logs", first.Name)
		return err == nil && strings.TrimSpace(out) == "two", out
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.Eventually("static pod gone", func() (bool, string) {
		n := len(c.Pods("default", "app=static"))
		return n == 0, fmt.Sprint(n)
	})
}

const featurePod = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello, file.txt: "from a config map"}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {word: xyzzy}
---
apiVersion: v1
kind: Pod
metadata: {name: features, labels: {app: features}}
spec:
  restartPolicy: Never
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: settings, configMap: {name: settings}}
  - {name: all, projected: {sources: [{secret: {name: secret}}, {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: ` +
	`metadata.labels}}]}}]}}
  initContainers:
  - {name: first, image: "berth.dev/toolbox:1", args: [sh, -c, "echo init-was-here > /scratch/init"], volumeMounts: [{name: scratch, ` +
	`mountPath: /scratch}]}
  containers:
  - name: main
    image: berth.dev/toolbox:1
    args: [sh, -c, "cat /scratch/init /settings/file.txt /all/word /all/labels; echo; echo $GREETING $WORD $NODE $LIMIT"]
    env:
    - {name: GREETING, valueFrom: {configMapKeyRef: {name: settings, key: greeting}}}
    - {name: WORD, valueFrom: {secretKeyRef: {name: secret, key: word}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    resources: {limits: {memory: 48Mi, cpu: 200m}}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: settings, mountPath: /settings}
    - {name: all, mountPath: /all}
`

func testPodFeatures(t *testing.T, c *kit.Cluster) {
	c.Apply(featurePod)
	c.Eventually("pod with volumes and env succeeded", func() (bool, string) {
		pods := c.Pods("default", "app=features")
		return len(pods) == 1 && pods[0].Status.Phase == v1.PodSucceeded, func() string {
			if len(pods) == 1 {
				return kit.Describe(&pods[0])
			}
			return "no pod"
		}()
	})
	out := c.Kubectl("logs", "features")
	for _, want := range []string{"init-was-here", "from a config map", "xyzzy", `app="features"`, "hello xyzzy", " 48"} {
		if !strings.Contains(out, want) {
			t.Errorf("log lacks %q:\n%s", want, out)
		}
	}
	c.Apply(`{apiVersion: v1, kind: Pod, metadata: {name: crash, labels: {app: crash}}, spec: {containers: [{name: c, image: ` +
		`"berth.dev/toolbox:1", args: [sh, -c, "exit 3"]}]}}`)
	c.Eventually("crash loop with back-off", func() (bool, string) {
		pods := c.Pods("default", "app=crash")
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return false, "no status"
		}
		cs := pods[0].Status.ContainerStatuses[0]
		return cs.State.Waiting != nil && cs.State.Waiting.Reason == "CrashLoopBackOff" && cs.LastTerminationState.Terminated != nil &&
			cs.LastTerminationState.Terminated.ExitCode == 3, kit.Describe(&pods[0])
	})
	c.Kubectl("delete", "pod", "features", "crash", "--wait")
	if n := len(c.Pods("default", "app in (features, crash)")); n != 0 {
		t.Errorf("%d pods left after delete", n)
	}
}

func testRollingUpdate(t *testing.T, c *kit.Cluster) {
	c.Kubectl("set", "env", "deployment/hello", "ROUND=2")
	c.Kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
	c.Eventually("only new pods", func() (bool, string) {
		pods := c.Pods("default", "app=hello")
		for i := range pods {
			env := pods[i].Spec.Containers[0].Env
			if len(env) != 1 || env[0].Value != "2" {
				return false, kit.Describe(&pods[i])
			}
		}
		return len(pods) == 2, fmt.Sprint(len(pods))
	})
	if out := c.Kubectl("rollout", "history", "deployment/hello"); !strings.Contains(out, "2") {
		t.Errorf("history:\n%s", out)
	}
}

func testDrain(t *testing.T, c *kit.Cluster) {
	nodes, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatal(nodes, err)
	}
	name := nodes.Items[0].Name
	c.Kubectl("cordon", name)
	c.Kubectl("drain", name, "--ignore-daemonsets", "--timeout=60s")
	c.Eventually("drained pods wait for a node", func() (bool, string) {
		pods := c.Pods("default", "app=hello")
		pending := 0
		for _, p := range pods {
			if p.Status.Phase == v1.PodPending && p.Spec.NodeName == "" {
				pending++
			}
		}
		return pending == 2, fmt.Sprintf("%d of %d pending", pending, len(pods))
	})
	c.Eventually("an event says why", func() (bool, string) {
		out := c.Kubectl("get", "events", "--field-selector", "reason=FailedScheduling")
		return strings.Contains(out, "0/1 nodes are available") && strings.Contains(out, "unschedulable"), out
	})
	c.Kubectl("uncordon", name)
	c.WaitReady("default", "app=hello", 2)
}

// testRestart stops berth, starts it again and checks that no workload
// noticed: same processes, no restart counted, Ready never left.
func testRestart(t *testing.T, c *kit.Cluster, stop func()) {
	old := c.WaitReady("default", "app=hello", 2)
	pids := c.ContainerPIDs()
	runtime := c.RuntimePID()
	c.Disconnect()
	pid := c.PID()
	stop()
	kit.WaitProcessGone(t, pid)
	if now := c.ContainerPIDs(); !maps.Equal(now, pids) {
		t.Errorf("containers while berth is down: %v, want %v", now, pids)
	}
	c.Up()
	now := c.WaitReady("default", "app=hello", 2)
	if got := c.ContainerPIDs(); !maps.Equal(got, pids) {
		t.Errorf("containers after the restart: %v, want %v", got, pids)
	}
	if got := c.RuntimePID(); got != runtime {
		t.Errorf("the runtime was started again: process %d, was %d", got, runtime)
	}
	was := map[string]v1.Pod{}
	for _, p := range old {
		was[p.Name] = p
	}
	for _, p := range now {
		o, ok := was[p.Name]
		if !ok {
			t.Errorf("pod %s is new", p.Name)
			continue
		}
		if p.Status.ContainerStatuses[0].RestartCount != o.Status.ContainerStatuses[0].RestartCount {
			t.Errorf("pod %s: restarts went from %d to %d", p.Name, o.Status.ContainerStatuses[0].RestartCount,
				p.Status.ContainerStatuses[0].RestartCount)
		}
		if !kit.ReadySince(&p).Equal(kit.ReadySince(&o)) {
			t.Errorf("pod %s: Ready flipped at %v", p.Name, kit.ReadySince(&p))
		}
	}
	node, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cond := range node.Items[0].Status.Conditions {
		if cond.Type == v1.NodeReady && cond.Status != v1.ConditionTrue {
			t.Errorf("node is not Ready after the restart: %s", cond.Message)
		}
	}
}

func testRuntimeKill(t *testing.T, c *kit.Cluster) {
	pids := c.ContainerPIDs()
	old := c.RuntimePID()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	kit.WaitProcessGone(t, old)
	c.Eventually("a new runtime", func() (bool, string) {
		return c.RuntimePID() != old, "still the old pid file"
	})
	c.Kubectl("run", "after", "--image=berth.dev/toolbox:1", "--", "serve")
	c.WaitReady("default", "run=after", 1)
	for id, pid := range pids {
		if c.ContainerPIDs()[id] != pid {
			t.Errorf("container %s lost its process %d", id, pid)
		}
	}
	c.Kubectl("delete", "pod", "after", "--wait")
}
