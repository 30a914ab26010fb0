package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// maxWrong bounds the rows of what is wrong, each of which is explained.
const maxWrong = 20

// problem is one row of what is wrong now. Pods of one owner are one row.
type problem struct {
	Object journal.Ref
	State  stateWord
	Code   string
	Cause  string
	Remedy string
	Since  time.Time
	// Count is how many pods the row stands for; 0 for other objects.
	Count int
}

// trouble is a row before it is explained: the owner that is shown and the
// object that is asked about.
type trouble struct {
	shown, asked journal.Ref
	rank         int // the lower, the more it concerns
	since        time.Time
	count        int
	state        stateWord
}

// wrong is what is not well now, worst first, and how much of it there is.
func wrong(s *Snapshot, r callerRights, now time.Time) (out []problem, total int) {
	found := slices.Concat(wrongParts(s, r, now), wrongNodes(s, r), wrongPods(s, r, now))
	found = append(found, wrongWorkloads(s, r, found)...)
	if r.List("namespaces", "") {
		for _, n := range s.Namespaces() {
			if n.DeletionTimestamp != nil && now.Sub(n.DeletionTimestamp.Time) > settle {
				ref := journal.Ref{Kind: "Namespace", Name: n.Name}
				found = append(found, trouble{shown: ref, asked: ref, rank: 4, since: n.DeletionTimestamp.Time,
					state: stateWord{"Terminating", Bad}})
			}
		}
	}
	slices.SortFunc(found, func(a, b trouble) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b2i(a.state.Level == Warn), b2i(b.state.Level == Warn)),
			cmp.Compare(b.count, a.count), a.since.Compare(b.since),
			cmp.Compare(a.shown.Namespace, b.shown.Namespace), cmp.Compare(a.shown.Name, b.shown.Name))
	})
	for _, t := range found[:min(len(found), maxWrong)] {
		out = append(out, explained(s, r, t, now))
	}
	return out, len(found)
}

// explained asks why for a row.
func explained(s *Snapshot, r callerRights, t trouble, now time.Time) problem {
	p := problem{Object: t.shown, State: t.state, Since: t.since, Count: t.count}
	if t.asked.Kind == partKind {
		p.Cause = t.state.Word
		p.State.Word = "Failing"
		return p
	}
	a := explainRef(s, r, t.asked, now)
	p.Code, p.Cause = a.Code, a.Cause
	if len(a.Remedies) > 0 {
		p.Remedy = a.Remedies[0]
	}
	if a.State == why.Waiting && p.State.Level == Bad {
		p.State.Level = Warn
	}
	return p
}

// partKind is the kind of a row about a part of this server; it is no API kind.
const partKind = "Part"

// certificateNotice is how long before its end a certificate that was not
// renewed is reported.
const certificateNotice = 48 * time.Hour

// wrongParts are parts of this server that fail, and certificates that end soon.
func wrongParts(s *Snapshot, r callerRights, now time.Time) (out []trouble) {
	if !maySeeParts(r) {
		return nil
	}
	for _, p := range s.Parts {
		if p.Fault != "" && (p.Since.IsZero() || now.Sub(p.Since) < 10*time.Minute) {
			ref := journal.Ref{Kind: partKind, Name: p.Name}
			out = append(out, trouble{shown: ref, asked: ref, since: p.Since, state: stateWord{p.Fault, Bad}})
		}
	}
	for _, c := range s.Certificates {
		if left := c.End.Sub(now); left < certificateNotice {
			ref := journal.Ref{Kind: partKind, Name: "certificate " + c.Name}
			word := fmt.Sprintf("it ends in %s and was not renewed", left.Round(time.Minute))
			if left < 0 {
				word = "it has expired"
			}
			out = append(out, trouble{shown: ref, asked: ref, since: c.Renewal, state: stateWord{word, Bad}})
		}
	}
	return out
}

func wrongNodes(s *Snapshot, r callerRights) (out []trouble) {
	if !r.List("nodes", "") {
		return nil
	}
	for _, n := range s.Nodes() {
		if !nodeWrong(n) {
			continue
		}
		ref := journal.Ref{Kind: "Node", Name: n.Name}
		t := trouble{shown: ref, asked: ref, rank: 1, since: n.CreationTimestamp.Time, state: nodeState(n)}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady && t.state.Level == Bad || string(c.Type) == t.state.Word {
				t.since = c.LastTransitionTime.Time
			}
		}
		out = append(out, t)
	}
	return out
}

// wrongPods are pods that are not well, those of one owner as one.
func wrongPods(s *Snapshot, r callerRights, now time.Time) []trouble {
	var order []journal.Ref
	groups := map[journal.Ref]*trouble{}
	s.podsOf(r, "", func(p *v1.Pod) {
		if !podWrong(p, now) {
			return
		}
		ref := journal.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}
		owner := s.ownerOf(r, p)
		g := groups[owner]
		since := wrongSince(p)
		if g == nil {
			g = &trouble{shown: owner, asked: ref, rank: 2, since: since, state: podState(p, now)}
			groups[owner] = g
			order = append(order, owner)
		}
		g.count++
		if since.Before(g.since) {
			g.since = since
		}
		if p.Name < g.asked.Name {
			g.asked, g.state = ref, podState(p, now)
		}
	})
	out := make([]trouble, 0, len(order))
	for _, o := range order {
		out = append(out, *groups[o])
	}
	return out
}

// wrongSince is since when a pod is not well.
func wrongSince(p *v1.Pod) time.Time {
	if p.DeletionTimestamp != nil {
		return p.DeletionTimestamp.Time
	}
	for _, t := range []v1.PodConditionType{v1.PodReady, v1.PodScheduled} {
		if c := podCondition(p, t); c != nil && c.Status != v1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return p.CreationTimestamp.Time
}

// ownerOf is the topmost owner of a pod that the caller may list, else the pod.
func (s *Snapshot) ownerOf(r callerRights, p *v1.Pod) journal.Ref {
	ref := journal.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}
	for o := metav1.Object(p); ; {
		c := metav1.GetControllerOf(o)
		if c == nil {
			return ref
		}
		resource := resources[c.Kind]
		if resource == "" || c.Kind == "Node" || !may(r, resource, p.Namespace) {
			return ref
		}
		if c.Kind != "ReplicaSet" { // has no page of its own
			ref = journal.Ref{Kind: c.Kind, Namespace: p.Namespace, Name: c.Name}
		}
		if o = s.Workload(c.Kind, p.Namespace, c.Name); o == nil {
			return ref
		}
	}
}

// wrongWorkloads are workloads that want more than they have though none of
// their pods tells why.
func wrongWorkloads(s *Snapshot, r callerRights, told []trouble) (out []trouble) {
	seen := map[journal.Ref]bool{}
	for _, t := range told {
		seen[t.shown] = true
	}
	for _, kind := range Kinds {
		s.within(r, resources[kind], "", func(ns string) {
			for _, o := range s.Workloads(kind, ns) {
				ref := journal.Ref{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
				if word, since := stuck(o); word != "" && !seen[ref] {
					out = append(out, trouble{shown: ref, asked: ref, rank: 3, since: since, state: stateWord{word, Bad}})
				}
			}
		})
	}
	return out
}

// stuck says that a workload has come to a halt by its own status.
func stuck(o metav1.Object) (word string, since time.Time) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == v1.ConditionTrue ||
				c.Type == appsv1.DeploymentProgressing && c.Status == v1.ConditionFalse {
				return c.Reason, c.LastTransitionTime.Time
			}
		}
	case *appsv1.StatefulSet:
		if o.Spec.Replicas != nil && *o.Spec.Replicas > 0 && o.Status.Replicas == 0 && o.Status.ObservedGeneration > 0 {
			return "No pods", o.CreationTimestamp.Time
		}
	case *appsv1.DaemonSet:
		if o.Status.DesiredNumberScheduled > 0 && o.Status.CurrentNumberScheduled == 0 {
			return "No pods", o.CreationTimestamp.Time
		}
	case *batchv1.Job:
		for _, c := range o.Status.Conditions {
			if c.Type == batchv1.JobFailed && c.Status == v1.ConditionTrue && metav1.GetControllerOf(o) == nil {
				return "Failed", c.LastTransitionTime.Time
			}
		}
	}
	return "", time.Time{}
}

// maySeeParts: the parts of this server and its certificates concern those who
// may read its metrics.
func maySeeParts(r callerRights) bool { return r.Path("/metrics") }
