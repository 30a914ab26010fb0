package health

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Status is what a node's Ready condition says.
type Status uint8

// The four things Ready can be; Missing is a node that never posted it.
const (
	Missing Status = iota
	True
	False
	Unknown
)

func (s Status) String() string { return [...]string{"Missing", "True", "False", "Unknown"}[s] }

// View is the part of a Node the Monitor decides by.
type View struct {
	UID     string
	Zone    string
	Created time.Time
	// Ready and Heartbeat are the Ready condition's status and
	// lastHeartbeatTime. The latter is a remote clock: only its change counts.
	Ready     Status
	Heartbeat time.Time
	// NotReady and Unreachable say which of our two NoExecute taints are there.
	NotReady, Unreachable bool
	// Excluded nodes do not count in their zone's numbers.
	Excluded bool
}

// excludeDisruption is the label that keeps a node out of its zone's numbers.
const excludeDisruption = "node.kubernetes.io/exclude-disruption"

// ViewOf reads a Node.
func ViewOf(n *v1.Node) View {
	_, excluded := n.Labels[excludeDisruption]
	v := View{UID: string(n.UID), Zone: zoneOf(n.Labels), Created: n.CreationTimestamp.Time, Excluded: excluded}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type != v1.NodeReady {
			continue
		}
		v.Heartbeat = c.LastHeartbeatTime.Time
		switch c.Status {
		case v1.ConditionTrue:
			v.Ready = True
		case v1.ConditionFalse:
			v.Ready = False
		default:
			v.Ready = Unknown
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Effect == v1.TaintEffectNoExecute {
			v.NotReady = v.NotReady || t.Key == v1.TaintNodeNotReady
			v.Unreachable = v.Unreachable || t.Key == v1.TaintNodeUnreachable
		}
	}
	return v
}

// zoneOf is region and zone as one name; the old labels win, as they do
// upstream, and a node without either is in the zone "".
func zoneOf(labels map[string]string) string {
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := labels[k]; v != "" {
				return v
			}
		}
		return ""
	}
	region := first(v1.LabelFailureDomainBetaRegion, v1.LabelTopologyRegion)
	zone := first(v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone)
	if region == "" && zone == "" {
		return ""
	}
	return region + ":\x00:" + zone
}

// taint is the NoExecute taint the node has, "" for none. Of two, the one that
// the Ready condition asks for counts.
func (v *View) taint() string {
	switch {
	case v.Unreachable && (v.Ready != False || !v.NotReady):
		return v1.TaintNodeUnreachable
	case v.NotReady:
		return v1.TaintNodeNotReady
	}
	return ""
}
