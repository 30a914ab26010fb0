package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/volume"
	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/localvolume"
	"github.com/berth-dev/berth/internal/proxy"
)

// Down stops the cluster on dataDir: berth itself, then every container
// through the runtime, then the bundled runtime. With purge it also removes
// everything that carries the cluster's name. A cluster that is not running
// is fine: what is left of it is stopped or removed all the same.
func Down(ctx context.Context, dataDir string, purge bool, emit Progress) error {
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return fmt.Errorf("--data-dir %q: %w", dataDir, err)
	}
	cfg := &Config{DataDir: dataDir}
	c := clock{began: time.Now(), emit: emit}
	_, err = os.Stat(cfg.DataDir)
	if errors.Is(err, os.ErrNotExist) && !purge {
		c.note("down", "no data in "+dataDir)
		return nil
	}
	if _, err := os.Stat(cfg.settingsFile()); errors.Is(err, os.ErrNotExist) && purge && !onlyOurs(dataDir) {
		return fmt.Errorf("--data-dir %s: this directory has no cluster.json and holds files that are not a cluster's: remove it by hand "+
			"if it may go", dataDir)
	}
	if cfg.Settings, err = cfg.stored(); err != nil {
		return err
	}
	if cfg.Role == RoleServer {
		return cfg.downServer(ctx, purge, c)
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed to stop containers: run it as root, for example with sudo")
	}
	err = c.stage("berth", func() (string, error) { return stopBerth(ctx, dataDir) })
	if err != nil {
		return err
	}
	s := &containerd.Supervisor{Options: containerd.Options{Layout: cfg.Layout()}, Log: slog.New(slog.DiscardHandler)}
	if cfg.RuntimeEndpoint != "" {
		err = c.stage("containers", func() (string, error) {
			return stopSandboxes(ctx, trimUnix(cfg.RuntimeEndpoint), purge, cfg.Path("logs", "pods")+"/")
		})
		if err != nil {
			return err
		}
	} else if cfg.runtimeLeft(ctx, s, c) {
		err = c.stage("containers", func() (string, error) { return stopSandboxes(ctx, s.Socket(), purge, "") })
		if err != nil {
			return err
		}
		err = c.stage("runtime", func() (string, error) { return "", s.Stop(ctx) })
		if err != nil {
			return err
		}
	}
	if !purge {
		return volume.UnshareRoot(cfg.Path("agent"))
	}
	return c.stage("purge", func() (string, error) {
		// Whatever the runtime knew of is stopped; what it had forgotten is not.
		_, err := s.EndLostShims(true)
		return "nothing is left of " + cfg.Instance(), errors.Join(err, cfg.purge())
	})
}

// downServer stops a control plane alone. It has nothing outside its data
// directory, so any process that may write there may stop it.
func (c *Config) downServer(ctx context.Context, purge bool, progress clock) error {
	err := progress.stage("berth", func() (string, error) { return stopBerth(ctx, c.DataDir) })
	if err != nil || !purge {
		return err
	}
	return progress.stage("purge", func() (string, error) {
		return "nothing is left of " + c.Instance(), purgeFiles(c.DataDir)
	})
}

// runtimeLeft says whether there is a bundled runtime to stop. One that died
// and left containers is started again first, since only it can end them
// cleanly; where that fails a purge still kills them through their cgroups.
func (c *Config) runtimeLeft(ctx context.Context, s *containerd.Supervisor, progress clock) bool {
	if exe, err := os.Executable(); err == nil {
		s.Binary = filepath.Join(filepath.Dir(exe), "containerd")
	}
	if kept, err := os.ReadFile(c.Path("run", "bundle-dir")); err == nil {
		s.Binary = filepath.Join(string(kept), "containerd")
	}
	s.LogFile = c.Path("logs", "containerd.log")
	if err := s.Revive(ctx); err != nil {
		progress.note("runtime", "it died and does not start again: "+err.Error())
		return false
	}
	return s.PID() != 0
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
// get the time their sandbox stop gives them; those of a purge end at once. In
// a runtime that others use too, only sandboxes whose logs go below ours are
// touched; empty means all.
func stopSandboxes(ctx context.Context, socket string, purge bool, ours string) (string, error) {
	conn, err := containerd.Dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	rt := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := listSandboxes(ctx, rt)
	if err != nil {
		return "", err
	}
	containers, err := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return "", fmt.Errorf("listing containers: %w", err)
	}
	sandboxes, err := belongs(ctx, rt, list.Items, ours)
	if err != nil {
		return "", err
	}
	grace := int64(10)
	if purge {
		grace = 0
	}
	// Containers first: a sandbox stop kills them without their grace.
	stop, sctx := errgroup.WithContext(ctx)
	stop.SetLimit(32)
	for _, ctr := range containers.Containers {
		if ctr.State != runtimeapi.ContainerState_CONTAINER_RUNNING || sandboxes[ctr.PodSandboxId] == nil {
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
	for _, sb := range sandboxes {
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
	return fmt.Sprintf("%d pods", len(sandboxes)), g.Wait()
}

// listSandboxes waits for a runtime that was just started to find its
// containers again: until then it refuses every call.
func listSandboxes(ctx context.Context, rt runtimeapi.RuntimeServiceClient) (*runtimeapi.ListPodSandboxResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		list, err := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err == nil {
			return list, nil
		}
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return nil, fmt.Errorf("listing sandboxes: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// belongs picks the sandboxes whose log directory is below prefix. CRI has no
// field for that, but the runtime's verbose answer holds the configuration the
// sandbox was made with.
func belongs(ctx context.Context, rt runtimeapi.RuntimeServiceClient, all []*runtimeapi.PodSandbox,
	prefix string) (map[string]*runtimeapi.PodSandbox, error) {
	out := make(map[string]*runtimeapi.PodSandbox, len(all))
	for _, sb := range all {
		if prefix != "" {
			st, err := rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sb.Id, Verbose: true})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("looking at sandbox %s: %w", sb.Id, err)
			}
			if !strings.Contains(st.Info["info"], `"`+prefix) {
				continue
			}
		}
		out[sb.Id] = sb
	}
	return out, nil
}

// removeCgroups ends what still runs in the cluster's cgroups and removes
// these. Systemd is asked first to stop the slice it keeps, with all below:
// it would make the cgroup again for as long as it knows the slice.
func (c *Config) removeCgroups() error {
	const mount = "/sys/fs/cgroup"
	slice, err := resource.SlicePath(c.CgroupRoot())
	if err != nil {
		return err
	}
	var errs []error
	if _, err := os.Stat(filepath.Join(mount, slice)); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		units, err := resource.ConnectSystemd(ctx)
		if err == nil {
			err = units.StopSlice(filepath.Base(slice))
			units.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, host.RemoveCgroup(mount, slice), host.RemoveCgroup(mount, c.CgroupRoot()))...)
}

// removeBridge removes the pods' bridge, if it is there, and the links to it:
// those of pods that have just ended go with their namespaces, which the kernel
// clears when it finds the time.
func removeBridge(name string) error {
	bridge, err := netlink.LinkByName(name)
	if err != nil {
		return nil // it was never made
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("listing the links of bridge %s: %w", name, err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex != bridge.Attrs().Index {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("removing link %s: %w", l.Attrs().Name, err)
		}
	}
	if err := netlink.LinkDel(bridge); err != nil {
		return fmt.Errorf("removing bridge %s: %w", name, err)
	}
	return nil
}

// purge removes what carries the cluster's name outside its data directory,
// and the directory, but for the entries of it named by keep.
func (c *Config) purge(keep ...string) error {
	var errs []error
	errs = append(errs, c.removeCgroups())
	if err := removeBridge(c.Bridge()); err != nil {
		errs = append(errs, err)
	}
	if err := proxy.Cleanup(c.Instance()); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.cleanNetwork()...)
	if dir := c.volumesDir(); dir != "" {
		errs = append(errs, localvolume.Purge(dir))
	}
	if dir := c.Layout().SocketDir(); dir != c.Path("run", "s") {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", dir, err))
		}
	}
	if err := purgeFiles(c.DataDir, keep...); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
