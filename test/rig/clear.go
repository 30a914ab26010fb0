package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
)

// clear ends and removes every sandbox of the runtime. One that does not end
// keeps none of the others.
func (r *Rig) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conn, err := containerd.Dial(r.Runtime.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	rt := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("listing sandboxes: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, sb := range list.Items {
		g.Go(func() error {
			if _, err := rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
				return fmt.Errorf("stopping sandbox %s: %w", sb.Id, err)
			}
			if _, err := rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
				return fmt.Errorf("removing sandbox %s: %w", sb.Id, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// stopRuntime ends the pods and the runtime, and what the runtime could not.
func (r *Rig) stopRuntime() error {
	errs := []error{r.clear(), r.Runtime.Stop(context.Background())}
	_, err := r.Runtime.EndLostShims(true)
	exec.Command("ip", "link", "del", r.link()).Run() //nolint:errcheck // there is none before the first pod
	return errors.Join(append(errs, err, host.RemoveCgroup("/sys/fs/cgroup", "/"+r.instance()))...)
}

// unlink removes the links to logs below dir. An agent that goes on removes
// dead links within a minute.
func unlink(dir string) error {
	links, err := filepath.Glob("/var/log/containers/*.log")
	for _, link := range links {
		if to, rerr := os.Readlink(link); rerr == nil && strings.HasPrefix(to, dir+"/") {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}

// unmountBelow unmounts what is mounted below dir, so that removing dir cannot
// remove what is mounted there.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (bool, bool) { return !strings.HasPrefix(m.Mountpoint, dir+"/"), false })
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", mounts[i].Mountpoint, err)
		}
	}
	return nil
}
