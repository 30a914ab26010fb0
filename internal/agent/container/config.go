package container

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/network"
)

// ContainerConfig is the runtime's configuration of one container. attempt
// counts its starts from 0 and becomes the restart count. Errors are
// *ConfigError unless the input itself is wrong.
func ContainerConfig(in Input, c *v1.Container, attempt uint32) (*runtimeapi.ContainerConfig, error) {
	env := in.Env
	if env == nil {
		var err error
		if env, err = Env(in, c); err != nil {
			return nil, err
		}
	}
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }

	img := in.Images[c.Name]
	ref := img.Ref
	if ref == "" {
		ref = c.Image
	}
	mounts, err := containerMounts(in, c, attempt, lookup)
	if err != nil {
		return nil, err
	}
	security, err := containerSecurity(in, c)
	if err != nil {
		return nil, err
	}
	devices, err := containerDevices(in, c)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: attempt},
		Image:       &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: c.Image},
		Command:     expandAll(c.Command, lookup),
		Args:        expandAll(c.Args, lookup),
		WorkingDir:  c.WorkingDir,
		Mounts:      mounts,
		Devices:     devices,
		Labels:      containerLabels(in.Pod, c),
		Annotations: containerAnnotations(in, c, attempt),
		LogPath:     LogPath(c.Name, attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: Resources(in, c), SecurityContext: security},
	}
	for _, e := range env {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	for _, name := range in.Devices[c.Name].CDI {
		out.CDIDevices = append(out.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		name := "SIGNAL_" + string(*c.Lifecycle.StopSignal)
		sig, ok := runtimeapi.Signal_value[name]
		if !ok {
			return nil, configErrorf("lifecycle.stopSignal %q is not a signal the runtime interface knows", *c.Lifecycle.StopSignal)
		}
		out.StopSignal = runtimeapi.Signal(sig)
	}
	return out, nil
}

func expandAll(list []string, lookup func(string) (string, bool)) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = expandVariables(s, lookup)
	}
	return out
}

func containerLabels(pod *v1.Pod, c *v1.Container) map[string]string {
	return map[string]string{
		LabelPodName: pod.Name, LabelPodNamespace: pod.Namespace,
		LabelPodUID: string(pod.UID), LabelContainerName: c.Name,
	}
}

func containerAnnotations(in Input, c *v1.Container, attempt uint32) map[string]string {
	out := copyMap(in.Devices[c.Name].Annotations)
	out[AnnotationHash] = Hash(c)
	out[AnnotationRestartCount] = strconv.FormatUint(uint64(attempt), 10)
	out[AnnotationTerminationMessagePath] = c.TerminationMessagePath
	out[AnnotationTerminationMessagePolicy] = string(c.TerminationMessagePolicy)
	if g := in.Pod.DeletionGracePeriodSeconds; g != nil {
		out[AnnotationDeletionGrace] = strconv.FormatInt(*g, 10)
	}
	if g := in.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
		out[AnnotationTerminationGrace] = strconv.FormatInt(*g, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if b, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			out[AnnotationPreStop] = string(b)
		}
	}
	if len(c.Ports) > 0 {
		if b, err := json.Marshal(c.Ports); err == nil {
			out[AnnotationPorts] = string(b)
		}
	}
	return out
}

func containerMounts(in Input, c *v1.Container, attempt uint32, lookup func(string) (string, bool)) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	ownHosts := false
	for i := range c.VolumeMounts {
		m, err := volumeMount(in, c, i, lookup)
		if err != nil {
			return nil, err
		}
		if strings.TrimRight(m.ContainerPath, "/") == "/etc/hosts" {
			ownHosts = true
		}
		out = append(out, m)
	}
	if !ownHosts && len(hostIPs(in)) > 0 {
		out = append(out, &runtimeapi.Mount{HostPath: hostsPath(in), ContainerPath: "/etc/hosts", SelinuxRelabel: true})
	}
	if c.TerminationMessagePath != "" {
		out = append(out, &runtimeapi.Mount{
			HostPath: terminationFile(in, c, attempt), ContainerPath: absolute(c.TerminationMessagePath), SelinuxRelabel: true,
		})
	}
	for _, m := range in.Devices[c.Name].Mounts {
		out = append(out, &runtimeapi.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Readonly: m.ReadOnly})
	}
	return out, nil
}

// hostIPs are the addresses that the pod's hosts file names.
func hostIPs(in Input) []string {
	if len(in.PodIPs) == 0 && in.Pod.Spec.HostNetwork {
		return in.NodeIPs
	}
	return in.PodIPs
}

func volumeMount(in Input, c *v1.Container, i int, lookup func(string) (string, bool)) (*runtimeapi.Mount, error) {
	vm := &c.VolumeMounts[i]
	vol, ok := in.Volumes[vm.Name]
	if !ok {
		return nil, configErrorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
	}
	if vol.Block {
		return nil, configErrorf("volume %q has volumeMode Block, but is specified in volumeMounts of container %q", vm.Name, c.Name)
	}
	out := &runtimeapi.Mount{
		HostPath:       vol.HostPath,
		ContainerPath:  absolute(vm.MountPath),
		Readonly:       vm.ReadOnly || vol.ReadOnly,
		SelinuxRelabel: vol.SELinuxRelabel,
		MountOptions:   vm.BindMountOptions,
	}
	if len(vm.BindMountOptions) > 0 && !in.Features.MountOptions {
		return nil, configErrorf("volumeMount %q of container %q: bindMountOptions are not supported by the container runtime", vm.Name,
			c.Name)
	}
	sub, err := subPath(vm, lookup)
	if err != nil {
		return nil, err
	}
	if vol.Image != nil {
		out.HostPath, out.Readonly = "", true
		out.Image = &runtimeapi.ImageSpec{Image: vol.Image.Ref, UserSpecifiedImage: vol.Image.Reference}
		out.ImageSubPath = sub
		return out, nil
	}
	if sub != "" {
		prepared := in.SubPaths[c.Name][i]
		if prepared == "" {
			return nil, configErrorf("failed to prepare subPath for volumeMount %q of container %q", vm.Name, c.Name)
		}
		out.HostPath = prepared
	}
	if vm.MountPropagation != nil {
		switch *vm.MountPropagation {
		case v1.MountPropagationNone:
		case v1.MountPropagationHostToContainer:
			out.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case v1.MountPropagationBidirectional:
			out.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		default:
			return nil, configErrorf("invalid MountPropagation mode: %q", *vm.MountPropagation)
		}
	}
	if out.RecursiveReadOnly, err = recursiveReadOnly(in, c, vm, out.Readonly); err != nil {
		return nil, err
	}
	if u := in.UserNamespace; u != nil {
		out.UidMappings, out.GidMappings = idMappings(u.UIDs), idMappings(u.GIDs)
	}
	return out, nil
}

func subPath(vm *v1.VolumeMount, lookup func(string) (string, bool)) (string, error) {
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		var missing string
		if sub, missing = expandStrict(vm.SubPathExpr, lookup); missing != "" {
			return "", configErrorf("missing value for %q", missing)
		}
	}
	if sub == "" {
		return "", nil
	}
	if filepath.IsAbs(sub) {
		return "", configErrorf("error SubPath `%s` must not be an absolute path", sub)
	}
	for _, e := range strings.Split(sub, "/") {
		if e == ".." {
			return "", configErrorf("unable to provision SubPath `%s`: must not contain '..'", sub)
		}
	}
	return sub, nil
}

// SubPath is the path below the volume that a mount wants, "" for the whole
// volume, with variables of the container's environment filled in.
func SubPath(vm *v1.VolumeMount, env []EnvVar) (string, error) {
	return subPath(vm, func(name string) (string, bool) {
		for _, e := range env {
			if e.Name == name {
				return e.Value, true
			}
		}
		return "", false
	})
}

func recursiveReadOnly(in Input, c *v1.Container, vm *v1.VolumeMount, readOnly bool) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	mode := *vm.RecursiveReadOnly
	if mode == v1.RecursiveReadOnlyIfPossible {
		return in.Features.RecursiveReadOnly && readOnly, nil
	}
	if mode != v1.RecursiveReadOnlyEnabled {
		return false, configErrorf("volumeMount %q of container %q: recursiveReadOnly %q: allowed are Disabled, IfPossible and Enabled",
			vm.Name, c.Name, mode)
	}
	if !readOnly {
		return false, configErrorf("volumeMount %q of container %q: recursiveReadOnly requires readOnly", vm.Name, c.Name)
	}
	if vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone {
		return false, configErrorf("volumeMount %q of container %q: recursiveReadOnly requires mountPropagation None", vm.Name, c.Name)
	}
	if !in.Features.RecursiveReadOnly {
		return false, configErrorf("volumeMount %q of container %q: recursive read-only mount is not supported by the container runtime",
			vm.Name, c.Name)
	}
	return true, nil
}

func containerDevices(in Input, c *v1.Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		vol, ok := in.Volumes[d.Name]
		if !ok || !vol.Block {
			return nil, configErrorf("cannot find block volume %q to pass into container %q", d.Name, c.Name)
		}
		permissions := "mrw"
		if vol.ReadOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{HostPath: vol.HostPath, ContainerPath: d.DevicePath, Permissions: permissions})
	}
	for _, d := range in.Devices[c.Name].Devices {
		out = append(out, &runtimeapi.Device{HostPath: d.HostPath, ContainerPath: d.ContainerPath, Permissions: d.Permissions})
	}
	return out, nil
}

// hostsContent is the hosts file of the pod, "" when none is mounted.
func hostsContent(in Input) (string, error) {
	if in.Pod.Spec.HostNetwork {
		return network.HostNetworkHosts(in.HostHosts, in.Pod.Spec.HostAliases), nil
	}
	host, domain, _, err := network.Hostname(in.Pod, in.ClusterDomain)
	if err != nil {
		return "", fmt.Errorf("composing hosts file: %w", err)
	}
	return network.HostsFile(in.PodIPs, host, domain, in.Pod.Spec.HostAliases), nil
}
