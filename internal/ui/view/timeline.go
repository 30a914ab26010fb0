package view

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// timelineStep is one thing that happened in a pod's start, and how long it took.
type timelineStep struct {
	Name string
	// From and To bound it; To is zero for a step that is not over.
	From, To time.Time
	// Took is To less From, or as the agent told it.
	Took time.Duration
	// Left and Width place its bar in the timeline, in hundredths.
	Left, Width int
	Open        bool
	Detail      string
}

var pullTook = regexp.MustCompile(` in ([0-9.]+(?:ns|µs|ms|s|m|h)[0-9a-zµ.]*)`)

// timeline are the steps from creation to readiness, in their order, and how long
// all of them took. Times of the API have whole seconds; what an event tells is
// more exact.
func timeline(p *v1.Pod, events []*v1.Event, now time.Time) (steps []timelineStep, length time.Duration) {
	created := p.CreationTimestamp.Time
	last := created
	next := func(name string, c *v1.PodCondition, detail string) bool {
		s := timelineStep{Name: name, From: last, Detail: detail}
		if c == nil || c.Status != v1.ConditionTrue {
			s.Open = true
			steps = append(steps, s)
			return false
		}
		s.To = latest(last, c.LastTransitionTime.Time)
		s.Took = s.To.Sub(last)
		last = s.To
		steps = append(steps, s)
		return true
	}
	over := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
	if next("scheduled", podCondition(p, v1.PodScheduled), p.Spec.NodeName) {
		sandbox := podCondition(p, v1.PodReadyToStartContainers)
		if over || sandbox != nil && sandbox.Status != v1.ConditionTrue && startedAt(p) {
			sandbox = nil // it is gone again
		}
		if sandbox != nil && next("sandbox ready", sandbox, p.Status.PodIP) || started(p) {
			steps = append(steps, containerSteps(p, events, last)...)
			for _, s := range steps {
				last = latest(last, s.To)
			}
			if !over {
				next("ready", podCondition(p, v1.PodReady), "")
			}
		}
	}
	end := created
	for _, s := range steps {
		end = latest(end, s.To)
		if s.Open {
			end = latest(end, now)
		}
	}
	length = end.Sub(created)
	for i := range steps {
		place(&steps[i], created, end)
	}
	return steps, length
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// startedAt says whether a container has ever started.
func startedAt(p *v1.Pod) bool { return started(p) || restarts(p) > 0 }

func started(p *v1.Pod) bool {
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if s := &list[i].State; s.Running != nil || s.Terminated != nil {
				return true
			}
		}
	}
	return false
}

// place sets where a step's bar is.
func place(s *timelineStep, from, end time.Time) {
	whole := end.Sub(from)
	if whole <= 0 {
		s.Width = 100
		return
	}
	to := s.To
	if s.Open {
		to = end
	}
	s.Left = int(s.From.Sub(from) * 100 / whole)
	s.Width = max(1, int(to.Sub(s.From)*100/whole))
	s.Left = min(max(s.Left, 0), 99)
	s.Width = min(s.Width, 100-s.Left)
}

// containerSteps are pull and start of each container, init containers first.
func containerSteps(p *v1.Pod, events []*v1.Event, sandbox time.Time) (out []timelineStep) {
	add := func(spec []v1.Container, list []v1.ContainerStatus, init bool) {
		for i := range list {
			s := &list[i]
			image := ""
			for _, c := range spec {
				if c.Name == s.Name {
					image = c.Image
				}
			}
			if at, took, ok := pulled(events, image, s.Name); ok && at.Before(now(s)) {
				out = append(out, timelineStep{Name: "image of " + s.Name, From: latest(sandbox, at.Add(-took)), To: at, Took: took,
					Detail: image})
			}
			name, from := "start "+s.Name, sandbox
			if n := len(out); n > 0 {
				from = out[n-1].To
			}
			switch {
			case s.State.Running != nil:
				at := latest(from, s.State.Running.StartedAt.Time)
				out = append(out, timelineStep{Name: name, From: from, To: at, Took: at.Sub(from)})
			case s.State.Terminated != nil && init:
				t := s.State.Terminated
				out = append(out, timelineStep{Name: "init " + s.Name, From: t.StartedAt.Time, To: t.FinishedAt.Time,
					Took: t.FinishedAt.Sub(t.StartedAt.Time), Detail: t.Reason})
			case s.State.Terminated != nil:
				t := s.State.Terminated
				out = append(out, timelineStep{Name: "run " + s.Name, From: t.StartedAt.Time, To: t.FinishedAt.Time,
					Took: t.FinishedAt.Sub(t.StartedAt.Time), Detail: t.Reason})
			case s.State.Waiting != nil:
				out = append(out, timelineStep{Name: name, From: from, Open: true, Detail: s.State.Waiting.Reason})
			}
		}
	}
	add(p.Spec.InitContainers, p.Status.InitContainerStatuses, true)
	add(p.Spec.Containers, p.Status.ContainerStatuses, false)
	return out
}

// now is when a container's present state began; far ahead for one that waits.
func now(s *v1.ContainerStatus) time.Time {
	const slack = time.Second // times of the API are cut to seconds
	switch {
	case s.State.Running != nil:
		return s.State.Running.StartedAt.Add(slack)
	case s.State.Terminated != nil:
		return s.State.Terminated.StartedAt.Add(slack)
	}
	return time.Unix(1<<40, 0)
}

// pulled is when an image was there for a container and how long that took.
func pulled(events []*v1.Event, image, container string) (at time.Time, took time.Duration, ok bool) {
	for _, e := range events {
		if e.Reason != "Pulled" || !strings.Contains(e.Message, `"`+image+`"`) ||
			e.InvolvedObject.FieldPath != "" && !strings.Contains(e.InvolvedObject.FieldPath, "{"+container+"}") {
			continue
		}
		if m := pullTook.FindStringSubmatch(e.Message); m != nil {
			took, _ = time.ParseDuration(m[1])
		}
		return eventTime(e), took, true
	}
	return at, 0, false
}

func eventTime(e *v1.Event) time.Time {
	at := e.LastTimestamp.Time
	for _, t := range []time.Time{e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time} {
		if at.IsZero() {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}

// storyEntry is an event or a decision.
type storyEntry struct {
	At time.Time
	// Source is "event" or "decision", By who tells.
	Source, By string
	What       string
	Level      severity
	Because    []journal.Fact
	Count      int32
}

// maxStory bounds the entries of a story; the newest stay.
const maxStory = 200

// story joins events and decisions, the newest first.
func story(events []*v1.Event, records []journal.Record) (out []storyEntry) {
	for _, e := range events {
		entry := storyEntry{At: eventTime(e), Source: "event", By: e.Source.Component, What: e.Reason + ": " + e.Message, Level: Idle,
			Count: max(e.Count, 1)}
		if entry.By == "" {
			entry.By = e.ReportingController
		}
		if e.Type == v1.EventTypeWarning {
			entry.Level = Warn
		}
		out = append(out, entry)
	}
	for _, r := range records {
		out = append(out, storyEntry{At: r.Time, Source: "decision", By: r.Part, What: r.Decision, Level: Idle, Because: r.Because,
			Count: 1})
	}
	slices.SortStableFunc(out, func(a, b storyEntry) int { return cmp.Compare(b.At.UnixNano(), a.At.UnixNano()) })
	return out[:min(len(out), maxStory)]
}
