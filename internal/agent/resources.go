package agent

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/dra"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/podresources"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/resource/cpus"
	"github.com/berth-dev/berth/internal/agent/resource/memory"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// buildResources makes what gives processors, memory and devices to pods.
func (a *Agent) buildResources(machine *node.Machine) error {
	cfg, k := &a.Config, a.Config.Kubelet
	layout, err := topology.Read("/")
	if err != nil {
		if pinning(k) {
			return err
		}
		cfg.Log.Info("the machine does not tell its topology; nothing needs it", "err", err)
		layout = &topology.Machine{}
	}
	if a.devices, err = device.New(device.Config{Log: cfg.Log, RootDir: cfg.RootDir, Offer: a.Board.SetDevices, Nodes: layout.NodeMask(),
		Changed: func(uid types.UID) { a.Pods.Poke(uid) }, Metrics: cfg.Metrics}); err != nil {
		return err
	}
	if a.claims, err = dra.New(dra.Config{Log: cfg.Log, RootDir: cfg.RootDir, NodeName: cfg.NodeName, Client: cfg.Client, Changed: func(uid types.UID) { a.Pods.Poke(uid) }, Metrics: cfg.Metrics}); err != nil {
		return err
	}
	options, err := topology.ParseOptions(k.TopologyManagerPolicyOptions)
	if err != nil {
		return err
	}
	out := assign.Config{Log: cfg.Log, RootDir: cfg.RootDir, Machine: layout, Devices: a.devices, Metrics: cfg.Metrics, Journal: cfg.Journal,
		Topology: topology.Merger{Policy: topology.Policy(k.TopologyManagerPolicy), Options: options}, PodScope: k.TopologyManagerScope == "pod"}
	if k.CPUManagerPolicy == "static" {
		if out.CPUs, err = staticCPUs(layout, k, cfg.Node.Reserved); err != nil {
			return err
		}
	}
	if k.MemoryManagerPolicy == kubeletv1beta1.StaticMemoryManagerPolicy {
		if out.Memory, err = staticMemory(layout, k, cfg.Node.Reserved, machine.MemoryBytes); err != nil {
			return err
		}
	}
	a.assigned, err = assign.New(out)
	return err
}

// pinning tells whether anything of the configuration needs the topology.
func pinning(k *kubeletv1beta1.KubeletConfiguration) bool {
	return k.CPUManagerPolicy == "static" || k.MemoryManagerPolicy == kubeletv1beta1.StaticMemoryManagerPolicy ||
		k.TopologyManagerPolicy != "" && k.TopologyManagerPolicy != string(topology.None)
}

func staticCPUs(m *topology.Machine, k *kubeletv1beta1.KubeletConfiguration, reserved node.Reservation) (*cpus.Static, error) {
	options, err := cpus.ParseOptions(k.CPUManagerPolicyOptions)
	if err != nil {
		return nil, err
	}
	if err := options.CheckTopology(topology.Policy(k.TopologyManagerPolicy)); err != nil {
		return nil, err
	}
	milli := reserved.System.Cpu().MilliValue() + reserved.Kube.Cpu().MilliValue()
	kept, err := cpus.Reserve(m, k.ReservedSystemCPUs, milli)
	if err != nil {
		return nil, err
	}
	return &cpus.Static{Machine: m, Options: options, Reserved: kept}, nil
}

func staticMemory(m *topology.Machine, k *kubeletv1beta1.KubeletConfiguration, reserved node.Reservation, capacity int64) (memory.Reservation, error) {
	out := memory.Reservation{}
	for _, r := range k.ReservedMemory {
		out[int(r.NumaNode)] = map[v1.ResourceName]uint64{}
		for kind, q := range r.Limits {
			out[int(r.NumaNode)][kind] = uint64(q.Value())
		}
	}
	whole := v1.ResourceList{}
	for _, part := range []v1.ResourceList{reserved.System, reserved.Kube} {
		for name, q := range part {
			sum := whole[name]
			sum.Add(q)
			whole[name] = sum
		}
	}
	if threshold, ok := reserved.EvictionHard[v1.ResourceMemory]; ok {
		sum := whole[v1.ResourceMemory]
		sum.Add(*apiresource.NewQuantity(threshold.Of(capacity), apiresource.BinarySI))
		whole[v1.ResourceMemory] = sum
	}
	return out, memory.CheckReservation(m, out, whole)
}

// giveResources gives a pod what it is to have alone. What pods have that are
// over is free for it.
func (a *Agent) giveResources(p *v1.Pod) (reason, message string, ok bool) {
	if err := a.keepResources(func(uid types.UID) bool { return uid == p.UID || a.needsResources(uid) }); err != nil {
		a.Config.Log.Warn("taking back resources of pods that are over", "err", err)
	}
	if r := a.assigned.Admit(context.Background(), p); r != nil {
		return r.Reason, r.Message, false
	}
	return "", "", true
}

// deviceHealth is the health of what a pod's containers were given, by
// container.
func (a *Agent) deviceHealth(p *v1.Pod) map[string][]v1.ResourceStatus {
	out := a.devices.Health(p.UID)
	for name, more := range a.claims.Health(p, time.Now()) {
		out[name] = append(out[name], more...)
	}
	return out
}

// keepResources takes back what pods have that are not to be kept, once all
// pods of the node are known.
func (a *Agent) keepResources(keep func(types.UID) bool) error {
	if !a.sourcesTold.Load() {
		return nil
	}
	if err := a.devices.Keep(keep); err != nil {
		return err
	}
	return a.assigned.Keep(keep)
}

// needsResources tells whether a pod is here and not over.
func (a *Agent) needsResources(uid types.UID) bool {
	p, ok := a.Pods.Get(uid)
	return ok && p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed
}

// dropResources takes back what a pod has that was refused or is gone.
func (a *Agent) dropResources(uid types.UID) {
	if err := a.assigned.Forget(uid); err != nil {
		a.Config.Log.Warn("taking back the resources of a pod", "pod", uid, "err", err)
	}
}

// followResources keeps running containers on the processors that are theirs.
func (a *Agent) followResources(ctx context.Context) error {
	period := 10 * time.Second
	if d := a.Config.Kubelet.CPUManagerReconcilePeriod.Duration; d > 0 {
		period = d
	}
	f := assign.Follower{
		Manager: a.assigned, Period: period, Ready: a.told, Keep: a.needsResources, Running: a.runningContainers, Changed: a.Watcher.Changed,
		Move: func(ctx context.Context, id, set string) error {
			err := a.Runtime.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: set}})
			if err != nil {
				return fmt.Errorf("updating the container: %w", err)
			}
			return nil
		},
	}
	return f.Run(ctx)
}

func (a *Agent) runningContainers() []assign.Running {
	var out []assign.Running
	for _, c := range a.Watcher.Running() {
		if uid, ok := a.Watcher.Owner(c.ID); ok {
			out = append(out, assign.Running{Pod: uid, Name: c.Name, ID: c.ID})
		}
	}
	return out
}

// servePodResources serves the pod resources API.
func (a *Agent) servePodResources(ctx context.Context) error {
	return podresources.Run(ctx, podresources.Config{Log: a.Config.Log, RootDir: a.Config.RootDir, Pods: a.Pods.List, Devices: a.devices, Assignments: a.assigned,
		Claims: a.claims, Metrics: a.Config.Metrics})
}
