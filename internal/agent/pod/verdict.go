package pod

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/resource/checkpoint"
)

// maxVerdictText bounds each text of a verdict on disk, in bytes. The longest
// that the agent writes itself name the containers of a pod.
const maxVerdictText = 32 << 10

// verdict is what the node decided about a pod and cannot find out again: it is
// on disk from before anything follows from it until the API holds how the pod
// ended. A kubelet forgets it when it starts anew before that, and runs the pod
// again.
type verdict struct {
	// Kill is why the node ends the pod.
	Kill *Kill `json:"kill,omitempty"`
	// Ended is how it ended, once the API failed to take that: what a
	// rejection or the ends of containers that are gone by then cannot tell again.
	Ended *ended `json:"ended,omitempty"`
}

// ended is how a pod ended.
type ended struct {
	Phase   v1.PodPhase `json:"phase"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
}

// verdictOf is what is to be kept of a pod that has the status last: nothing
// once the API holds its end, or no source has the pod. A static pod has none:
// its file asks for it again, by the same UID, when the node is back.
func verdictOf(spec spec, last *v1.PodStatus, acked v1.PodPhase, unheard bool) (v verdict) {
	if spec.Static || spec.Orphan || spec.Removed || terminal(acked) {
		return verdict{}
	}
	if k := spec.Kill; k != nil {
		kill := *k
		kill.Reason, kill.Message = bounded(k.Reason), bounded(k.Message)
		if k.Condition != nil {
			kill.Condition = k.Condition.DeepCopy()
			kill.Condition.Message = bounded(kill.Condition.Message)
		}
		v.Kill = &kill
	}
	if unheard && terminal(last.Phase) {
		v.Ended = &ended{Phase: last.Phase, Reason: bounded(last.Reason), Message: bounded(last.Message)}
	}
	return v
}

func bounded(text string) string { return text[:min(len(text), maxVerdictText)] }

// restore gives back what an agent before this one decided.
func (v verdict) restore(spec *spec, last *v1.PodStatus) {
	if spec.Static || spec.Orphan {
		return
	}
	if v.Kill != nil && spec.Kill == nil {
		spec.Kill = v.Kill
	}
	if v.Ended != nil && !terminal(last.Phase) {
		last.Phase, last.Reason, last.Message = v.Ended.Phase, v.Ended.Reason, v.Ended.Message
	}
}

// verdictFile lies in the pod's directory and goes with it at the latest, so
// there are never more than pods.
func (m *Manager) verdictFile(uid types.UID) string {
	return filepath.Join(m.cfg.Dirs.Root, "pods", string(uid), "verdict.json")
}

// loadVerdict reads what an agent before this one decided. One that cannot be
// read is forgotten, as a kubelet's is: the pod's owner asks for it still.
func (m *Manager) loadVerdict(uid types.UID) (v verdict) {
	if _, err := checkpoint.Read(m.verdictFile(uid), &v); err != nil {
		m.cfg.Log.Error("reading how the node ended a pod before it started anew; the pod runs on", "uid", uid, "err", err)
		return verdict{}
	}
	return v
}

// keepVerdict brings the disk from what it holds to what is to be kept, and
// returns what it holds then.
func (m *Manager) keepVerdict(uid types.UID, held, keep verdict) verdict {
	if reflect.DeepEqual(held, keep) {
		return held
	}
	path := m.verdictFile(uid)
	if keep == (verdict{}) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.cfg.Log.Warn("removing how the node ended a pod, which the API knows by now", "uid", uid, "err", err)
			return held
		}
		return keep
	}
	err := os.MkdirAll(filepath.Dir(path), 0o750)
	if err == nil {
		err = checkpoint.Write(path, keep)
	}
	if err != nil { // the disk may be what the pod is evicted for: it is ended all the same
		m.cfg.Log.Warn("writing how the node ends a pod; it is lost if the agent starts anew before the API knows", "uid", uid, "err", err)
		return held
	}
	return keep
}
