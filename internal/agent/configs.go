package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/dra"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/userns"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// configs gathers what the pure packages container and network need and lets
// them make the CRI configurations.
type configs struct {
	nodeName       string
	client         kubernetes.Interface
	node           *nodeView
	volumes        *volume.Manager
	users          *userns.Ranges
	cgroups        *resource.Cgroups
	services       corelisters.ServiceLister
	servicesSynced func(ctx context.Context) error
	guard          GuardFunc // may be nil
	images         func(pod types.UID, container string) (container.Image, bool)
	imageVolume    func(pod types.UID, volume string) string
	features       func(handler string) container.RuntimeFeatures
	settings       container.NodeSettings
	memory         int64
	clusterDNS     []string
	clusterDomain  string
	resolvConf     string
	// enforced is what the runtime last said a container may use.
	enforced func(uid types.UID, id string) *runtimeapi.LinuxContainerResources
	rootDir  string
	logsDir  string
	update   func(ctx context.Context, containerID string, r *runtimeapi.ContainerResources) error
	// updateSandbox tells the runtime what the pod as a whole may use.
	updateSandbox func(ctx context.Context, uid types.UID, cfg *runtimeapi.LinuxPodSandboxConfig)
	memoryUsed    func(p *v1.Pod) (int64, error)
	warn          func(pod *v1.Pod, w network.Warning)
	// reject fails a pod that can never run here.
	reject func(pod *v1.Pod, why, message string)

	mu      sync.Mutex
	mounted map[types.UID]map[string]volume.Mounted

	devices  *device.Manager
	assigned *assign.Manager
	claims   *dra.Manager
}

// Mount, Unmount and Update make configs the pods' volumes: it remembers what
// is mounted where for the containers' mounts.

// Mount mounts all volumes of a pod.
func (c *configs) Mount(ctx context.Context, p *v1.Pod) error {
	m, err := c.volumes.Mount(ctx, p)
	if errors.Is(err, volume.ErrAttachLimit) {
		c.reject(p, "VolumeAttachmentLimitExceeded", err.Error())
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.mounted[p.UID] = m
	c.mu.Unlock()
	return nil
}

// Unmount unmounts all volumes of a pod.
func (c *configs) Unmount(ctx context.Context, uid types.UID) error {
	if err := c.claims.Unprepare(ctx, uid); err != nil {
		return fmt.Errorf("giving back resource claims: %w", err)
	}
	if err := c.volumes.Unmount(ctx, uid); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.mounted, uid)
	c.mu.Unlock()
	return c.users.Release(uid)
}

// Update tells of a changed pod.
func (c *configs) Update(p *v1.Pod) { c.volumes.Update(p) }

// input is what both kinds of configuration share; the pod's cgroup is made.
func (c *configs) input(p *v1.Pod) (container.Input, error) {
	parent, err := c.cgroups.EnsurePod(p)
	if err != nil {
		return container.Input{}, err
	}
	return c.inputIn(p, parent)
}

// inputIn is the input of a pod whose cgroup is there.
func (c *configs) inputIn(p *v1.Pod, parent string) (in container.Input, err error) {
	in = container.Input{
		Pod: p, NodeName: c.nodeName, NodeIPs: c.node.ips(), Allocatable: c.node.allocatable(), MemoryCapacity: c.memory,
		ClusterDNS: c.clusterDNS, ClusterDomain: c.clusterDomain, RootDir: c.rootDir, LogsDir: c.logsDir, Node: c.settings,
	}
	in.CgroupParent = parent
	if u := p.Spec.HostUsers; u != nil && !*u {
		if in.UserNamespace, err = c.users.Allocate(p.UID); err != nil {
			return in, err
		}
	}
	if c.resolvConf == "" {
		in.NoHostResolver = true
	} else {
		text, err := os.ReadFile(c.resolvConf)
		if err != nil {
			return in, fmt.Errorf("reading the node's resolver configuration: %w", err)
		}
		in.HostResolver = network.ParseResolvConf(string(text))
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
func (c *configs) Sandbox(ctx context.Context, p *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, string, error) {
	if err := c.claims.Prepare(ctx, p); err != nil {
		return nil, "", &pod.Error{Reason: "FailedPrepareDynamicResources", Message: "Failed to prepare dynamic resources: " + err.Error(), Cause: err}
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
	in.Features = c.features(handler)
	for _, w := range container.Warnings(in) {
		c.warn(p, w)
	}
	cfg, err := container.SandboxConfig(in)
	return cfg, handler, err
}

func (c *configs) handler(ctx context.Context, p *v1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if c.client == nil {
		return "", fmt.Errorf("runtime class %q: there is no API to look it up in", *name)
	}
	rc, err := c.client.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("RuntimeClass %q not found", *name)
	}
	if err != nil {
		return "", fmt.Errorf("reading runtime class %q: %w", *name, err)
	}
	return rc.Handler, nil
}

// Container makes a container configuration and the files it mounts.
func (c *configs) Container(ctx context.Context, s pod.StartInput) (*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig, error) {
	in, err := c.input(s.Pod)
	if err != nil {
		return nil, nil, err
	}
	if c.guard != nil {
		if err := c.guard(ctx, s.Pod, s.PodIPs); err != nil {
			return nil, nil, err
		}
	}
	if !pod.IsStatic(s.Pod) && c.servicesSynced != nil {
		if err := c.servicesSynced(ctx); err != nil {
			return nil, nil, fmt.Errorf("services have not yet been read at least once, cannot construct envvars: %w", err)
		}
		if in.Services, err = c.serviceList(s.Pod); err != nil {
			return nil, nil, err
		}
	}
	in.PodIPs = s.PodIPs
	in.Attempt = s.Attempt
	img, _ := c.images(s.Pod.UID, s.Container.Name)
	img.Ref = s.ImageRef
	in.Images = map[string]container.Image{s.Container.Name: img}
	if s.TargetID != "" {
		in.TargetID = map[string]string{s.Container.Name: s.TargetID}
	}
	in.Volumes = c.mountsOf(s.Pod.UID)
	if in.Objects, err = container.Resolve(ctx, c.volumes, s.Pod, s.Container); err != nil {
		return nil, nil, reason(err)
	}
	if in.EnvFiles, err = c.envFiles(s.Container, in.Volumes); err != nil {
		return nil, nil, reason(err)
	}
	handler := ""
	if s.Pod.Spec.RuntimeClassName != nil {
		if handler, err = c.handler(ctx, s.Pod); err != nil {
			return nil, nil, err
		}
	}
	in.Features = c.features(handler)
	if err := c.grantDevices(ctx, &in, s); err != nil {
		return nil, nil, err
	}
	env, err := container.Env(in, s.Container)
	if err != nil {
		return nil, nil, reason(err)
	}
	paths, err := c.volumes.SubPaths(ctx, s.Pod, s.Container, in.Volumes, env)
	if err != nil {
		return nil, nil, reason(err)
	}
	in.SubPaths = map[string]map[int]string{s.Container.Name: paths}
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
func (c *configs) grantDevices(ctx context.Context, in *container.Input, s pod.StartInput) error {
	grant, err := c.devices.Grant(s.Pod.UID, s.Container.Name)
	if err != nil {
		return err
	}
	// Prepared before the sandbox, but maybe by an agent that has ended.
	if err := c.claims.Prepare(ctx, s.Pod); err != nil {
		return err
	}
	claimed, err := c.claims.Devices(s.Pod, s.Container)
	if err != nil {
		return err
	}
	grant.CDI = append(grant.CDI, claimed...)
	in.Devices = map[string]container.DeviceGrant{s.Container.Name: grant}
	in.CPUSet = map[string]container.CPUSet{s.Container.Name: c.place(s.Pod.UID, s.Container.Name)}
	return c.devices.PreStart(ctx, s.Pod.UID, s.Container.Name)
}

// place is where a container runs.
func (c *configs) place(pod types.UID, name string) container.CPUSet {
	p := c.assigned.Of(pod, name)
	return container.CPUSet{CPUs: p.CPUs, Mems: p.Mems, Exclusive: p.Exclusive}
}

// mountsOf are a pod's volumes with what their images resolved to.
func (c *configs) mountsOf(uid types.UID) map[string]volume.Mounted {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := maps.Clone(c.mounted[uid])
	for name, v := range out {
		if v.Image == nil {
			continue
		}
		img := *v.Image
		img.Ref = c.imageVolume(uid, name)
		v.Image = &img
		out[name] = v
	}
	return out
}

// serviceList are the services a pod's environment may name.
func (c *configs) serviceList(p *v1.Pod) ([]*v1.Service, error) {
	out, err := c.services.Services(p.Namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing services: %w", err)
	}
	if p.Namespace != metav1.NamespaceDefault {
		if k, err := c.services.Services(metav1.NamespaceDefault).Get("kubernetes"); err == nil {
			out = append(out, k)
		}
	}
	return out, nil
}

// maxEnvFile bounds a file that environment variables come from.
const maxEnvFile = 64 << 10

// envFiles reads the files that the container's environment refers to.
func (c *configs) envFiles(ct *v1.Container, mounted map[string]volume.Mounted) (map[container.EnvFile]string, error) {
	out := map[container.EnvFile]string{}
	for _, e := range ct.Env {
		if e.ValueFrom == nil || e.ValueFrom.FileKeyRef == nil {
			continue
		}
		r := e.ValueFrom.FileKeyRef
		vol, ok := mounted[r.VolumeName]
		if !ok || vol.HostPath == "" {
			return nil, fmt.Errorf("volume %q of variable %q is not mounted", r.VolumeName, e.Name)
		}
		root, err := os.OpenRoot(vol.HostPath)
		if err != nil {
			return nil, fmt.Errorf("opening volume %q: %w", r.VolumeName, err)
		}
		text, err := readLimited(root, strings.TrimPrefix(filepath.Clean(r.Path), "/"))
		_ = root.Close()
		if errors.Is(err, os.ErrNotExist) {
			continue // whether that matters depends on the reference
		}
		if err != nil {
			return nil, fmt.Errorf("reading %q of volume %q: %w", r.Path, r.VolumeName, err)
		}
		out[container.EnvFile{Volume: r.VolumeName, Path: r.Path}] = text
	}
	return out, nil
}

func readLimited(root *os.Root, path string) (string, error) {
	st, err := root.Stat(path)
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() || st.Size() > maxEnvFile {
		return "", fmt.Errorf("it must be a regular file of at most %d bytes", maxEnvFile)
	}
	b, err := root.ReadFile(path)
	return string(b), err
}

// reason keeps the waiting reason that the container package found.
func reason(err error) error {
	var e *container.ConfigError
	if errors.As(err, &e) {
		return &pod.Error{Reason: e.Reason, Message: e.Error(), Cause: err}
	}
	return err
}

// cgroupSet adapts the cgroup tree to the pods' view of it.
type cgroupSet struct {
	*resource.Cgroups
	took *prometheus.HistogramVec
}

// Ensure makes the pod's cgroup.
func (c cgroupSet) Ensure(p *v1.Pod) error {
	defer prometheus.NewTimer(c.took.WithLabelValues("create")).ObserveDuration()
	_, err := c.EnsurePod(p)
	return err
}

// Remove removes it.
func (c cgroupSet) Remove(uid types.UID) error {
	defer prometheus.NewTimer(c.took.WithLabelValues("destroy")).ObserveDuration()
	return c.RemovePod(uid)
}

// Resize makes a pod's cgroup and running containers have what the pod says.
// The pod's cgroup must never be smaller than its containers, so it is written
// first, which succeeds where it grows, and again when the containers are done.
func (c *configs) Resize(ctx context.Context, p *v1.Pod, running map[string]string) error {
	if err := c.roomToShrink(p); err != nil {
		return err
	}
	_ = c.cgroups.Update(p) // a smaller one may be refused while containers are larger
	in, err := c.inputIn(p, c.cgroups.Parent(p))
	if err != nil && len(running) > 0 {
		return err
	}
	var changes []resizing
	for _, ct := range container.All(p) {
		id, ok := running[ct.Name]
		if !ok {
			continue
		}
		in.CPUSet = map[string]container.CPUSet{ct.Name: c.place(p.UID, ct.Name)}
		change := resizing{name: ct.Name, id: id, want: container.Resources(in, ct)}
		if c.enforced != nil {
			change.has = c.enforced(p.UID, id)
		}
		changes = append(changes, change)
	}
	slices.SortStableFunc(changes, shrinkFirst)
	for _, r := range changes {
		if err := c.update(ctx, r.id, &runtimeapi.ContainerResources{Linux: r.want}); err != nil {
			return fmt.Errorf("resizing container %q: %w", r.name, err)
		}
	}
	if err := c.cgroups.Update(p); err != nil {
		return err
	}
	if len(running) == 0 {
		return nil
	}
	sandbox, err := container.SandboxConfig(in)
	if err != nil {
		return err
	}
	c.updateSandbox(ctx, p.UID, sandbox.GetLinux())
	return nil
}

// resizing is one running container that is to get other resources. has is nil
// where the runtime does not say what it enforces.
type resizing struct {
	name, id  string
	has, want *runtimeapi.LinuxContainerResources
}

// shrinkFirst orders containers so that those which give memory back, and then
// those which give processors back, come before those which take: together they
// never have more than the larger of before and after.
func shrinkFirst(a, b resizing) int {
	return cmp.Or(cmp.Compare(a.memory(), b.memory()), cmp.Compare(a.cpu(), b.cpu()))
}

func (r resizing) memory() int {
	return cmp.Compare(unbounded(r.want.GetMemoryLimitInBytes()), unbounded(r.has.GetMemoryLimitInBytes()))
}

func (r resizing) cpu() int {
	return cmp.Compare(unbounded(r.want.GetCpuQuota()), unbounded(r.has.GetCpuQuota()))
}

// unbounded makes "no limit" larger than any.
func unbounded(n int64) int64 {
	if n <= 0 {
		return math.MaxInt64
	}
	return n
}

// roomToShrink refuses a memory limit below what the pod uses: the kernel would
// kill for it.
func (c *configs) roomToShrink(p *v1.Pod) error {
	limit := resource.PodLimits(p, resource.PodOptions{}).MemoryLimit
	if limit <= 0 {
		return nil
	}
	used, err := c.memoryUsed(p)
	if err != nil || used < limit {
		return nil //nolint:nilerr // what cannot be measured does not hold a resize up
	}
	return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)", limit, used)
}
