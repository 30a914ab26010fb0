package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// podLine is a line of a list of pods.
type podLine struct {
	Namespace, Name, Node string
	State                 stateWord
	Ready, Of             int
	Restarts              int32
	Created               time.Time
	// CPU and Memory are -1 when they are not known.
	CPU, Memory int64
}

// podsPage is the page of pods.
type podsPage struct {
	Query      Query
	Namespaces []string
	Page       pageRows[podLine]
	// Complete is false when there are too many namespaces to ask about.
	Complete bool
}

// PodsView lists the pods that match, by namespace and name.
func PodsView(s *Snapshot, r callerRights, q Query, now time.Time) podsPage {
	l := podsPage{Query: q, Namespaces: namespaceNames(s, r)}
	p := paged[*v1.Pod]{after: q.After}
	l.Complete = s.within(r, "pods", q.Namespace, func(ns string) {
		for _, o := range s.Pods(ns) {
			if contains(o.Name, q.Text) && (q.Node == "" || o.Spec.NodeName == q.Node) && (!q.Wrong || podWrong(o, now)) {
				p.add(o.Namespace+"/"+o.Name, o)
			}
		}
	})
	l.Page = pageOf(&p, func(o *v1.Pod) podLine { return podRow(s, r, o, now) })
	return l
}

func podRow(s *Snapshot, r callerRights, p *v1.Pod, now time.Time) podLine {
	row := podLine{Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, State: podState(p, now), Restarts: restarts(p),
		Created: p.CreationTimestamp.Time, CPU: -1, Memory: -1}
	row.Ready, row.Of = readyContainers(p)
	if u, ok := s.PodUsage[p.Namespace+"/"+p.Name]; ok && may(r, "pods.metrics.k8s.io", p.Namespace) {
		row.CPU, row.Memory = u.CPU, u.Memory
	}
	return row
}

// podPage is the page of one pod.
type podPage struct {
	Row        podLine
	Owner      journal.Ref
	IP         string
	QoS        string
	Answer     *why.Answer
	Steps      []timelineStep
	Length     time.Duration // of the timeline
	Story      []storyEntry
	Refused    []refusalRow // for a pod that no node takes
	Containers []podContainer
	// Decided says whether decisions are shown; it takes rights of their own.
	Decided bool
}

// podContainer is one of a pod's.
type podContainer struct {
	Name, Image string
	Init        bool
	State       stateWord
	Detail      string
	Restarts    int32
	CPU, Memory string // what it asks for and may use
}

// PodView is a pod's life; ok is false where there is none that the caller may see.
func PodView(s *Snapshot, r callerRights, namespace, name string, now time.Time) (v podPage, ok bool) {
	if !may(r, "pods", namespace) {
		return v, false
	}
	p := s.Pod(namespace, name)
	if p == nil {
		return v, false
	}
	ref := journal.Ref{Kind: "Pod", Namespace: namespace, Name: name}
	v = podPage{Row: podRow(s, r, p, now), Owner: s.ownerOf(r, p), IP: p.Status.PodIP, QoS: string(p.Status.QOSClass),
		Answer:  s.answer(ref),
		Decided: r.List("nodes", "") && r.List("pods", "")}
	events := s.events("Pod", namespace, name)
	v.Steps, v.Length = timeline(p, events, now)
	v.Story = story(events, s.decisions(r, ref))
	if p.Spec.NodeName == "" && p.Status.Phase == v1.PodPending && len(p.Spec.SchedulingGates) == 0 {
		v.Refused = refusals(s, r, p)
	}
	for i := range p.Spec.InitContainers {
		v.Containers = append(v.Containers, container(p, &p.Spec.InitContainers[i], p.Status.InitContainerStatuses, true))
	}
	for i := range p.Spec.Containers {
		v.Containers = append(v.Containers, container(p, &p.Spec.Containers[i], p.Status.ContainerStatuses, false))
	}
	return v, true
}

func container(p *v1.Pod, c *v1.Container, statuses []v1.ContainerStatus, init bool) podContainer {
	out := podContainer{Name: c.Name, Image: c.Image, Init: init, State: stateWord{"Waiting", Idle}, CPU: asked(c, v1.ResourceCPU),
		Memory: asked(c, v1.ResourceMemory)}
	i := slices.IndexFunc(statuses, func(s v1.ContainerStatus) bool { return s.Name == c.Name })
	if i < 0 {
		return out
	}
	s := &statuses[i]
	out.Restarts = s.RestartCount
	switch {
	case s.State.Running != nil:
		out.State = stateWord{"Running", Good}
		if !s.Ready && !init {
			out.State = stateWord{"Not Ready", Warn}
		}
	case s.State.Terminated != nil:
		t := s.State.Terminated
		out.State = stateWord{t.Reason, Idle}
		out.Detail = fmt.Sprintf("exit code %d", t.ExitCode)
		if t.ExitCode != 0 {
			out.State.Level = Bad
		}
	case s.State.Waiting != nil && s.State.Waiting.Reason != "":
		out.State = stateWord{s.State.Waiting.Reason, Bad}
		if r := s.State.Waiting.Reason; r == "ContainerCreating" || r == "PodInitializing" {
			out.State.Level = Idle
		}
	}
	if l := s.LastTerminationState.Terminated; l != nil && out.Detail == "" {
		out.Detail = fmt.Sprintf("before: %s, exit code %d", l.Reason, l.ExitCode)
	}
	return out
}

func asked(c *v1.Container, name v1.ResourceName) string {
	text := func(l v1.ResourceList) string {
		if q, ok := l[name]; ok {
			return q.String()
		}
		return "–"
	}
	return text(c.Resources.Requests) + " / " + text(c.Resources.Limits)
}

// refusalRow is why some nodes do not take a pod.
type refusalRow struct {
	Reason, Field string
	Count         int
	// Nodes are the first of them.
	Nodes []string
}

// shownNodes bounds the nodes that a reason names.
const shownNodes = 8

// refusals judges each node for a pod, for the reasons that the fields of the two
// can tell, the commonest first.
func refusals(s *Snapshot, r callerRights, p *v1.Pod) (out []refusalRow) {
	if !r.List("nodes", "") {
		return nil
	}
	at := map[string]int{}
	nodes := s.Nodes()
	slices.SortFunc(nodes, func(a, b *v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		reason, field := why.Refusal(p, n, s.PodsOn(n.Name))
		if reason == "" {
			reason = "fits by its own fields; the scheduler's message says what else counts"
		}
		i, known := at[reason]
		if !known {
			i = len(out)
			at[reason] = i
			out = append(out, refusalRow{Reason: reason, Field: field})
		}
		if out[i].Count++; len(out[i].Nodes) < shownNodes {
			out[i].Nodes = append(out[i].Nodes, n.Name)
		}
	}
	slices.SortStableFunc(out, func(a, b refusalRow) int { return b.Count - a.Count })
	return out[:min(len(out), PageSize)]
}
