package pressure

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// storedImage is an image on the node as its collector sees it.
type storedImage struct {
	ID     string
	Bytes  int64
	Pinned bool
	// InUse says that a container, running or dead, is made from it, or that
	// it is mounted as a volume.
	InUse bool
	// Detected is when the agent first saw it, LastUsed when it last saw it in
	// use (zero if never).
	Detected, LastUsed time.Time
}

// ImageLimits bound which images go.
type ImageLimits struct {
	// MinimumAge is the least time since an image was first seen.
	MinimumAge time.Duration
	// MaximumAge removes images that were not used for so long, whatever the
	// disk looks like; zero is off.
	MaximumAge time.Duration
}

// unusedImages picks the images to remove until the wanted bytes are free,
// the one longest out of use first; a negative amount wants all. An image that
// is in use or pinned is never picked.
func unusedImages(now time.Time, images []storedImage, limits ImageLimits, wanted int64) []storedImage {
	candidates := removable(now, images, limits)
	slices.SortFunc(candidates, func(a, b storedImage) int {
		if order := a.LastUsed.Compare(b.LastUsed); order != 0 {
			return order
		}
		if order := a.Detected.Compare(b.Detected); order != 0 {
			return order
		}
		return cmp.Compare(a.ID, b.ID)
	})
	if wanted < 0 {
		return candidates
	}
	picked := candidates[:0:0]
	for freed := int64(0); len(candidates) > 0 && freed < wanted; candidates = candidates[1:] {
		picked = append(picked, candidates[0])
		freed += candidates[0].Bytes
	}
	return picked
}

// oldImages picks the images that were not used for the maximum age.
func oldImages(now time.Time, images []storedImage, limits ImageLimits) []storedImage {
	if limits.MaximumAge == 0 {
		return nil
	}
	var old []storedImage
	for _, image := range removable(now, images, limits) {
		since := image.LastUsed
		if since.IsZero() {
			since = image.Detected
		}
		if now.Sub(since) > limits.MaximumAge {
			old = append(old, image)
		}
	}
	return old
}

func removable(now time.Time, images []storedImage, limits ImageLimits) []storedImage {
	var list []storedImage
	for _, image := range images {
		if !image.InUse && !image.Pinned && now.Sub(image.Detected) >= limits.MinimumAge {
			list = append(list, image)
		}
	}
	return list
}

// toFree is how many bytes must go for a file system to be below the low
// threshold again, or 0 if it is not above the high one.
func toFree(capacity, available int64, highPercent, lowPercent int32) int64 {
	if capacity <= 0 {
		return 0
	}
	usedPercent := 100 - available*100/capacity
	if usedPercent < int64(highPercent) {
		return 0
	}
	return max(capacity*(100-int64(lowPercent))/100-available, 0)
}

// deadContainer is a container that ended.
type deadContainer struct {
	ID      string
	Pod     types.UID
	Name    string
	Ended   time.Time // when it was created, where the end is not known
	Sandbox string
}

// podState is what the collector needs to know of a pod.
type podState int

const (
	// PodLive may start containers again.
	PodLive podState = iota
	// PodOver is terminal or evicted but still known: its last containers stay
	// for their logs.
	PodOver
	// PodGone is not known any more.
	PodGone
)

// ContainerLimits bound which dead containers go.
type ContainerLimits struct {
	MinimumAge time.Duration
	// PerContainer is how many dead instances stay, negative is all.
	PerContainer int
	// Total is how many stay in all, negative is any number.
	Total int
	// Finished removes all containers of pods that are over, too.
	Finished bool
}

// deadContainers picks the dead containers to remove: all of pods that are
// gone, what is over the limit per container, and then the oldest until the
// total fits. The last instance of a live pod's container stays whatever the
// limits say: it is the proof that the container ran.
func deadContainers(now time.Time, dead []deadContainer, state func(types.UID) podState, limits ContainerLimits) []deadContainer {
	type unit struct {
		pod  types.UID
		name string
	}
	var picked, kept []deadContainer
	units := map[unit][]deadContainer{}
	var order []unit
	proof := 0
	for _, container := range dead {
		if now.Sub(container.Ended) < limits.MinimumAge {
			continue
		}
		if of := state(container.Pod); of == PodGone || of == PodOver && limits.Finished {
			picked = append(picked, container)
			continue
		}
		key := unit{container.Pod, container.Name}
		if units[key] == nil {
			order = append(order, key)
		}
		units[key] = append(units[key], container)
	}
	for _, key := range order {
		list := units[key]
		slices.SortFunc(list, newestFirst)
		keep := len(list)
		if limits.PerContainer >= 0 {
			keep = min(keep, limits.PerContainer)
		}
		if state(key.pod) == PodLive {
			proof, list = proof+1, list[1:]
			keep = max(keep-1, 0)
		}
		kept = append(kept, list[:keep]...)
		picked = append(picked, list[keep:]...)
	}
	if limits.Total >= 0 {
		limits.Total = max(limits.Total-proof, 0)
	}
	if limits.Total >= 0 && len(kept) > limits.Total {
		slices.SortFunc(kept, newestFirst)
		picked = append(picked, kept[limits.Total:]...)
	}
	return picked
}

func newestFirst(a, b deadContainer) int {
	if order := b.Ended.Compare(a.Ended); order != 0 {
		return order
	}
	return cmp.Compare(a.ID, b.ID)
}
