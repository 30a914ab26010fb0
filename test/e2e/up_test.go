package e2e

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
)

// TestMainJob follows a new user through one cluster's life. The steps build
// on each other; each is a sub-test so that a failure names the step.
func TestMainJob(t *testing.T) {
	c := newCluster(t)
	before := look(t, c.dir)
	step := func(name string, f func(t *testing.T)) {
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			c.t = t
			defer func() { c.t = t }()
			f(t)
		})
	}
	defer func() { c.t = t }()

	step("up", func(t *testing.T) {
		out := c.up()
		if !strings.Contains(out, "Ready") || !strings.Contains(out, "next:") {
			t.Errorf("up must end with the node table and the next command:\n%s", out)
		}
		if again, err := c.tryUp(); err != nil || !strings.Contains(again, "already up") {
			t.Errorf("a second up must be a no-op with a status line: %v\n%s", err, again)
		}
		if out := c.berth("status", "--data-dir", c.dir); !strings.Contains(out, c.dir) || strings.Contains(out, "BAD") {
			t.Errorf("status:\n%s", out)
		}
	})
	step("hello", func(t *testing.T) {
		c.kubectl("apply", "-f", filepath.Join("..", "..", "examples", "hello.yaml"))
		c.waitReady("default", "app=hello", 2)
	})
	step("service from the node and from a pod", func(t *testing.T) { testService(t, c) })
	step("logs, exec, port-forward, describe", func(t *testing.T) { testKubectl(t, c) })
	step("static pod", func(t *testing.T) { testStaticPod(t, c) })
	step("pod features", func(t *testing.T) { testPodFeatures(t, c) })
	step("rolling update", func(t *testing.T) { testRollingUpdate(t, c) })
	step("cordon and drain", func(t *testing.T) { testDrain(t, c) })
	step("restart of berth", func(t *testing.T) {
		testRestart(t, c, func() {
			if err := unix.Kill(c.pid(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		})
	})
	step("kill -9 of berth", func(t *testing.T) {
		testRestart(t, c, func() {
			if err := unix.Kill(c.pid(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		})
	})
	step("kill -9 of the runtime", func(t *testing.T) { testRuntimeKill(t, c) })
	step("down keeps the data, up brings everything back", func(t *testing.T) {
		c.kubectl("create", "configmap", "kept", "--from-literal=a=b")
		c.disconnect()
		c.down()
		if left := c.containerPIDs(); len(left) != 0 {
			t.Errorf("containers still run after down: %v", left)
		}
		c.up()
		c.waitReady("default", "app=hello", 2)
		if got := c.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}"); got != "b" {
			t.Errorf("configmap after down and up: %q", got)
		}
	})
	step("the audit log says who did what", func(t *testing.T) { testAudit(t, c) })
	step("purge leaves nothing", func(t *testing.T) {
		c.disconnect()
		c.berth("down", "--data-dir", c.dir, "--purge")
		if left := look(t, c.dir).left(before); len(left) != 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		if _, err := os.Stat(c.dir); !errors.Is(err, os.ErrNotExist) {
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

func testService(t *testing.T, c *cluster) {
	svc, err := c.client.CoreV1().Services("default").Get(context.Background(), "hello", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://%s/hostname", svc.Spec.ClusterIP)
	c.eventually("answers of both pods through the service, from the node", func() (bool, string) {
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
	pod := c.waitReady("default", "app=hello", 2)[0].Name
	if out := c.kubectl("exec", pod, "--", "wget", "-T", "5", url); !strings.HasPrefix(out, "hello-") {
		t.Errorf("service from a pod: %q", out)
	}
	for _, name := range []string{"hello", "hello.default", "hello.default.svc.cluster.local"} {
		if out := c.kubectl("exec", pod, "--", "wget", "-T", "5", "http://"+name+"/hostname"); !strings.HasPrefix(out, "hello-") {
			t.Errorf("service by the name %s from a pod: %q", name, out)
		}
	}
	if out := c.berth("why", "pod", pod, "--data-dir", c.dir); !strings.Contains(out, "placed on") ||
		!strings.Contains(out, "starting container web") {
		t.Errorf("why pod:\n%s", out)
	}
}

func testKubectl(t *testing.T, c *cluster) {
	pod := c.waitReady("default", "app=hello", 2)[0].Name
	if out := c.kubectl("logs", pod); !strings.Contains(out, "serving on port 8080") {
		t.Errorf("logs: %q", out)
	}
	if out := c.kubectl("exec", pod, "--", "sh", "-c",
		"echo $HOSTNAME $KUBERNETES_SERVICE_HOST; ls /var/run/secrets/kubernetes.io/serviceaccount"); !strings.Contains(out, pod) ||
		!strings.Contains(out, "token") {
		t.Errorf("exec: %q", out)
	}
	if out, err := c.tryKubectl("hello stdin", "exec", "-i", pod, "--", "cat"); err != nil || out != "hello stdin" {
		t.Errorf("exec -i: %q %v", out, err)
	}
	if out, err := c.tryKubectl("", "exec", pod, "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exec exit code: %q %v", out, err)
	}
	if out := c.kubectl("describe", "node"); !strings.Contains(out, "KubeletReady") || !strings.Contains(out, "PodCIDR") {
		t.Errorf("describe node:\n%s", out)
	}
	if out := c.kubectl("get", "pods", "-o", "wide"); !strings.Contains(out, "1/1") || !strings.Contains(out, "Running") {
		t.Errorf("get pods:\n%s", out)
	}
	if out := c.kubectl("explain", "deployment.spec.strategy"); !strings.Contains(out, "rollingUpdate") {
		t.Errorf("explain:\n%s", out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.kubectlCommand(ctx, "port-forward", "service/hello", ":80")
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

func testStaticPod(t *testing.T, c *cluster) {
	file := filepath.Join(c.dir, "agent", "manifests", "static.yaml")
	write := func(arg string) {
		manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static, labels: {app: static}}\nspec:\n  containers:\n  - "+
			"{name: c, image: 'berth.dev/toolbox:1', args: [sh, -c, 'echo %s; sleep infinity']}\n", arg)
		if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	first := c.waitReady("default", "app=static", 1)[0]
	if first.Annotations["kubernetes.io/config.mirror"] == "" {
		t.Errorf("the mirror pod has no mirror annotation: %v", first.Annotations)
	}
	c.kubectl("delete", "pod", first.Name, "--grace-period=0", "--force")
	c.eventually("mirror pod made again, container untouched", func() (bool, string) {
		pods := c.pods("default", "app=static")
		if len(pods) != 1 || pods[0].UID == first.UID || !podReady(&pods[0]) {
			return false, fmt.Sprint(len(pods))
		}
		return pods[0].Status.ContainerStatuses[0].ContainerID == first.Status.ContainerStatuses[0].ContainerID,
			pods[0].Status.ContainerStatuses[0].ContainerID
	})
	write("two")
	c.eventually("changed static pod runs the new command", func() (bool, string) {
		out, err := c.tryKubectl("", "logs", first.Name)
		return err == nil && strings.TrimSpace(out) == "two", out
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.eventually("static pod gone", func() (bool, string) {
		n := len(c.pods("default", "app=static"))
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

func testPodFeatures(t *testing.T, c *cluster) {
	c.apply(featurePod)
	c.eventually("pod with volumes and env succeeded", func() (bool, string) {
		pods := c.pods("default", "app=features")
		return len(pods) == 1 && pods[0].Status.Phase == v1.PodSucceeded, func() string {
			if len(pods) == 1 {
				return describe(&pods[0])
			}
			return "no pod"
		}()
	})
	out := c.kubectl("logs", "features")
	for _, want := range []string{"init-was-here", "from a config map", "xyzzy", `app="features"`, "hello xyzzy", " 48"} {
		if !strings.Contains(out, want) {
			t.Errorf("log lacks %q:\n%s", want, out)
		}
	}
	c.apply(`{apiVersion: v1, kind: Pod, metadata: {name: crash, labels: {app: crash}}, spec: {containers: [{name: c, image: ` +
		`"berth.dev/toolbox:1", args: [sh, -c, "exit 3"]}]}}`)
	c.eventually("crash loop with back-off", func() (bool, string) {
		pods := c.pods("default", "app=crash")
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return false, "no status"
		}
		cs := pods[0].Status.ContainerStatuses[0]
		return cs.State.Waiting != nil && cs.State.Waiting.Reason == "CrashLoopBackOff" && cs.LastTerminationState.Terminated != nil &&
			cs.LastTerminationState.Terminated.ExitCode == 3, describe(&pods[0])
	})
	c.kubectl("delete", "pod", "features", "crash", "--wait")
	if n := len(c.pods("default", "app in (features, crash)")); n != 0 {
		t.Errorf("%d pods left after delete", n)
	}
}

func testRollingUpdate(t *testing.T, c *cluster) {
	c.kubectl("set", "env", "deployment/hello", "ROUND=2")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
	c.eventually("only new pods", func() (bool, string) {
		pods := c.pods("default", "app=hello")
		for i := range pods {
			env := pods[i].Spec.Containers[0].Env
			if len(env) != 1 || env[0].Value != "2" {
				return false, describe(&pods[i])
			}
		}
		return len(pods) == 2, fmt.Sprint(len(pods))
	})
	if out := c.kubectl("rollout", "history", "deployment/hello"); !strings.Contains(out, "2") {
		t.Errorf("history:\n%s", out)
	}
}

func testDrain(t *testing.T, c *cluster) {
	nodes, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatal(nodes, err)
	}
	name := nodes.Items[0].Name
	c.kubectl("cordon", name)
	c.kubectl("drain", name, "--ignore-daemonsets", "--timeout=60s")
	c.eventually("drained pods wait for a node", func() (bool, string) {
		pods := c.pods("default", "app=hello")
		pending := 0
		for _, p := range pods {
			if p.Status.Phase == v1.PodPending && p.Spec.NodeName == "" {
				pending++
			}
		}
		return pending == 2, fmt.Sprintf("%d of %d pending", pending, len(pods))
	})
	c.eventually("an event says why", func() (bool, string) {
		out := c.kubectl("get", "events", "--field-selector", "reason=FailedScheduling")
		return strings.Contains(out, "0/1 nodes are available") && strings.Contains(out, "unschedulable"), out
	})
	c.kubectl("uncordon", name)
	c.waitReady("default", "app=hello", 2)
}

// testRestart stops berth, starts it again and checks that no workload
// noticed: same processes, no restart counted, Ready never left.
func testRestart(t *testing.T, c *cluster, stop func()) {
	old := c.waitReady("default", "app=hello", 2)
	pids := c.containerPIDs()
	runtime := c.runtimePID()
	c.disconnect()
	pid := c.pid()
	stop()
	waitGone(t, pid)
	if now := c.containerPIDs(); !maps.Equal(now, pids) {
		t.Errorf("containers while berth is down: %v, want %v", now, pids)
	}
	c.up()
	now := c.waitReady("default", "app=hello", 2)
	if got := c.containerPIDs(); !maps.Equal(got, pids) {
		t.Errorf("containers after the restart: %v, want %v", got, pids)
	}
	if got := c.runtimePID(); got != runtime {
		t.Errorf("the runtime was started anew: process %d, was %d", got, runtime)
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
		if !readySince(&p).Equal(readySince(&o)) {
			t.Errorf("pod %s: Ready flipped at %v", p.Name, readySince(&p))
		}
	}
	node, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cond := range node.Items[0].Status.Conditions {
		if cond.Type == v1.NodeReady && cond.Status != v1.ConditionTrue {
			t.Errorf("node is not Ready after the restart: %s", cond.Message)
		}
	}
}

func readySince(p *v1.Pod) time.Time {
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// waitGone returns once process pid ended.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("process %d did not end: %v", pid, err)
		}
		return
	}
}

func testRuntimeKill(t *testing.T, c *cluster) {
	pids := c.containerPIDs()
	old := c.runtimePID()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, old)
	c.eventually("a new runtime", func() (bool, string) {
		return c.runtimePID() != old, "still the old pid file"
	})
	c.kubectl("run", "after", "--image=berth.dev/toolbox:1", "--", "serve")
	c.waitReady("default", "run=after", 1)
	for id, pid := range pids {
		if c.containerPIDs()[id] != pid {
			t.Errorf("container %s lost its process %d", id, pid)
		}
	}
	c.kubectl("delete", "pod", "after", "--wait")
}
