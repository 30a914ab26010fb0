// Package start makes what pods are started from: it alone writes the CRI
// configurations of sandboxes and containers, gathers for that what volumes,
// images, devices and cgroups have for a pod, and resizes what runs.
package start

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/dra"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/userns"
	"github.com/berth-dev/berth/internal/agent/volume"
	"github.com/berth-dev/berth/internal/podutil"
)

// GuardFunc makes a pod with these addresses safe to run.
type GuardFunc func(ctx context.Context, pod *v1.Pod, ips []string) error

// Node is this node as the API last showed it.
type Node interface {
	IPs() []string
	Allocatable() v1.ResourceList
}

// Host is what the configuration and the host say for all pods.
type Host struct {
	NodeName string
	// RootDir holds pods, PodLogsDir their logs.
	RootDir, PodLogsDir string
	// MemoryBytes is the host's memory.
	MemoryBytes int64
	Settings    container.NodeSettings
	// ClusterDNS and ClusterDomain are for pods that resolve in the cluster;
	// ResolvConf is the file for all others, empty for none.
	ClusterDNS    []string
	ClusterDomain string
	ResolvConf    string
}

// Exclusive are the parts that give pods what they have alone.
type Exclusive struct {
	Devices  *device.Manager
	Assigned *assign.Manager
	Claims   *dra.Manager
}

// Config is what a Starter works with. Client, Services and Guard may be nil.
type Config struct {
	Host     Host
	Client   kubernetes.Interface
	Services *Services
	Node     Node
	Runtime  runtime.Service
	Held     interface {
		Pod(uid types.UID) *runtime.Pod
	}
	Handlers  *Handlers
	Volumes   *volume.Manager
	Users     *userns.Ranges
	Cgroups   *resource.Cgroups
	Images    *Images
	Mounts    *Mounts
	Exclusive Exclusive
	Guard     GuardFunc
	// MemoryUsed is what a pod's cgroup uses now.
	MemoryUsed func(p *v1.Pod) (int64, error)
	// Warn reports what of the resolver's configuration cannot reach a pod.
	Warn func(p *v1.Pod, w network.Warning)
	// Reject fails a pod that can never run here.
	Reject func(p *v1.Pod, reason, message string)
	// Problem reports what the runtime refused and nothing depends on.
	Problem func(what string, uid types.UID, err error)
}

// Starter makes the configurations of pods; it is the pods' Volumes, Configs and
// Resizer.
type Starter struct {
	cfg    Config
	resolv *network.ResolvFile
}

// New makes a Starter.
func New(cfg Config) *Starter {
	return &Starter{cfg: cfg, resolv: network.NewResolvFile(cfg.Host.ResolvConf)}
}

// input is what both kinds of configuration share; the pod's cgroup is made.
func (c *Starter) input(p *v1.Pod) (container.Input, error) {
	parent, err := c.cfg.Cgroups.EnsurePod(p)
	if err != nil {
		return container.Input{}, err
	}
	return c.inputIn(p, parent)
}

// inputIn is the input of a pod whose cgroup is there.
func (c *Starter) inputIn(p *v1.Pod, parent string) (in container.Input, err error) {
	in = container.Input{
		Pod: p, NodeName: c.cfg.Host.NodeName, NodeIPs: c.cfg.Node.IPs(), Allocatable: c.cfg.Node.Allocatable(),
		MemoryCapacity: c.cfg.Host.MemoryBytes, RootDir: c.cfg.Host.RootDir, LogsDir: c.cfg.Host.PodLogsDir,
		CgroupParent: parent, Node: c.cfg.Host.Settings,
	}
	in.ClusterDNS, in.ClusterDomain = c.cfg.Host.ClusterDNS, c.cfg.Host.ClusterDomain
	if u := p.Spec.HostUsers; u != nil && !*u {
		if in.UserNamespace, err = c.cfg.Users.Allocate(p.UID); err != nil {
			return in, err
		}
	}
	if c.cfg.Host.ResolvConf == "" {
		in.NoHostResolver = true
	} else if in.HostResolver, err = c.resolv.Resolver(time.Now()); err != nil {
		return in, err
	}
	if p.Spec.HostNetwork {
		text, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return in, fmt.Errorf("reading the node's hosts file: %w", err)
		}
		in.HostHosts = string(text)
	}
	return in, nil
}

// Sandbox makes a sandbox configuration and finds the runtime handler that the
// pod's RuntimeClass names.
func (c *Starter) Sandbox(ctx context.Context, p *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, string, error) {
	if err := c.cfg.Exclusive.Claims.Prepare(ctx, p); err != nil {
		return nil, "", &pod.Error{Reason: "FailedPrepareDynamicResources", Message: "Failed to prepare dynamic resources: " + err.Error(),
			Cause: err}
	}
	handler, err := c.handler(ctx, p)
	if err != nil {
		return nil, "", err
	}
	in, err := c.input(p)
	if err != nil {
		return nil, "", err
	}
	in.Attempt = attempt
	in.Features = c.cfg.Handlers.Of(handler)
	for _, w := range container.Warnings(in) {
		c.cfg.Warn(p, w)
	}
	cfg, err := container.SandboxConfig(in)
	return cfg, handler, err
}

func (c *Starter) handler(ctx context.Context, p *v1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if c.cfg.Client == nil {
		return "", fmt.Errorf("runtime class %q: there is no API to look it up in", *name)
	}
	rc, err := c.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("RuntimeClass %q not found", *name)
	}
	if err != nil {
		return "", fmt.Errorf("reading runtime class %q: %w", *name, err)
	}
	return rc.Handler, nil
}

// handlerOf is the runtime handler of the sandbox that a container goes into,
// which the runtime knows; a class may have been changed since.
func (c *Starter) handlerOf(ctx context.Context, s pod.StartInput) (string, error) {
	if s.Pod.Spec.RuntimeClassName == nil {
		return "", nil
	}
	if held := c.cfg.Held.Pod(s.Pod.UID); held != nil {
		for _, b := range held.Sandboxes {
			if b.ID == s.SandboxID && b.Handler != "" {
				return b.Handler, nil
			}
		}
	}
	return c.handler(ctx, s.Pod)
}

// Container makes a container configuration and the files it mounts.
func (c *Starter) Container(ctx context.Context, s pod.StartInput) (*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig, error) {
	in, err := c.input(s.Pod)
	if err != nil {
		return nil, nil, err
	}
	if c.cfg.Guard != nil {
		if err := c.cfg.Guard(ctx, s.Pod, s.PodIPs); err != nil {
			return nil, nil, err
		}
	}
	if !podutil.Static(s.Pod) && c.cfg.Services != nil {
		if in.Services, err = c.cfg.Services.of(ctx, s.Pod); err != nil {
			return nil, nil, err
		}
	}
	in.PodIPs = s.PodIPs
	in.Attempt = s.Attempt
	img, _ := c.cfg.Images.image(s.Pod.UID, s.Container.Name)
	img.Ref = s.ImageRef
	in.Images = map[string]container.Image{s.Container.Name: img}
	if s.TargetID != "" {
		in.TargetID = map[string]string{s.Container.Name: s.TargetID}
	}
	in.Volumes = c.cfg.Mounts.Of(s.Pod.UID)
	if in.Objects, err = container.Resolve(ctx, c.cfg.Volumes, s.Pod, s.Container); err != nil {
		return nil, nil, reason(err)
	}
	if in.EnvFiles, err = c.envFiles(s.Container, in.Volumes); err != nil {
		return nil, nil, reason(err)
	}
	handler, err := c.handlerOf(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	in.Features = c.cfg.Handlers.Of(handler)
	if err := c.grantDevices(ctx, &in, s); err != nil {
		return nil, nil, err
	}
	env, err := container.Env(in, s.Container)
	if err != nil {
		return nil, nil, reason(err)
	}
	paths, err := c.cfg.Volumes.SubPaths(ctx, s.Pod, s.Container, in.Volumes, env)
	if err != nil {
		return nil, nil, reason(err)
	}
	in.SubPaths, in.Env = map[string]map[int]string{s.Container.Name: paths}, env
	cfg, err := container.ContainerConfig(in, s.Container, s.Attempt)
	if err != nil {
		return nil, nil, reason(err)
	}
	files, err := container.Files(in, s.Container, s.Attempt)
	if err != nil {
		return nil, nil, reason(err)
	}
	if err := container.WriteFiles(files); err != nil {
		return nil, nil, err
	}
	sandbox, err := container.SandboxConfig(in)
	return cfg, sandbox, err
}

// grantDevices adds what device plugins gave the container, and tells them that
// it is about to start.
func (c *Starter) grantDevices(ctx context.Context, in *container.Input, s pod.StartInput) error {
	grant, err := c.cfg.Exclusive.Devices.Grant(s.Pod.UID, s.Container.Name)
	if err != nil {
		return err
	}
	// Prepared before the sandbox, but maybe by an agent that has ended.
	if err := c.cfg.Exclusive.Claims.Prepare(ctx, s.Pod); err != nil {
		return err
	}
	claimed, err := c.cfg.Exclusive.Claims.Devices(s.Pod, s.Container)
	if err != nil {
		return err
	}
	grant.CDI = append(grant.CDI, claimed...)
	in.Devices = map[string]container.DeviceGrant{s.Container.Name: grant}
	in.CPUSet = map[string]container.CPUSet{s.Container.Name: c.place(s.Pod.UID, s.Container.Name)}
	return c.cfg.Exclusive.Devices.PreStart(ctx, s.Pod.UID, s.Container.Name)
}

// place is where a container runs.
func (c *Starter) place(pod types.UID, name string) container.CPUSet {
	p := c.cfg.Exclusive.Assigned.Of(pod, name)
	return container.CPUSet{CPUs: p.CPUs, Mems: p.Mems, Exclusive: p.Exclusive}
}

// reason keeps the waiting reason that the container package found.
func reason(err error) error {
	var e *container.ConfigError
	if errors.As(err, &e) {
		return &pod.Error{Reason: e.Reason, Message: e.Error(), Cause: err}
	}
	return err
}
