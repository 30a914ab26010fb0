package view

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// clusterPage is the first page.
type clusterPage struct {
	Query Query
	// Wrong are the first of WrongTotal rows.
	Wrong      []problem
	WrongTotal int
	// Sees says whether the caller may list anything of what is checked.
	Sees  bool
	Nodes *nodeRows // nil for those who may not list nodes
	Pods  podCounts
	// Parts and Certificate are nil for those who may not see them.
	Parts       []Part
	Certificate *Certificate
}

// podCounts are the pods that the caller may list, by their state.
type podCounts struct{ All, Running, Pending, Ended, Wrong int }

// nodeRows are nodes by zone.
type nodeRows struct {
	Total, Ready int
	Zones        []zoneCount
	Page         pageRows[nodeLine]
	// HasUsage says that usage is known.
	HasUsage bool
}

// zoneCount is a zone's nodes.
type zoneCount struct {
	Name       string
	All, Ready int
}

// nodeLine is a line of the list of nodes.
type nodeLine struct {
	Name, Zone string
	State      stateWord
	// Conditions are those that are not as they should be.
	Conditions []string
	Taints     []string
	Heartbeat  time.Time
	CPU, Mem   gauge
	Pods       gauge
	Version    string
	Created    time.Time
}

// gauge is what is used and asked for of what there is. Used is -1 when it is
// not known, Asked where it is not counted.
type gauge struct{ Used, Asked, Of int64 }

// Share is the used part of 100, or the asked one where use is not known.
func (g gauge) Share() int {
	n := g.Used
	if n < 0 {
		n = g.Asked
	}
	if g.Of <= 0 || n <= 0 {
		return 0
	}
	return int(min(100, n*100/g.Of))
}

// ClusterView is the first page: what is wrong, then the nodes.
func ClusterView(s *Snapshot, r callerRights, q Query, now time.Time) clusterPage {
	c := clusterPage{Query: q}
	c.Wrong, c.WrongTotal = wrong(s, r, now)
	counted := false
	complete := s.within(r, "pods", "", func(ns string) {
		counted = true
		for _, p := range s.Pods(ns) {
			c.Pods.add(p, now)
		}
	})
	if r.List("nodes", "") {
		l := nodeList(s, r, q)
		c.Nodes = &l
	}
	c.Sees = counted && complete || c.Nodes != nil
	if maySeeParts(r) {
		c.Parts = slices.Clone(s.Parts)
		slices.SortStableFunc(c.Parts, func(a, b Part) int { return cmp.Compare(b2i(a.Fault == ""), b2i(b.Fault == "")) })
		if len(s.Certificates) > 0 {
			next := slices.MinFunc(s.Certificates, func(a, b Certificate) int { return a.End.Compare(b.End) })
			c.Certificate = &next
		}
	}
	return c
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *podCounts) add(p *v1.Pod, now time.Time) {
	c.All++
	switch p.Status.Phase {
	case v1.PodRunning:
		c.Running++
	case v1.PodSucceeded, v1.PodFailed:
		c.Ended++
	default:
		c.Pending++
	}
	if podWrong(p, now) {
		c.Wrong++
	}
}

// nodeList is a page of the nodes that match, those that are not well first.
func nodeList(s *Snapshot, r callerRights, q Query) nodeRows {
	l := nodeRows{HasUsage: s.Usage != nil && r.List("nodes.metrics.k8s.io", "")}
	zones := map[string]*zoneCount{}
	p := paged[*v1.Node]{after: q.After}
	for _, n := range s.Nodes() {
		state, zone := nodeState(n), zoneOf(n)
		z := zones[zone]
		if z == nil {
			z = &zoneCount{Name: zone}
			zones[zone] = z
		}
		l.Total++
		z.All++
		if state.Level == Good || state.Level == Idle || state.Level == Warn {
			l.Ready++
			z.Ready++
		}
		bad := state.Level == Bad || state.Level == Warn
		if !contains(n.Name, q.Text) || q.Zone != "" && q.Zone != zone || q.Wrong && !bad {
			continue
		}
		key := "1/"
		if bad {
			key = "0/"
		}
		p.add(key+zone+"/"+n.Name, n)
	}
	l.Page = pageOf(&p, func(n *v1.Node) nodeLine { return nodeRow(s, r, n) })
	for _, z := range zones {
		l.Zones = append(l.Zones, *z)
	}
	slices.SortFunc(l.Zones, func(a, b zoneCount) int { return cmp.Compare(a.Name, b.Name) })
	return l
}

func nodeRow(s *Snapshot, r callerRights, n *v1.Node) nodeLine {
	row := nodeLine{Name: n.Name, Zone: zoneOf(n), State: nodeState(n), Heartbeat: s.heartbeat(n),
		Version: n.Status.NodeInfo.KubeletVersion, Created: n.CreationTimestamp.Time}
	for _, c := range n.Status.Conditions {
		if (c.Type == v1.NodeReady) != (c.Status == v1.ConditionTrue) {
			row.Conditions = append(row.Conditions, string(c.Type)+"="+string(c.Status))
		}
	}
	for _, t := range n.Spec.Taints {
		row.Taints = append(row.Taints, t.ToString())
	}
	row.CPU, row.Mem, row.Pods = s.gauges(r, n)
	return row
}

// heartbeat is when a node was last heard: on this server's clock, else as its
// status says.
func (s *Snapshot) heartbeat(n *v1.Node) time.Time {
	if s.Heartbeat != nil {
		if at, ok := s.Heartbeat(n.Name); ok {
			return at
		}
	}
	if c := condition(n, v1.NodeReady); c != nil {
		return c.LastHeartbeatTime.Time
	}
	return time.Time{}
}

// gauges are CPU, memory and pods of a node. What is asked for is the sum over
// all its pods, also those the caller may not list: it is the node's.
func (s *Snapshot) gauges(r callerRights, n *v1.Node) (cpu, mem, pods gauge) {
	alloc := n.Status.Allocatable
	cpu = gauge{Used: -1, Of: alloc.Cpu().MilliValue()}
	mem = gauge{Used: -1, Of: alloc.Memory().Value()}
	pods = gauge{Asked: -1, Of: alloc.Pods().Value()}
	for _, p := range s.PodsOn(n.Name) {
		if p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
			continue
		}
		pods.Used++
		asks := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		cpu.Asked += asks.Cpu().MilliValue()
		mem.Asked += asks.Memory().Value()
	}
	if u, ok := s.Usage[n.Name]; ok && r.List("nodes.metrics.k8s.io", "") {
		cpu.Used, mem.Used = u.CPU, u.Memory
	}
	return cpu, mem, pods
}

// taintsText is for titles.
func (r nodeLine) TaintsText() string { return strings.Join(r.Taints, ", ") }
