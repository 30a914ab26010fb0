package admission

import (
	"context"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/dra"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/podutil"
)

// Exclusive gives pods what they have alone: devices, CPUs, memory of a NUMA
// node, and takes it back.
type Exclusive struct {
	Devices  *device.Manager
	Assigned *assign.Manager
	Claims   *dra.Manager
	Pods     pods
	// AllKnown is closed once all pods of the node are known: before that nothing
	// is taken back of pods that no one has named.
	AllKnown <-chan struct{}
	Log      *slog.Logger
}

// Give gives a pod what it is to have alone. What pods have that are over is
// free for it.
func (e *Exclusive) Give(p *v1.Pod) (reason, message string, ok bool) {
	if err := e.keep(func(uid types.UID) bool { return uid == p.UID || e.Needed(uid) }); err != nil {
		e.Log.Warn("taking back resources of pods that are over", "err", err)
	}
	if r := e.Assigned.Admit(context.Background(), p); r != nil {
		return r.Reason, r.Message, false
	}
	return "", "", true
}

// keep takes back what pods have that are not to be kept, once all pods of the
// node are known.
func (e *Exclusive) keep(keep func(types.UID) bool) error {
	select {
	case <-e.AllKnown:
	default:
		return nil
	}
	if err := e.Devices.Keep(keep); err != nil {
		return err
	}
	return e.Assigned.Keep(keep)
}

// Needed tells whether a pod is here and not over.
func (e *Exclusive) Needed(uid types.UID) bool {
	p, ok := e.Pods.Get(uid)
	return ok && !podutil.Terminal(p)
}

// Drop takes back what a pod has that was refused or is gone.
func (e *Exclusive) Drop(uid types.UID) {
	if err := e.Assigned.Forget(uid); err != nil {
		e.Log.Warn("taking back the resources of a pod", "pod", uid, "err", err)
	}
}

// Health is the health of what a pod's containers were given, by container.
func (e *Exclusive) Health(p *v1.Pod) map[string][]v1.ResourceStatus {
	out := e.Devices.Health(p.UID)
	for name, more := range e.Claims.Health(p, time.Now()) {
		out[name] = append(out[name], more...)
	}
	return out
}
