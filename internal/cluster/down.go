package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/proxy"
)

// Down stops the cluster on dataDir: berth itself, then every container
// through the runtime, then the bundled runtime. With purge it also removes
// everything that carries the cluster's name. A cluster that is not running
// is fine: what is left of it is stopped or removed all the same.
func Down(ctx context.Context, dataDir string, purge bool, emit Progress) error {
	cfg := &Config{DataDir: dataDir}
	c := clock{began: time.Now(), emit: emit}
	if os.Geteuid() != 0 {
		return errors.New("root is needed to stop containers: run it as root, for example with sudo")
	}
	_, err := os.Stat(cfg.DataDir)
	if errors.Is(err, os.ErrNotExist) && !purge {
		c.note("down", "no data in "+dataDir)
		return nil
	}
	err = c.stage("berth", func() (string, error) { return stopBerth(ctx, dataDir) })
	if err != nil {
		return err
	}
	s := &containerd.Supervisor{Options: containerd.Options{Layout: cfg.Layout()}, Log: slog.New(slog.DiscardHandler)}
	if s.PID() != 0 {
		err = c.stage("containers", func() (string, error) { return stopSandboxes(ctx, s.Socket(), purge) })
		if err != nil {
			return err
		}
		err = c.stage("runtime", func() (string, error) { return "", s.Stop(ctx) })
		if err != nil {
			return err
		}
	}
	if !purge {
		return nil
	}
	return c.stage("purge", func() (string, error) { return "nothing is left of " + cfg.Instance(), cfg.purge() })
}

// stopBerth asks the running berth to end and waits for it.
func stopBerth(ctx context.Context, dataDir string) (string, error) {
	pid := Running(dataDir)
	if pid == 0 {
		return "not running", nil
	}
	if err := containerd.StopProcess(ctx, pid, 30*time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d ended", pid), nil
}

// stopSandboxes stops (and for a purge removes) every pod sandbox. Containers
// get the time their sandbox stop gives them; those of a purge end at once.
func stopSandboxes(ctx context.Context, socket string, purge bool) (string, error) {
	conn, err := containerd.Dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	rt := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return "", fmt.Errorf("listing sandboxes: %w", err)
	}
	containers, err := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return "", fmt.Errorf("listing containers: %w", err)
	}
	grace := int64(10)
	if purge {
		grace = 0
	}
	// Containers first: a sandbox stop kills them without their grace.
	stop, sctx := errgroup.WithContext(ctx)
	stop.SetLimit(32)
	for _, ctr := range containers.Containers {
		if ctr.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		stop.Go(func() error {
			if _, err := rt.StopContainer(sctx, &runtimeapi.StopContainerRequest{ContainerId: ctr.Id, Timeout: grace}); err != nil {
				return fmt.Errorf("stopping container %s: %w", ctr.Metadata.GetName(), err)
			}
			return nil
		})
	}
	if err := stop.Wait(); err != nil {
		return "", err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, sb := range list.Items {
		g.Go(func() error {
			name := sb.Metadata.GetNamespace() + "/" + sb.Metadata.GetName()
			if _, err := rt.StopPodSandbox(gctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
				return fmt.Errorf("stopping pod %s: %w", name, err)
			}
			if purge {
				if _, err := rt.RemovePodSandbox(gctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
					return fmt.Errorf("removing pod %s: %w", name, err)
				}
			}
			return nil
		})
	}
	return fmt.Sprintf("%d pods", len(list.Items)), g.Wait()
}

// purge removes what carries the cluster's name outside its data directory,
// and the directory.
func (c *Config) purge() error {
	var errs []error
	if err := host.RemoveCgroup("/sys/fs/cgroup", c.CgroupRoot()); err != nil {
		errs = append(errs, err)
	}
	if link, err := netlink.LinkByName(c.Bridge()); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("removing bridge %s: %w", c.Bridge(), err))
		}
	}
	if err := proxy.Cleanup(c.Instance()); err != nil {
		errs = append(errs, err)
	}
	if dir := c.Layout().SocketDir(); dir != c.Path("run", "s") {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", dir, err))
		}
	}
	if err := purgeFiles(c.DataDir); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
