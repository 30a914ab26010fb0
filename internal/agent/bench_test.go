package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// direct starts a pod by the CRI calls alone, with no agent: the floor.
func (c *cluster) direct(name string) (remove func(), err error) {
	labels := map[string]string{kubelettypes.KubernetesPodNameLabel: name, kubelettypes.KubernetesPodNamespaceLabel: "floor",
		kubelettypes.KubernetesContainerNameLabel: "app"}
	dir := filepath.Join(c.root, "floor", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	sb := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "floor", Uid: name}, LogDirectory: dir, Labels: labels,
		Hostname: name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}},
	}
	id, err := c.agent.runtime.RunPodSandbox(c.ctx, sb, "")
	if err != nil {
		return nil, err
	}
	remove = func() {
		_ = c.agent.runtime.StopPodSandbox(c.ctx, id)
		_ = c.agent.runtime.RemovePodSandbox(c.ctx, id)
	}
	ct, err := c.agent.runtime.CreateContainer(c.ctx, id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, Image: &runtimeapi.ImageSpec{Image: "berth.dev/toolbox:1"},
		Command: []string{"/bin/sh", "-c", forever}, LogPath: "app.log", Labels: labels,
		Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{OomScoreAdj: 1000},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
				Pid: runtimeapi.NamespaceMode_CONTAINER}}},
	}, sb)
	if err != nil {
		return remove, err
	}
	return remove, c.agent.runtime.StartContainer(c.ctx, ct)
}

const forever = "while true; do sleep 3600; done"

// TestFloor prints how much longer a pod takes through the agent than by the
// same CRI calls made directly, one at a time and many at once.
func TestFloor(t *testing.T) {
	c := newCluster(t)
	if os.Getenv("BERTH_BENCH") == "" {
		t.Skip("a measurement, not a test: set BERTH_BENCH=1")
	}
	const rounds = 15
	var floor, whole []time.Duration
	for i := range rounds {
		began := time.Now()
		remove, err := c.direct(fmt.Sprintf("d%d", i))
		if err != nil {
			t.Fatal(err)
		}
		floor = append(floor, time.Since(began))
		remove()
		name := fmt.Sprintf("a%d", i)
		began = time.Now()
		p := c.create(name, forever)
		c.await(name, "running", running)
		whole = append(whole, time.Since(began))
		c.delete(p, 1)
		c.await(name, "gone", gone)
	}
	report(t, "one pod", floor, whole)
	for _, n := range []int{30, 60} {
		began := time.Now()
		removes := make([]func(), n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { removes[i], _ = c.direct(fmt.Sprintf("d%d-%d", n, i)) })
		}
		wg.Wait()
		f := time.Since(began)
		for _, r := range removes {
			wg.Go(r)
		}
		wg.Wait()
		began = time.Now()
		var pods []*v1.Pod
		for i := range n {
			pods = append(pods, c.create(fmt.Sprintf("a%d-%d", n, i), forever))
		}
		for _, p := range pods {
			c.await(p.Name, "running", running)
		}
		report(t, fmt.Sprintf("%d pods at once", n), []time.Duration{f}, []time.Duration{time.Since(began)})
		began = time.Now()
		c.clear()
		t.Logf("%d pods deleted in %s", n, time.Since(began).Round(time.Millisecond))
	}
}

func report(t *testing.T, what string, floor, whole []time.Duration) {
	slices.Sort(floor)
	slices.Sort(whole)
	f, w := floor[len(floor)/2], whole[len(whole)/2]
	t.Logf("%s: direct p50 %s, through the agent p50 %s max %s: %.2f times", what, f.Round(time.Millisecond), w.Round(time.Millisecond),
		whole[len(whole)-1].Round(time.Millisecond), float64(w)/float64(f))
}
