package start

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/volume"
)

// Mounts remembers what volumes of which pods are mounted where.
type Mounts struct {
	images *Images

	mu    sync.Mutex
	byPod map[types.UID]map[string]volume.Mounted
}

// NewMounts makes an empty memory; images knows what image volumes resolved to.
func NewMounts(images *Images) *Mounts {
	return &Mounts{images: images, byPod: map[types.UID]map[string]volume.Mounted{}}
}

// set takes in what is mounted of a pod, nil for nothing.
func (m *Mounts) set(uid types.UID, mounted map[string]volume.Mounted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mounted == nil {
		delete(m.byPod, uid)
		return
	}
	m.byPod[uid] = mounted
}

// Of are a pod's volumes with what their images resolved to.
func (m *Mounts) Of(uid types.UID) map[string]volume.Mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := maps.Clone(m.byPod[uid])
	for name, v := range out {
		if v.Image == nil {
			continue
		}
		img := *v.Image
		img.Ref = m.images.volumeRef(uid, name)
		v.Image = &img
		out[name] = v
	}
	return out
}
