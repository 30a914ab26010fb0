package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
)

func TestMain(m *testing.M) { livetest.Main(m) }

// patience ends a test that would hang; it decides nothing else.
const patience = 20 * time.Second

// cluster is a fake API with one node and the real runtime.
type cluster struct {
	*testing.T
	ctx  context.Context
	api  *fake.Clientset
	root string
	// endpoint is the runtime's.
	endpoint string
	agent    inside
	stop     context.CancelFunc
	done     chan error
}

func newCluster(t *testing.T) *cluster {
	endpoint := livetest.Endpoint(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	c := &cluster{T: t, ctx: ctx, root: t.TempDir(), endpoint: endpoint}
	c.api = fake.NewClientset(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"},
		Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}},
	})
	c.api.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		if p := a.(ktesting.CreateAction).GetObject().(*v1.Pod); p.UID == "" {
			p.UID = types.UID(fmt.Sprintf("%s-%d", p.Name, time.Now().UnixNano()))
		}
		return false, nil, nil
	})
	// The fake does not look at the UID that guards a patch; an API server does.
	c.api.PrependReactor("patch", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		pa := a.(ktesting.PatchAction)
		var guard struct{ Metadata struct{ UID types.UID } }
		if err := json.Unmarshal(pa.GetPatch(), &guard); err != nil || guard.Metadata.UID == "" {
			c.Errorf("a status patch without a UID: %s", pa.GetPatch())
		}
		have, err := c.api.Tracker().Get(a.GetResource(), a.GetNamespace(), pa.GetName())
		if err == nil && have.(*v1.Pod).UID != guard.Metadata.UID {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), pa.GetName(), errors.New("the UID differs"))
		}
		return false, nil, nil
	})
	c.start()
	t.Cleanup(func() { c.clear(); c.halt(); c.dropCgroups() })
	return c
}

// dropCgroups removes what the agent's tree leaves by design; what is not
// empty stays.
func (c *cluster) dropCgroups() {
	for _, sub := range []string{"/kubepods/burstable", "/kubepods/besteffort", "/kubepods", ""} {
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			found, _ := filepath.Glob(root + "/berth-test" + sub)
			for _, dir := range found {
				_ = os.Remove(dir)
			}
		}
	}
}

// start runs an agent and keeps what tests look at.
func (c *cluster) start() {
	c.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	c.stop, c.done = cancel, make(chan error, 1)
	got := make(chan inside, 1)
	level := slog.LevelWarn
	if os.Getenv("BERTH_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	cfg := Config{
		Node: node.Settings{Identity: node.Identity{Name: "n1"}}, API: API{Client: c.api, Events: &record.FakeRecorder{}}, RootDir: c.root,
		Kubelet: &kubeletv1beta1.KubeletConfiguration{
			ContainerRuntimeEndpoint: c.endpoint, PodLogsDir: c.root + "/logs",
			StaticPodPath: c.root + "/manifests", CgroupRoot: "/berth-test", ClusterDomain: "cluster.local",
			// How full the machine's disk is must not decide.
			EvictionHard: map[string]string{"memory.available": "1Mi", "nodefs.available": "1Mi",
				"imagefs.available": "1Mi"},
			ImageGCHighThresholdPercent: ptr.To(int32(100)),
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	if err := os.MkdirAll(c.root+"/manifests", 0o755); err != nil {
		c.Fatal(err)
	}
	go func() { c.done <- run(ctx, cfg, func(in inside) { got <- in }) }()
	select {
	case c.agent = <-got:
	case err := <-c.done:
		c.Fatalf("the agent ended: %v", err)
	}
}

// halt ends the agent and waits for it.
func (c *cluster) halt() {
	c.stop()
	<-c.done
}

// clear deletes all pods and waits until nothing is left of them.
func (c *cluster) clear() {
	pods, err := c.api.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.Error(err)
		return
	}
	for i := range pods.Items {
		c.delete(&pods.Items[i], 0)
	}
	deadline := time.After(patience)
	for len(c.agent.pods.List()) > 0 || len(c.agent.watcher.Pods()) > 0 {
		changed := c.agent.watcher.Changed()
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			c.Errorf("pods are left: %v", c.agent.watcher.Pods())
			return
		}
	}
}

func (c *cluster) create(name, script string, change ...func(*v1.Pod)) *v1.Pod {
	c.Helper()
	grace := int64(30)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(fmt.Sprintf("%s-%d", name, time.Now().UnixNano())),
			Generation: 1},
		Spec: v1.PodSpec{
			NodeName: "n1", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: v1.DNSDefault,
			Containers: []v1.Container{{
				Name: "app", Image: "berth.dev/toolbox:1", Command: []string{"/bin/sh", "-c", script}, ImagePullPolicy: v1.PullIfNotPresent,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
			}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	for _, f := range change {
		f(p)
	}
	p, err := c.api.CoreV1().Pods("default").Create(c.ctx, p, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return p
}

// delete does what the API server does on a graceful deletion.
func (c *cluster) delete(p *v1.Pod, grace int64) {
	c.Helper()
	p, err := c.api.CoreV1().Pods(p.Namespace).Get(context.Background(), p.Name, metav1.GetOptions{})
	if err != nil {
		return
	}
	at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
	if _, err := c.api.CoreV1().Pods(p.Namespace).Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		c.Error(err)
	}
}

// await waits until a pod in the API is as wanted; nil means gone.
func (c *cluster) await(name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	c.Helper()
	w, err := c.api.CoreV1().Pods("default").Watch(c.ctx, metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	defer w.Stop()
	deadline := time.After(patience)
	for {
		p, err := c.api.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			p = nil
		}
		if p == nil && ok(nil) || p != nil && ok(p) {
			return p
		}
		select {
		case <-w.ResultChan():
		case <-deadline:
			c.Fatalf("pod %s is never %s: %+v", name, what, status(p))
		}
	}
}

func status(p *v1.Pod) any {
	if p == nil {
		return "it does not exist"
	}
	return p.Status
}

func running(p *v1.Pod) bool {
	if p == nil || p.Status.Phase != v1.PodRunning {
		return false
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.Status == v1.ConditionTrue
		}
	}
	return false
}

func gone(p *v1.Pod) bool { return p == nil }

func TestPodLife(t *testing.T) {
	c := newCluster(t)
	began := time.Now()
	c.create("web", "echo hello; while true; do sleep 3600; done")
	p := c.await("web", "running", running)
	t.Logf("running after %s", time.Since(began).Round(time.Millisecond))
	if p.Status.PodIP == "" || bareID(p.Status.ContainerStatuses[0].ContainerID) == "" {
		t.Errorf("status is incomplete: %+v", p.Status)
	}
	patches := 0
	for _, a := range c.api.Actions() {
		if a.GetVerb() == "patch" && a.GetResource().Resource == "pods" {
			patches++
		}
	}
	t.Logf("%d status patches", patches)
	began = time.Now()
	c.delete(p, 1)
	c.await("web", "gone", gone)
	t.Logf("gone after %s", time.Since(began).Round(time.Millisecond))
}

// TestRestart: a restarted agent finds everything running again.
func TestRestart(t *testing.T) {
	c := newCluster(t)
	const pods = 5
	for i := range pods {
		c.create(fmt.Sprintf("p%d", i), "while true; do sleep 3600; done", func(p *v1.Pod) {
			if i == 0 {
				// not the load, but the restart is tried
				p.Spec.Containers[0].ReadinessProbe = &v1.Probe{
					ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/bin/sh", "-c", "exit 0"}}}, TimeoutSeconds: 60}
			}
		})
	}
	before := map[string]v1.PodStatus{}
	for i := range pods {
		p := c.await(fmt.Sprintf("p%d", i), "running", running)
		before[p.Name] = p.Status
	}
	c.halt()
	c.api.ClearActions()
	c.start()
	settled := c.create("later", "while true; do sleep 3600; done")
	c.await(settled.Name, "running", running)
	for name, was := range before {
		p, err := c.api.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !running(p) || p.Status.ContainerStatuses[0].ContainerID != was.ContainerStatuses[0].ContainerID ||
			p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("pod %s was disturbed: %+v", name, p.Status)
		}
	}
	for _, a := range c.api.Actions() {
		if a.GetVerb() == "patch" && a.GetResource().Resource == "pods" && !strings.Contains(fmt.Sprint(a), settled.Name) {
			t.Errorf("the restart wrote a status: %v", a)
		}
	}
}

// TestStaticPod: a manifest runs, is mirrored, and ends when it goes.
func TestStaticPod(t *testing.T) {
	c := newCluster(t)
	file := c.root + "/manifests/web.yaml"
	manifest := `
apiVersion: v1
kind: Pod
metadata: {name: fixed}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "berth.dev/toolbox:1", command: ["/bin/sh", "-c", "while true; do sleep 3600; done"]}]
`
	if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	m := c.await("fixed-n1", "running", running)
	if m.OwnerReferences[0].Name != "n1" || m.Annotations["kubernetes.io/config.mirror"] == "" {
		t.Errorf("the mirror is not one: %+v", m.ObjectMeta)
	}
	id := m.Status.ContainerStatuses[0].ContainerID
	if err := c.api.CoreV1().Pods("default").Delete(c.ctx, m.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m = c.await("fixed-n1", "mirrored again", running)
	if m.Status.ContainerStatuses[0].ContainerID != id {
		t.Errorf("deleting the mirror touched the pod: %s, was %s", m.Status.ContainerStatuses[0].ContainerID, id)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(manifest, "3600", "7200", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	m = c.await("fixed-n1", "running anew", func(p *v1.Pod) bool {
		return running(p) && p.Status.ContainerStatuses[0].ContainerID != id
	})
	id = m.Status.ContainerStatuses[0].ContainerID
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.await("fixed-n1", "gone", gone)
	// The same manifest again is the same pod, started another time.
	if err := os.WriteFile(file, []byte(strings.Replace(manifest, "3600", "7200", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	c.await("fixed-n1", "back", func(p *v1.Pod) bool { return running(p) && p.Status.ContainerStatuses[0].ContainerID != id })
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.await("fixed-n1", "gone for good", gone)
}

// TestCrashLoop: an ended container comes back, with what it said.
func TestCrashLoop(t *testing.T) {
	c := newCluster(t)
	c.create("bad", "echo -n sorry > /dev/termination-log; exit 7")
	p := c.await("bad", "in back-off", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	s := p.Status.ContainerStatuses[0]
	if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 7 ||
		s.LastTerminationState.Terminated.Message != "sorry" {
		t.Errorf("the crash is told as %+v", s)
	}
}

// TestManyPods starts many at once.
func TestManyPods(t *testing.T) {
	c := newCluster(t)
	const n = 30
	began := time.Now()
	for i := range n {
		c.create(fmt.Sprintf("p%d", i), "while true; do sleep 3600; done")
	}
	for i := range n {
		c.await(fmt.Sprintf("p%d", i), "running", running)
	}
	t.Logf("%d pods after %s", n, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	c.clear()
	t.Logf("gone after %s", time.Since(began).Round(time.Millisecond))
}

// TestOrphans: what no source has goes when the agent starts.
func TestOrphans(t *testing.T) {
	c := newCluster(t)
	p := c.create("web", "while true; do sleep 3600; done")
	c.await("web", "running", running)
	c.halt()
	if err := c.api.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "default", p.Name); err != nil {
		t.Fatal(err)
	}
	c.start()
	deadline := time.After(patience)
	for {
		changed := c.agent.watcher.Changed()
		if len(c.agent.watcher.Pods()) == 0 {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("the orphan is still there: %v", c.agent.watcher.Pods())
		}
	}
}

// TestResize: a container's limits change under it.
func TestResize(t *testing.T) {
	c := newCluster(t)
	limit := func(n, cpu string) v1.ResourceRequirements {
		l := v1.ResourceList{v1.ResourceMemory: resource.MustParse(n), v1.ResourceCPU: resource.MustParse(cpu)}
		// Not guaranteed: such a pod's oom_score_adj may be one that a runtime
		// without CAP_SYS_RESOURCE cannot set.
		return v1.ResourceRequirements{Limits: l, Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse(n),
			v1.ResourceCPU: resource.MustParse("10m")}}
	}
	c.create("web", forever, func(p *v1.Pod) { p.Spec.Containers[0].Resources = limit("64Mi", "100m") })
	p := c.await("web", "running", running)
	id := p.Status.ContainerStatuses[0].ContainerID
	// Up, and down: there the pod's cgroup has to wait for its containers.
	for _, to := range []struct {
		memory, cpu  string
		bytes, quota int64
	}{{"128Mi", "200m", 128 << 20, 20000}, {"32Mi", "50m", 32 << 20, 5000}} {
		p.Spec.Containers[0].Resources = limit(to.memory, to.cpu)
		p.Generation++
		if _, err := c.api.CoreV1().Pods("default").Update(c.ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p = c.await("web", "resized", func(p *v1.Pod) bool {
			s := p.Status.ContainerStatuses[0]
			return s.AllocatedResources.Memory().String() == to.memory && s.Resources != nil &&
				s.Resources.Limits.Memory().String() == to.memory
		})
		if s := p.Status.ContainerStatuses[0]; s.ContainerID != id || s.RestartCount != 0 {
			t.Errorf("the container was restarted: %+v", s)
		}
		st, err := c.agent.runtime.ContainerStatus(c.ctx, bareID(id), false)
		l := st.GetStatus().GetResources().GetLinux()
		if err != nil || l.GetMemoryLimitInBytes() != to.bytes || l.GetCpuQuota() != to.quota {
			t.Errorf("the runtime enforces %v, %v", l, err)
		}
	}
}

// bareID is a container's ID as the runtime knows it, "" if the status does not
// say which runtime that is.
func bareID(id string) string {
	_, bare, _ := strings.Cut(id, "://")
	return bare
}
