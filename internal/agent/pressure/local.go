package pressure

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// overOwnLimits finds pods that store more on the node than they may,
// whatever the node has left.
func (c *core) overOwnLimits(pods []PodUsage) []Eviction {
	var list []Eviction
	for i := range pods {
		pod := &pods[i]
		if !pod.Measured || c.ending[pod.Pod.UID] || critical(pod.Pod) || pod.Pod.DeletionTimestamp != nil {
			continue
		}
		if signal, text, facts := overLimit(pod); signal != "" {
			c.ending[pod.Pod.UID] = true
			list = append(list, Eviction{Pod: pod.Pod, Signal: signal, Message: text, Grace: time.Second, Because: facts})
		}
	}
	return list
}

func overLimit(pod *PodUsage) (signal, text string, because []journal.Fact) {
	for i := range pod.Pod.Spec.Volumes {
		volume := &pod.Pod.Spec.Volumes[i]
		if volume.EmptyDir == nil || volume.EmptyDir.SizeLimit == nil || volume.EmptyDir.SizeLimit.Sign() <= 0 {
			continue
		}
		if used, known := pod.Volumes[volume.Name]; known && used.Bytes > volume.EmptyDir.SizeLimit.Value() {
			return "emptydirfs.limit", fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name,
					volume.EmptyDir.SizeLimit.String()),
				[]journal.Fact{{Name: "volume " + volume.Name, Value: amount(used.Bytes)}}
		}
	}
	total := diskReading{}
	for _, container := range pod.Containers {
		total = total.add(container.Rootfs).add(container.Logs)
	}
	for i := range pod.Pod.Spec.Volumes {
		if volume := &pod.Pod.Spec.Volumes[i]; volume.EmptyDir != nil && volume.EmptyDir.Medium == v1.StorageMediumDefault {
			total = total.add(pod.Volumes[volume.Name])
		}
	}
	if limit, all := podLimit(pod.Pod); all && total.Bytes > limit {
		return "ephemeralpodfs.limit", fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
				amount(limit)),
			[]journal.Fact{{Name: "stored", Value: amount(total.Bytes)}}
	}
	for i := range pod.Pod.Spec.Containers {
		container := &pod.Pod.Spec.Containers[i]
		limit, ok := container.Resources.Limits[v1.ResourceEphemeralStorage]
		used := pod.Containers[container.Name]
		if stored := used.Rootfs.Bytes + used.Logs.Bytes; ok && stored > limit.Value() {
			return "ephemeralcontainerfs.limit", fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", container.Name,
					limit.String()),
				[]journal.Fact{{Name: "container " + container.Name, Value: amount(stored)}}
		}
	}
	return "", "", nil
}

// podLimit is the sum of the containers' limits. A pod has one only if it is
// set for every container.
func podLimit(pod *v1.Pod) (int64, bool) {
	total := int64(0)
	for i := range pod.Spec.Containers {
		limit, ok := pod.Spec.Containers[i].Resources.Limits[v1.ResourceEphemeralStorage]
		if !ok {
			return 0, false
		}
		total += limit.Value()
	}
	return total, len(pod.Spec.Containers) > 0
}

// limitsLocalStorage tells whether a pod limits what it may store on the node,
// so that its disk usage is worth looking at.
func limitsLocalStorage(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if dir := pod.Spec.Volumes[i].EmptyDir; dir != nil && dir.SizeLimit != nil && dir.SizeLimit.Sign() > 0 &&
			dir.Medium == v1.StorageMediumDefault {
			return true
		}
	}
	for i := range pod.Spec.Containers {
		if _, ok := pod.Spec.Containers[i].Resources.Limits[v1.ResourceEphemeralStorage]; ok {
			return true
		}
	}
	return false
}
