package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/cluster/containerd"
)

// cri makes the runtime calls of a pod's life with nobody between.
type cri struct {
	conn *grpc.ClientConn
	rt   runtimeapi.RuntimeServiceClient
}

func dialCRI(socket string) (*cri, error) {
	conn, err := containerd.Dial(socket)
	if err != nil {
		return nil, err
	}
	return &cri{conn, runtimeapi.NewRuntimeServiceClient(conn)}, nil
}

// start runs one pause pod; it returns its sandbox.
func (c *cri) start(ctx context.Context, name, logs string) (string, error) {
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "floor"},
		LogDirectory: logs, Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	sb, err := c.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		return "", fmt.Errorf("running a sandbox: %w", err)
	}
	ctr, err := c.rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: cfg,
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "berth.dev/pause:1"},
			LogPath: name + ".log", Linux: &runtimeapi.LinuxContainerConfig{}}})
	if err != nil {
		return "", fmt.Errorf("creating a container: %w", err)
	}
	_, err = c.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: ctr.ContainerId})
	return sb.PodSandboxId, err
}

func (c *cri) remove(ctx context.Context, sandbox string) error {
	if _, err := c.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return err
	}
	_, err := c.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	return err
}

// floor measures what no agent can be faster than.
func (b *bench) floor(ctx context.Context) error {
	logs := b.Dir + "/floor-logs"
	var one []time.Duration
	for i := range 21 {
		began := time.Now()
		sb, err := b.cri.start(ctx, fmt.Sprintf("one-%d", i), logs)
		if err != nil {
			return err
		}
		if i > 0 { // the first warms the caches
			one = append(one, time.Since(began))
		}
		if err := b.cri.remove(ctx, sb); err != nil {
			return err
		}
	}
	b.floorOne = quantile(one, 0.5)
	fmt.Printf("floor     one pod by direct CRI calls: median %s, p99 %s\n", ms(b.floorOne), ms(quantile(one, 0.99)))
	b.floorMany = map[int]time.Duration{}
	for _, n := range []int{60, 100} {
		took, err := b.floorBurst(ctx, n, logs)
		if err != nil {
			return err
		}
		b.floorMany[n] = took
		fmt.Printf("floor     %d pods at once by direct CRI calls: last %s\n", n, ms(took))
	}
	return nil
}

func (b *bench) floorBurst(ctx context.Context, n int, logs string) (time.Duration, error) {
	began := time.Now()
	var wg sync.WaitGroup
	ids, errs := make([]string, n), make([]error, n)
	for i := range n {
		wg.Go(func() { ids[i], errs[i] = b.cri.start(ctx, fmt.Sprintf("many-%d-%d", n, i), logs) })
	}
	wg.Wait()
	took := time.Since(began)
	for i := range n {
		if errs[i] != nil {
			return 0, errs[i]
		}
	}
	for i := range n {
		wg.Go(func() { errs[i] = b.cri.remove(ctx, ids[i]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}
