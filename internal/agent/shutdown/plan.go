package shutdown

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/podutil"
)

// criticalPriority is the least priority of system-cluster-critical pods.
const criticalPriority = 2_000_000_000

// group is the pods from a priority up to that of the next group, with the
// time they get to end.
type group struct {
	Priority int32
	Period   time.Duration
}

// groups reads the configuration, in the order in which groups end. None means
// that graceful shutdown is off.
func groups(cfg *kubeletv1beta1.KubeletConfiguration) []group {
	var groups []group
	if len(cfg.ShutdownGracePeriodByPodPriority) > 0 {
		for _, entry := range cfg.ShutdownGracePeriodByPodPriority {
			groups = append(groups, group{Priority: entry.Priority, Period: time.Duration(entry.ShutdownGracePeriodSeconds) * time.Second})
		}
	} else if all := cfg.ShutdownGracePeriod.Duration; all > 0 {
		critical := cfg.ShutdownGracePeriodCriticalPods.Duration
		groups = []group{{Priority: 0, Period: all - critical}, {Priority: criticalPriority, Period: critical}}
	}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(a.Priority, b.Priority) })
	return groups
}

func total(groups []group) time.Duration {
	sum := time.Duration(0)
	for _, group := range groups {
		sum += group.Period
	}
	return sum
}

// victim is a pod with the time it gets.
type victim struct {
	Pod   *v1.Pod
	Grace time.Duration
}

// stage is a group with pods in it.
type stage struct {
	group
	Victims []victim
}

// plan sorts the pods that still run into their groups; empty groups are left
// out. A pod gets its own grace period, but no more than its group's.
func plan(groups []group, pods []*v1.Pod) []stage {
	stages := make([]stage, len(groups))
	for i := range groups {
		stages[i].group = groups[i]
	}
	for _, pod := range pods {
		if len(stages) == 0 || podutil.Terminal(pod) {
			continue
		}
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		at := 0 // below the lowest group counts as in it
		for i := range groups {
			if groups[i].Priority <= priority {
				at = i
			}
		}
		grace := groups[at].Period
		if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, time.Duration(*own)*time.Second)
		}
		stages[at].Victims = append(stages[at].Victims, victim{Pod: pod, Grace: grace})
	}
	return slices.DeleteFunc(stages, func(stage stage) bool { return len(stage.Victims) == 0 })
}
