package pressure

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/stats"
)

// Measure measures pods from a node's statistics, with what they take of disks if
// asked to.
func Measure(ctx context.Context, from *stats.Provider, pods []*v1.Pod, disk bool) ([]PodUsage, error) {
	measured, err := from.Usage(ctx, pods, disk)
	if err != nil {
		return nil, err
	}
	list := make([]PodUsage, 0, len(measured))
	for i := range measured {
		m := &measured[i]
		u := PodUsage{Pod: m.Pod, Measured: m.Measured, Memory: int64(m.WorkingSet), Processes: int64(m.Processes),
			Containers: map[string]containerUsage{}, Volumes: map[string]diskReading{}}
		for name, c := range m.Containers {
			u.Containers[name] = containerUsage{Memory: int64(c.WorkingSet), Rootfs: diskOf(c.Rootfs), Logs: diskOf(c.Logs)}
		}
		for name, v := range m.Volumes {
			u.Volumes[name] = diskOf(v)
		}
		list = append(list, u)
	}
	return list, nil
}

func diskOf(use stats.DiskUse) diskReading {
	return diskReading{Bytes: int64(use.Bytes), Inodes: int64(use.Inodes)}
}

// Kill is how a pod ends that is evicted.
func (e Eviction) Kill() pod.Kill {
	grace := int64(e.Grace / time.Second)
	out := pod.Kill{Grace: &grace, Phase: v1.PodFailed, Reason: "Evicted", Message: e.Message}
	if e.Disrupted {
		out.Condition = pod.Disrupted(e.Message)
	}
	return out
}

// Gate shows what runs short on the Node and to the admission of pods.
type Gate struct {
	status statusSetter
	now    atomic.Pointer[node.Pressure]
}

// NewGate makes a gate in front of the Node's board.
func NewGate(status statusSetter) *Gate { return &Gate{status: status} }

// SetPressure takes in what runs short.
func (g *Gate) SetPressure(p node.Pressure) {
	g.now.Store(&p)
	g.status.SetPressure(p)
}

// Admit refuses new pods that the node has no room for.
func (g *Gate) Admit(p *v1.Pod) (reason, message string, ok bool) {
	now := g.now.Load()
	if now == nil {
		return "", "", true
	}
	return admit(p, *now)
}
