package view

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// zonesPage is the page of zones: how fast nodes may be evicted, and who is next.
type zonesPage struct {
	// Known is false where no health controller runs in this server.
	Known bool
	Zones []Zone
	// Waiting are nodes that are not Ready or late, each with what follows.
	Waiting pageRows[nodeForecast]
}

// nodeForecast is a node and what the health controller will do with it.
type nodeForecast struct {
	Node, Zone string
	State      stateWord
	Heartbeat  time.Time
	Outlook    *journal.Record
	// Pods are those on it; eviction deletes those that do not tolerate its taint.
	Pods int
}

// ZonesView is the page of zones; ok is false for those who may not list nodes.
func ZonesView(s *Snapshot, r callerRights, q Query, _ time.Time) (v zonesPage, ok bool) {
	if !r.List("nodes", "") {
		return v, false
	}
	v = zonesPage{Known: s.Outlook != nil, Zones: slices.Clone(s.Zones)}
	slices.SortFunc(v.Zones, func(a, b Zone) int { return cmp.Compare(a.Name, b.Name) })
	p := paged[*v1.Node]{after: q.After}
	for _, n := range s.Nodes() {
		if nodeState(n).Level == Bad && (q.Zone == "" || q.Zone == zoneOf(n)) {
			p.add(zoneOf(n)+"/"+n.Name, n)
		}
	}
	v.Waiting = pageOf(&p, func(n *v1.Node) nodeForecast {
		f := nodeForecast{Node: n.Name, Zone: zoneOf(n), State: nodeState(n), Heartbeat: s.heartbeat(n), Pods: len(s.PodsOn(n.Name))}
		if s.Outlook != nil {
			if o, known := s.Outlook(n.Name); known {
				f.Outlook = &o
			}
		}
		return f
	})
	return v, true
}
