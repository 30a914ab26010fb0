package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/shutdown"
	"github.com/berth-dev/berth/internal/agent/stats"
)

// buildUpkeep makes what measures and guards the node.
func (a *Agent) buildUpkeep(ctx context.Context) error {
	cfg, k := &a.Config, a.Config.Kubelet
	mounts, err := stats.FindMounts()
	if err != nil {
		return err
	}
	measure := stats.Config{
		Log: cfg.Log, NodeName: cfg.NodeName, Pods: a.Pods.List, PodCgroup: a.Cgroups.PodPath, PodsCgroup: a.Cgroups.PodsPath(),
		Reader: stats.NewReader(mounts), Runtime: a.Runtime, Images: a.Images, Volumes: a.measurable,
		RootDir: cfg.RootDir, LogsDir: cfg.PodLogsDir, DiskAge: k.VolumeStatsAggPeriod.Duration,
	}
	measure.SystemCgroups = map[string]string{}
	own := k.KubeletCgroups
	if own == "" {
		own = stats.OwnCgroup(mounts)
	}
	for name, path := range map[string]string{"kubelet": own, "runtime": cfg.RuntimeCgroup} {
		if path != "" {
			measure.SystemCgroups[name] = path
		}
	}
	if a.Stats, err = stats.New(measure); err != nil {
		return err
	}
	a.register(a.Stats.VolumeMetrics(), a.Stats.LogMetrics(), a.volumeCounts())
	a.collector, err = pressure.NewCollector(ctx, pressure.CollectorConfig{
		Log: cfg.Log, NodeName: cfg.NodeName, Runtime: a.Runtime, Images: a.Images, Events: a.Events, Pods: a.Pods.List, SourcesReady: a.sourcesTold.Load,
		RootDir: cfg.RootDir, LogsDir: cfg.PodLogsDir, LinkDir: cfg.LogLinkDir, HighPercent: value(k.ImageGCHighThresholdPercent, 85), LowPercent: value(k.ImageGCLowThresholdPercent, 80),
		ImageLimits:     pressure.ImageLimits{MinimumAge: k.ImageMinimumGCAge.Duration, MaximumAge: k.ImageMaximumGCAge.Duration},
		ContainerLimits: *cfg.DeadContainers,
		Journal:         cfg.Journal, Metrics: cfg.Metrics,
	})
	if err != nil {
		return err
	}
	system := cfg.System
	if system == nil {
		system = &shutdown.Logind{}
	}
	a.shutdown, err = shutdown.New(shutdown.Config{
		Log: cfg.Log, NodeName: cfg.NodeName, Kubelet: k, System: system, Board: a.Board, Pods: a.Pods.List, Kill: a.endForShutdown,
		Events: a.Events, Journal: cfg.Journal, Metrics: cfg.Metrics,
	})
	return err
}

// endForShutdown ends a pod because the machine goes down. Once that is let go
// nobody could tell the API any more how the pod ended, so it is told before.
func (a *Agent) endForShutdown(p *v1.Pod, grace time.Duration) <-chan struct{} {
	seconds := int64(grace / time.Second)
	reported := a.Pods.Reported(p.UID) // asked for first: it may be gone after
	a.Pods.Kill(p.UID, pod.Kill{Grace: &seconds, Phase: v1.PodFailed, Reason: shutdown.Reason, Message: shutdown.Message, Condition: disrupted(shutdown.Message)})
	return reported
}

// goingDown refuses new pods while the machine goes down.
func (a *Agent) goingDown(p *v1.Pod) (reason, message string, ok bool) {
	if a.shutdown == nil {
		return "", "", true
	}
	return a.shutdown.Admit(p)
}

func disrupted(message string) *v1.PodCondition {
	return &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message, LastTransitionTime: metav1.Now()}
}

func value(pointer *int32, otherwise int32) int32 {
	if pointer == nil {
		return otherwise
	}
	return *pointer
}

func (a *Agent) pressureConfig() pressure.Config {
	cfg := &a.Config
	sensor := &pressure.Sensor{RootDir: cfg.RootDir, ImageDir: a.collector.ImageDir(), Allocatable: a.allocatableMemory}
	out := pressure.Config{
		Log: cfg.Log, NodeName: cfg.NodeName, Kubelet: cfg.Kubelet, Board: pressureBoard{a}, Pods: a.Pods.List, Usage: a.usage, Kill: a.evict, Hurry: func(p *v1.Pod) { a.Pods.Kill(p.UID, pod.Kill{Now: true}) },
		Events: a.Events, Sensor: sensor, Collector: a.collector, Journal: cfg.Journal, Metrics: cfg.Metrics,
	}
	if mounts, err := stats.FindMounts(); err == nil && mounts.Unified != "" {
		out.PodsEvents = filepath.Join(mounts.Unified, a.Cgroups.PodsPath(), "memory.events")
	}
	return out
}

// allocatableMemory measures all pods together; no limit means no shortage of
// their own.
func (a *Agent) allocatableMemory() (workingSet, limit int64, err error) {
	used, limited, err := a.Stats.Memory(a.Cgroups.PodsPath())
	if err != nil {
		return 0, 0, fmt.Errorf("measuring the cgroup of all pods: %w", err)
	}
	return int64(used), int64(limited), nil
}

func (a *Agent) usage(ctx context.Context, pods []*v1.Pod, disk bool) ([]pressure.PodUsage, error) {
	measured, err := a.Stats.Usage(ctx, pods, disk)
	if err != nil {
		return nil, err
	}
	list := make([]pressure.PodUsage, 0, len(measured))
	for i := range measured {
		m := &measured[i]
		u := pressure.PodUsage{Pod: m.Pod, Measured: m.Measured, Memory: int64(m.WorkingSet), Processes: int64(m.Processes),
			Containers: map[string]pressure.ContainerUsage{}, Volumes: map[string]pressure.Disk{}}
		for name, c := range m.Containers {
			u.Containers[name] = pressure.ContainerUsage{Memory: int64(c.WorkingSet), Rootfs: diskOf(c.Rootfs), Logs: diskOf(c.Logs)}
		}
		for name, v := range m.Volumes {
			u.Volumes[name] = diskOf(v)
		}
		list = append(list, u)
	}
	return list, nil
}

func diskOf(use stats.DiskUse) pressure.Disk {
	return pressure.Disk{Bytes: int64(use.Bytes), Inodes: int64(use.Inodes)}
}

// evict ends a pod the way an eviction does.
func (a *Agent) evict(p *v1.Pod, e pressure.Eviction) <-chan struct{} {
	grace := int64(e.Grace / time.Second)
	kill := pod.Kill{Grace: &grace, Phase: v1.PodFailed, Reason: "Evicted", Message: e.Message}
	if e.Disrupted {
		kill.Condition = disrupted(e.Message)
	}
	return a.Pods.Kill(p.UID, kill)
}

// underPressure refuses new pods that the node has no room for.
func (a *Agent) underPressure(p *v1.Pod) (reason, message string, ok bool) {
	now := a.pressed.Load()
	if now == nil {
		return "", "", true
	}
	return pressure.Admit(p, *now)
}

// pressureBoard shows pressure on the Node and to admission.
type pressureBoard struct{ a *Agent }

// SetPressure takes in what runs short.
func (b pressureBoard) SetPressure(p node.Pressure) {
	b.a.pressed.Store(&p)
	b.a.Board.SetPressure(p)
}

// toldSink notes that all sources have told what they have.
type toldSink struct {
	*pod.Manager
	told *atomic.Bool
	then chan struct{} // closed with it
}

// SourcesReady passes the news on.
func (s *toldSink) SourcesReady() {
	s.Manager.SourcesReady()
	if !s.told.Swap(true) {
		close(s.then)
	}
}
