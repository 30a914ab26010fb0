package pressure

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/journal"
)

// victimPatience is how long the next eviction waits for the last victim to be
// gone: what it held is not free before.
const victimPatience = 30 * time.Second

// settings are what configuration decides about evictions.
type settings struct {
	Thresholds []threshold
	// Transition is how long a pressure condition stays after its shortage.
	Transition time.Duration
	// MaxPodGrace bounds the grace of evictions for soft thresholds.
	MaxPodGrace time.Duration
	// DedicatedImageFS says that images have a file system of their own.
	DedicatedImageFS bool
	// IgnoreLocalLimits leaves limits of pods' local storage unenforced.
	IgnoreLocalLimits bool
}

// input is what a step decides on.
type input struct {
	Readings Readings
	// Pods are those that run, with what they use. They are asked for only
	// when NeedPods said so; nil otherwise.
	Pods []PodUsage
	// Limited are pods that limit their own storage, with what they store; nil
	// if they were not measured now.
	Limited []PodUsage
}

// Eviction is a pod to end.
type Eviction struct {
	Pod     *v1.Pod
	Signal  string // for metrics
	Message string
	// Grace bounds the pod's own.
	Grace       time.Duration
	Annotations map[string]string
	// Disrupted adds the condition DisruptionTarget: the pod did nothing
	// wrong by itself.
	Disrupted bool
	Because   []journal.Fact
}

// decision is what a step asks for.
type decision struct {
	Pressure node.Pressure
	// Announce is a shortage that begins to be dealt with, empty for none: the
	// resource's name for the event.
	Announce string
	// Reclaim names a signal for which dead containers and unused images
	// should go; call Reclaimed when that is done and step again.
	Reclaim    Signal
	Containers bool
	Images     bool
	// Evict are the pods to end: one at most for a shortage of the node, any
	// number that are over limits of their own.
	Evict []Eviction
	// ForceKill is a pod evicted before whose remaining grace would outlast the
	// memory that is left: it gets no more time. Nil for none.
	ForceKill *v1.Pod
	// NeedPods asks for a step with Pods filled.
	NeedPods bool
	// Wake is when to step again at the latest although nothing changes; zero
	// for never.
	Wake time.Time
	// Because are the facts behind reclaiming or evicting.
	Because []journal.Fact
}

// core is the state of the node's shortages. It is not safe for concurrent
// use; everything comes in through its methods.
type core struct {
	set settings

	firstMet  map[thresholdKey]time.Time // shortage -> since when
	last      map[v1.NodeConditionType]time.Time
	reclaimed map[Signal]bool // tried since the last victim was gone
	announced map[Signal]bool
	victim    types.UID // the last one, while it is waited for; empty for none
	victimAt  time.Time
	patient   *patience          // what ends the victim's grace early; nil for nothing
	ending    map[types.UID]bool // all that were evicted and still run
}

// newCore returns a Core that has seen nothing yet.
func newCore(set settings) *core {
	return &core{set: set, firstMet: map[thresholdKey]time.Time{}, last: map[v1.NodeConditionType]time.Time{}, reclaimed: map[Signal]bool{},
		announced: map[Signal]bool{}, ending: map[types.UID]bool{}}
}

// Reclaimed notes that what could be reclaimed for a signal was.
func (c *core) Reclaimed(signal Signal) { c.reclaimed[signal] = true }

// Remove notes that nothing of a pod runs any more.
func (c *core) Remove(uid types.UID) {
	delete(c.ending, uid)
	if c.victim == uid {
		c.victim, c.patient = "", nil
		clear(c.reclaimed) // the victim left containers and maybe images behind
	}
}

// Step decides what to do now.
func (c *core) Step(now time.Time, in input) decision {
	met := c.observe(now, in.Readings)
	decision := decision{Pressure: c.conditions(now)}
	decision.Wake = c.nextWake(now, met)
	if in.Limited != nil && !c.set.IgnoreLocalLimits {
		if decision.Evict = c.overOwnLimits(in.Limited); len(decision.Evict) > 0 {
			return decision
		}
	}
	if c.victim != "" {
		if until := c.victimAt.Add(victimPatience); now.Before(until) {
			decision.Wake = sooner(decision.Wake, until)
			decision.ForceKill = c.forceKill(in.Readings)
			return decision
		}
		c.victim, c.patient = "", nil // it hangs; the shortage does not wait for it
		clear(c.reclaimed)
	}
	for _, threshold := range met {
		if now.Sub(c.firstMet[threshold.key()]) < threshold.Grace {
			continue
		}
		c.act(now, threshold, in, &decision)
		break
	}
	return decision
}

// act deals with one shortage: reclaim first, then one pod.
func (c *core) act(now time.Time, threshold threshold, in input, decision *decision) {
	row := rowOf(threshold.Signal)
	reading := in.Readings[threshold.Signal]
	decision.Because = []journal.Fact{
		{Name: "signal", Value: string(threshold.Signal)},
		{Name: "available", Value: amount(reading.Available)},
		{Name: "threshold", Value: threshold.Limit.String()},
		{Name: "short since", Value: now.Sub(c.firstMet[threshold.key()]).Round(time.Millisecond).String()},
	}
	if !c.announced[threshold.Signal] {
		c.announced[threshold.Signal] = true
		decision.Announce = row.resource
	}
	can := row.shared
	if c.set.DedicatedImageFS {
		can = row.dedicated
	}
	if (can.containers || can.images) && !c.reclaimed[threshold.Signal] {
		decision.Reclaim, decision.Containers, decision.Images = threshold.Signal, can.containers, can.images
		return
	}
	if in.Pods == nil {
		decision.NeedPods = true
		return
	}
	for _, candidate := range rankPods(threshold.Signal, in.Pods, c.set.DedicatedImageFS) {
		if critical(candidate.Pod) || c.ending[candidate.Pod.UID] {
			continue
		}
		grace := time.Second
		if threshold.Soft {
			grace = c.set.MaxPodGrace
		}
		text, annotations := explain(threshold, reading, candidate)
		decision.Evict = []Eviction{{Pod: candidate.Pod, Signal: string(threshold.Signal), Message: text, Grace: grace,
			Annotations: annotations, Disrupted: true, Because: decision.Because}}
		c.victim, c.victimAt = candidate.Pod.UID, now
		c.ending[candidate.Pod.UID] = true
		if row.condition == v1.NodeMemoryPressure && !threshold.Soft {
			c.patient = &patience{pod: candidate.Pod, threshold: threshold}
		}
		decision.Wake = sooner(decision.Wake, now.Add(victimPatience))
		return
	}
}

// patience is for a victim whose memory cannot be waited for.
type patience struct {
	pod       *v1.Pod
	threshold threshold
}

// forceKill tells, once, that the victim's grace is over: half of what the
// threshold kept back is gone although its containers were told to stop, and
// when all of it is gone the kernel chooses what dies.
func (c *core) forceKill(readings Readings) *v1.Pod {
	if c.patient == nil {
		return nil
	}
	reading, known := readings[c.patient.threshold.Signal]
	if !known || reading.Available >= c.patient.threshold.Limit.Of(reading.Capacity)/2 {
		return nil
	}
	pod := c.patient.pod
	c.patient = nil
	return pod
}

// observe updates since when which threshold is crossed and returns those that
// are, in order.
func (c *core) observe(now time.Time, readings Readings) []threshold {
	var met []threshold
	stillShort := map[Signal]bool{}
	for _, threshold := range c.set.Thresholds {
		reading, known := readings[threshold.Signal]
		since, was := c.firstMet[threshold.key()]
		if !known {
			// Not being able to read is no relief.
			if was {
				met = append(met, threshold)
				stillShort[threshold.Signal] = true
			}
			continue
		}
		limit := threshold.Limit.Of(reading.Capacity)
		if was {
			limit += threshold.Reclaim.Of(reading.Capacity)
		}
		if reading.Available >= limit {
			delete(c.firstMet, threshold.key())
			continue
		}
		if !was {
			since = now
		}
		c.firstMet[threshold.key()] = since
		c.last[rowOf(threshold.Signal).condition] = now
		met = append(met, threshold)
		stillShort[threshold.Signal] = true
	}
	for signal := range c.announced {
		if !stillShort[signal] {
			delete(c.announced, signal)
			delete(c.reclaimed, signal)
		}
	}
	return met
}

// conditions are on for as long as their shortage lasts and Transition longer.
func (c *core) conditions(now time.Time) node.Pressure {
	on := map[v1.NodeConditionType]bool{}
	for condition, last := range c.last {
		if now.Sub(last) < c.set.Transition || now.Equal(last) {
			on[condition] = true
		}
	}
	return pressureOf(on)
}

// nextWake is when a grace or a transition period ends.
func (c *core) nextWake(now time.Time, met []threshold) time.Time {
	var wake time.Time
	for _, threshold := range met {
		if end := c.firstMet[threshold.key()].Add(threshold.Grace); end.After(now) {
			wake = sooner(wake, end)
		}
	}
	for _, last := range c.last {
		if end := last.Add(c.set.Transition); end.After(now) {
			wake = sooner(wake, end)
		}
	}
	return wake
}

// sooner returns the earlier of two times, of which zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// admit decides whether a new pod may start under pressure.
func admit(pod *v1.Pod, pressure node.Pressure) (reason, message string, ok bool) {
	if !pressure.Memory && !pressure.Disk && !pressure.PID || critical(pod) {
		return "", "", true
	}
	if pressure.Memory && !pressure.Disk && !pressure.PID {
		if !bestEffort(pod) || toleratesMemoryPressure(pod) {
			return "", "", true
		}
	}
	var names []string
	if pressure.Memory {
		names = append(names, string(v1.NodeMemoryPressure))
	}
	if pressure.Disk {
		names = append(names, string(v1.NodeDiskPressure))
	}
	if pressure.PID {
		names = append(names, string(v1.NodePIDPressure))
	}
	return "Evicted", fmt.Sprintf("The node had condition: %v. ", names), false
}

func toleratesMemoryPressure(pod *v1.Pod) bool {
	for _, toleration := range pod.Spec.Tolerations {
		if toleration.Effect != "" && toleration.Effect != v1.TaintEffectNoSchedule {
			continue
		}
		if toleration.Key == "" && toleration.Operator == v1.TolerationOpExists {
			return true
		}
		if toleration.Key == v1.TaintNodeMemoryPressure && (toleration.Operator == v1.TolerationOpExists || toleration.Value == "") {
			return true
		}
	}
	return false
}

func amount(value int64) string { return resource.NewQuantity(value, resource.BinarySI).String() }
