package view

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// nodePage is the page of one node.
type nodePage struct {
	Row        nodeLine
	System     []journal.Fact
	Conditions []nodeCondition
	Answer     *why.Answer
	// Outlook is how the health controller sees the node and what follows.
	Outlook    *journal.Record
	Pods       pageRows[podLine]
	HasUsage   bool
	Hidden     int // pods that the caller may not list
	Thresholds []journal.Fact
	// Devices are what the node offers beyond CPU, memory, storage and pods.
	Devices []journal.Fact
	Images  []nodeImage
	// ImageCount and ImageBytes are of all images.
	ImageCount int
	ImageBytes int64
	Story      []storyEntry
}

// nodeCondition is a condition of a node.
type nodeCondition struct {
	Type, Status, Reason, Message string
	Level                         severity
	Since                         time.Time
}

// nodeImage is an image on a node.
type nodeImage struct {
	Name string
	Size int64
}

// maxImages bounds the images that are listed, the largest first.
const maxImages = 50

// NodeView is one node; ok is false where there is none that the caller may see.
func NodeView(s *Snapshot, r callerRights, name string, q Query, now time.Time) (v nodePage, ok bool) {
	n := s.Node(name)
	if n == nil || !r.List("nodes", "") {
		return v, false
	}
	ref := journal.Ref{Kind: "Node", Name: name}
	v = nodePage{Row: nodeRow(s, r, n), System: system(n), Answer: s.answer(ref), HasUsage: s.Usage != nil}
	for _, c := range n.Status.Conditions {
		level := Good
		if (c.Type == v1.NodeReady) != (c.Status == v1.ConditionTrue) {
			level = Bad
		}
		v.Conditions = append(v.Conditions, nodeCondition{string(c.Type), string(c.Status), c.Reason, c.Message, level,
			c.LastTransitionTime.Time})
	}
	slices.SortStableFunc(v.Conditions, func(a, b nodeCondition) int { return cmp.Compare(b2i(a.Level == Good), b2i(b.Level == Good)) })
	if s.Outlook != nil {
		if o, known := s.Outlook(name); known {
			v.Outlook = &o
		}
	}
	p := paged[*v1.Pod]{after: q.After}
	for _, pod := range s.PodsOn(name) {
		switch {
		case !may(r, "pods", pod.Namespace):
			v.Hidden++
		case contains(pod.Name, q.Text) && (!q.Wrong || podWrong(pod, now)):
			p.add(pod.Namespace+"/"+pod.Name, pod)
		}
	}
	v.Pods = pageOf(&p, func(o *v1.Pod) podLine { return podRow(s, r, o, now) })
	if s.Thresholds != nil {
		v.Thresholds = s.Thresholds(name)
	}
	v.Devices = devices(n)
	v.images(n)
	v.Story = story(s.events("Node", "", name), s.decisions(r, ref))
	return v, true
}

// images lists the node's images, the largest first.
func (v *nodePage) images(n *v1.Node) {
	for _, i := range n.Status.Images {
		v.ImageCount++
		v.ImageBytes += i.SizeBytes
		name := "(no name)"
		if len(i.Names) > 0 {
			name = i.Names[len(i.Names)-1] // a tag stands after the digests
		}
		v.Images = append(v.Images, nodeImage{name, i.SizeBytes})
	}
	slices.SortFunc(v.Images, func(a, b nodeImage) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name)) })
	v.Images = v.Images[:min(len(v.Images), maxImages)]
}

// system is what the node says of its host.
func system(n *v1.Node) (out []journal.Fact) {
	i := n.Status.NodeInfo
	add := func(name, value string) {
		if value != "" {
			out = append(out, journal.Fact{Name: name, Value: value})
		}
	}
	for _, a := range n.Status.Addresses {
		add(string(a.Type), a.Address)
	}
	add("agent", i.KubeletVersion)
	add("runtime", i.ContainerRuntimeVersion)
	add("system", i.OSImage)
	add("kernel", i.KernelVersion)
	add("architecture", i.Architecture)
	add("pod CIDR", n.Spec.PodCIDR)
	add("zone", zoneOf(n))
	return out
}

// devices are extended resources: their name has a domain.
func devices(n *v1.Node) (out []journal.Fact) {
	for name, q := range n.Status.Capacity {
		switch name {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage, v1.ResourceStorage:
			continue
		}
		free := n.Status.Allocatable[name]
		if !q.IsZero() {
			out = append(out, journal.Fact{Name: string(name), Value: free.String() + " of " + q.String() + " allocatable"})
		}
	}
	slices.SortFunc(out, func(a, b journal.Fact) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
