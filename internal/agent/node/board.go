package node

import (
	"slices"
	"sort"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// StatusInputs is where the agent's other parts pin what the Node's status must say.
// Every method is safe for concurrent use, returns at once, and wakes the
// reporter only if something changed. The zero Board is not usable; see
// NewStatusInputs.
type StatusInputs struct {
	mu       sync.Mutex
	pinned   pinned
	causes   map[string]string
	statusCh chan struct{}
	probeCh  chan struct{}
	imagesCh chan struct{}
}

type pinned struct {
	pressure          Pressure
	deviceCapacity    v1.ResourceList
	deviceAllocatable v1.ResourceList
	volumesInUse      []v1.UniqueVolumeName
	volumesKnown      bool
	shuttingDown      bool
}

// NewStatusInputs returns an empty board.
func NewStatusInputs() *StatusInputs {
	return &StatusInputs{causes: map[string]string{}, statusCh: make(chan struct{}, 1), probeCh: make(chan struct{}, 1),
		imagesCh: make(chan struct{}, 1)}
}

// SetPressure says which resources run short.
func (b *StatusInputs) SetPressure(pressure Pressure) {
	b.change(func(p *pinned) bool {
		changed := p.pressure != pressure
		p.pressure = pressure
		return changed
	})
}

// SetDevices says what device plugins offer. A resource that was offered
// before must stay in both lists with amount zero.
func (b *StatusInputs) SetDevices(capacity, allocatable v1.ResourceList) {
	b.change(func(p *pinned) bool {
		changed := !equality.Semantic.DeepEqual(p.deviceCapacity, capacity) || !equality.Semantic.DeepEqual(p.deviceAllocatable,
			allocatable)
		p.deviceCapacity, p.deviceAllocatable = capacity.DeepCopy(), allocatable.DeepCopy()
		return changed
	})
}

// SetVolumesInUse lists the attachable volumes in use, in any order. Until the
// first call the Node's list is left alone.
func (b *StatusInputs) SetVolumesInUse(volumes []v1.UniqueVolumeName) {
	sorted := slices.Clone(volumes)
	slices.Sort(sorted)
	b.change(func(p *pinned) bool {
		changed := !p.volumesKnown || !slices.Equal(p.volumesInUse, sorted)
		p.volumesInUse, p.volumesKnown = sorted, true
		return changed
	})
}

// SetShuttingDown says that the host is about to go down (or, if false,
// that it will not after all).
func (b *StatusInputs) SetShuttingDown(shuttingDown bool) {
	b.change(func(p *pinned) bool {
		changed := p.shuttingDown != shuttingDown
		p.shuttingDown = shuttingDown
		return changed
	})
}

// SetNotReady names why part keeps the node from being ready; an empty cause
// takes it back. The text goes into the Ready condition as it is.
func (b *StatusInputs) SetNotReady(part, cause string) {
	b.mu.Lock()
	changed := b.causes[part] != cause
	if cause == "" {
		delete(b.causes, part)
	} else {
		b.causes[part] = cause
	}
	b.mu.Unlock()
	if changed {
		trigger(b.statusCh)
	}
}

// ProbeRuntime asks the runtime for its status now instead of at the next
// deadline: the CNI configuration was written, the connection was lost, ...
func (b *StatusInputs) ProbeRuntime() { trigger(b.probeCh) }

// ImagesChanged makes the image list be read again.
func (b *StatusInputs) ImagesChanged() { trigger(b.imagesCh) }

func (b *StatusInputs) change(apply func(*pinned) bool) {
	b.mu.Lock()
	changed := apply(&b.pinned)
	b.mu.Unlock()
	if changed {
		trigger(b.statusCh)
	}
}

// fill copies what is pinned into the inputs.
func (b *StatusInputs) fill(in *Inputs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in.Pressure = b.pinned.pressure
	in.DeviceCapacity, in.DeviceAllocatable = b.pinned.deviceCapacity, b.pinned.deviceAllocatable
	in.VolumesInUse, in.VolumesInUseKnown = b.pinned.volumesInUse, b.pinned.volumesKnown
	in.ShuttingDown = b.pinned.shuttingDown
	parts := make([]string, 0, len(b.causes))
	for part := range b.causes {
		parts = append(parts, part)
	}
	sort.Strings(parts)
	in.OtherCauses = nil
	for _, part := range parts {
		in.OtherCauses = append(in.OtherCauses, b.causes[part])
	}
}

func trigger(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
