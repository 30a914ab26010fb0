// Package probe asks running containers how they are and runs their lifecycle
// handlers.
//
// Schedule is the pure part: which probe is due when, and what results mean.
// The Prober is the shell: one goroutine sleeps until the next probe is due and
// hands it to a goroutine that lives as long as the check, so thousands of
// probes cost what is being checked at the moment and a check that hangs costs
// itself.
package probe

import (
	"hash/fnv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/heap"
)

// probeType is one of the three probes.
type probeType int

// The probes in the order they are looked at.
const (
	Startup probeType = iota
	Liveness
	Readiness
)

// String names the probe as reasons and metrics do.
func (t probeType) String() string { return [...]string{"startup", "liveness", "readiness"}[t] }

// key names one probe of one container.
type key struct {
	ContainerID string
	Type        probeType
}

// entry is one probe.
type entry struct {
	key   key
	uid   types.UID
	probe *v1.Probe
	due   time.Time
	place heap.Place // in due; in none while it runs or rests
	// epoch is when the ticks count from.
	epoch time.Time
	// successes and failures in a row, of which at most one is not zero.
	successes, failures int
	running             bool
	// warm is the pause before a container that has not been ready yet is asked
	// about readiness again; zero once the pauses have grown to its period.
	warm  time.Duration
	again int // immediate retries left after an error
	rest  bool
}

// warmFirst is the first such pause; each next one is twice as long.
const warmFirst = 250 * time.Millisecond

// schedule holds all probes of a node. It is pure: time comes in, due probes
// come out.
type schedule struct {
	due     *heap.Heap[*entry]
	entries map[key]*entry
	targets map[string]*target // by container ID
	pods    map[types.UID][]string
	// born is when the agent started.
	born time.Time
}

type target struct {
	pod.Target
	result pod.Probe
	// known: there is a result to report; before that, what the status said
	// counts.
	known bool
}

// newSchedule makes an empty schedule for an agent that started at born.
func newSchedule(born time.Time) *schedule {
	due := heap.New(func(a, b *entry) bool { return a.due.Before(b.due) }, func(e *entry) *heap.Place { return &e.place })
	return &schedule{due: due, entries: map[key]*entry{}, targets: map[string]*target{}, pods: map[types.UID][]string{}, born: born}
}

// Sync replaces the containers of a pod.
func (s *schedule) Sync(now time.Time, uid types.UID, targets []pod.Target) {
	keep := map[string]bool{}
	ids := make([]string, 0, len(targets))
	for _, t := range targets {
		keep[t.ContainerID] = true
		ids = append(ids, t.ContainerID)
		if have := s.targets[t.ContainerID]; have != nil {
			before := have.Before
			have.Target = t
			have.Before = before
			if t.Ending {
				s.drop(key{t.ContainerID, Startup})
				s.drop(key{t.ContainerID, Liveness})
				have.result.Failed = ""
			}
			continue
		}
		s.add(now, uid, t)
	}
	for _, id := range s.pods[uid] {
		if keep[id] {
			continue
		}
		for _, typ := range []probeType{Startup, Liveness, Readiness} {
			s.drop(key{id, typ})
		}
		delete(s.targets, id)
	}
	if len(ids) == 0 {
		delete(s.pods, uid)
	} else {
		s.pods[uid] = ids
	}
}

func (s *schedule) add(now time.Time, uid types.UID, t pod.Target) {
	tg := &target{Target: t}
	tg.result = pod.Probe{
		Started: t.Container.StartupProbe == nil || t.Before.Started,
		Ready:   t.Container.ReadinessProbe == nil || t.Before.Ready,
	}
	tg.known = true
	s.targets[t.ContainerID] = tg
	if !tg.result.Started {
		s.addProbe(now, uid, t, Startup, t.Container.StartupProbe)
		return
	}
	s.afterStart(now, uid, tg)
}

// afterStart begins liveness and readiness.
func (s *schedule) afterStart(now time.Time, uid types.UID, t *target) {
	if t.Container.LivenessProbe != nil && !t.Ending {
		s.addProbe(now, uid, t.Target, Liveness, t.Container.LivenessProbe)
	}
	if t.Container.ReadinessProbe != nil {
		s.addProbe(now, uid, t.Target, Readiness, t.Container.ReadinessProbe)
	}
}

func (s *schedule) addProbe(now time.Time, uid types.UID, t pod.Target, typ probeType, p *v1.Probe) {
	if p == nil {
		return
	}
	e := &entry{key: key{t.ContainerID, typ}, uid: uid, probe: p, again: 3}
	first := t.StartedAt.Add(time.Duration(p.InitialDelaySeconds) * time.Second)
	if first.Before(now) {
		first = now
	}
	waiting := typ == Readiness && !t.Before.Ready // traffic waits for the answer
	if waiting {
		e.warm = warmFirst
	}
	// A restarted agent must not ask everybody at once.
	if period := periodOf(p); now.Sub(s.born) < period && t.StartedAt.Before(s.born) && !waiting {
		first = first.Add(spread(e.key, period))
	}
	e.due, e.epoch = first, first
	s.entries[e.key] = e
	s.due.Put(e)
}

func periodOf(p *v1.Probe) time.Duration {
	return time.Duration(max(p.PeriodSeconds, 1)) * time.Second
}

// spread is a probe's own place within a period.
func spread(k key, period time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.ContainerID))
	_, _ = h.Write([]byte{byte(k.Type)})
	return time.Duration(h.Sum64() % uint64(period))
}

func (s *schedule) drop(k key) {
	e := s.entries[k]
	if e == nil {
		return
	}
	delete(s.entries, k)
	s.due.Remove(e)
}

// Next is when the next probe is due; ok is false when none is.
func (s *schedule) Next() (at time.Time, ok bool) {
	if s.due.Len() == 0 {
		return time.Time{}, false
	}
	return s.due.First().due, true
}

// check is a probe to be made now.
type check struct {
	Key    key
	Target pod.Target
	Probe  *v1.Probe
}

// Due takes out the probes that are due. Each comes back through Done.
func (s *schedule) Due(now time.Time) []check {
	var out []check
	for s.due.Len() > 0 && !s.due.First().due.After(now) {
		e := s.due.Pop()
		e.running = true
		out = append(out, check{Key: e.key, Target: s.targets[e.key.ContainerID].Target, Probe: e.probe})
	}
	return out
}

// outcome is what a finished check changed.
type outcome struct {
	UID types.UID
	// Changed: the container's result is another one than before.
	Changed bool
	// Reported: the check counts as failed and is worth an event.
	Reported bool
}

// Done records how a check ended and plans the next one.
func (s *schedule) Done(now time.Time, k key, v verdict, output string) outcome {
	e := s.entries[k]
	if e == nil {
		return outcome{}
	}
	e.running = false
	t := s.targets[k.ContainerID]
	out := outcome{UID: e.uid}
	if v == Errored {
		if e.again--; e.again > 0 {
			e.due = now
		} else {
			e.again = 3
			s.nextTick(e, now)
		}
		s.due.Put(e)
		return out
	}
	e.again = 3
	if v == Failure {
		e.failures, e.successes = e.failures+1, 0
		out.Reported = true
	} else {
		e.successes, e.failures = e.successes+1, 0
	}
	before := t.result
	s.judge(now, e, t, output)
	out.Changed = before != t.result
	if s.entries[k] == e && !e.rest {
		s.nextTick(e, now)
		if e.warm > 0 {
			s.sooner(e, now, t.result.Ready)
		}
		s.due.Put(e)
	}
	return out
}

// sooner asks a container that has never been ready again before its next
// tick, so that one that needs a moment to listen does not lose a whole period.
func (s *schedule) sooner(e *entry, now time.Time, ready bool) {
	if ready || e.warm >= periodOf(e.probe) {
		e.warm = 0
		return
	}
	if at := now.Add(e.warm); at.Before(e.due) {
		e.due = at
	}
	e.warm *= 2
}

// judge applies the thresholds.
func (s *schedule) judge(now time.Time, e *entry, t *target, output string) {
	passed := e.successes >= int(max(e.probe.SuccessThreshold, 1))
	failed := e.failures >= int(max(e.probe.FailureThreshold, 1))
	switch e.key.Type {
	case Startup:
		switch {
		case passed:
			t.result.Started = true
			s.drop(e.key)
			s.afterStart(now, e.uid, t)
		case failed:
			t.result.Failed, t.result.Output = "startup", output
			e.rest = true // until there is another container
		}
	case Liveness:
		if failed {
			t.result.Failed, t.result.Output = "liveness", output
			e.rest = true
		}
	case Readiness:
		switch {
		case passed:
			t.result.Ready = true
		case failed:
			t.result.Ready = false
		}
	}
}

// nextTick keeps probes on the ticks they began with, skipping those that a
// slow check ran over.
func (s *schedule) nextTick(e *entry, now time.Time) {
	period := periodOf(e.probe)
	n := now.Sub(e.epoch)/period + 1
	e.due = e.epoch.Add(n * period)
}

// Results returns what is known of a pod's containers.
func (s *schedule) Results(uid types.UID) map[string]pod.Probe {
	ids := s.pods[uid]
	if len(ids) == 0 {
		return nil
	}
	out := make(map[string]pod.Probe, len(ids))
	for _, id := range ids {
		if t := s.targets[id]; t.known {
			r := t.result
			r.Ready = r.Ready && r.Started
			out[id] = r
		}
	}
	return out
}
