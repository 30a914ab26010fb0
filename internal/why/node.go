package why

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
)

func explainNode(w *World, _, name string) *Answer {
	n := one[v1.Node](w, "", name)
	if n == nil {
		return nil
	}
	a := nodeNotReady(w, n)
	if a == nil {
		a = nodeLimits(w, n)
	}
	if a == nil {
		a = deletionHeld(w, n, "Node")
	}
	if a == nil {
		a = found(Healthy, "Healthy", "nothing is wrong: the node is Ready and takes pods")
	}
	if l := one[coordinationv1.Lease](w, v1.NamespaceNodeLease, name); l != nil && l.Spec.RenewTime != nil {
		a.fact("lease", "renewed %s ago by %s", Age(w.Now, l.Spec.RenewTime.Time), holder(l)).from("Lease")
	}
	for _, t := range n.Spec.Taints {
		a.fact("taint", "%s", t.ToString())
	}
	return a.from("Node")
}

func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return "nobody"
	}
	return *l.Spec.HolderIdentity
}

func nodeCondition(n *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// clockSkew is how far a node's clock may be ahead before it is the cause: a
// lease has microseconds, the way to the API server takes milliseconds.
const clockSkew = 5 * time.Second

// nodeNotReady tells why a node is not Ready, or will soon not be.
func nodeNotReady(w *World, n *v1.Node) *Answer {
	lease := one[coordinationv1.Lease](w, v1.NamespaceNodeLease, n.Name)
	if lease != nil && lease.Spec.RenewTime != nil {
		if ahead := lease.Spec.RenewTime.Sub(w.Now); ahead > clockSkew {
			return found(Failing, "ClockSkew",
				"the clock of node %s is %s ahead of this host's (renewTime of its Lease lies in the future)",
				n.Name, ahead.Round(time.Second)).at("spec.renewTime of the Lease").held("Node", "", n.Name).
				remedy("synchronise the clocks (chrony, systemd-timesyncd)")
		}
	}
	ready := nodeCondition(n, v1.NodeReady)
	switch {
	case ready == nil:
		return found(Failing, "NodeNeverReady", "its agent has never posted a status: no Ready condition (%s old)",
			Age(w.Now, n.CreationTimestamp.Time)).remedy("start the agent on that host, and look at its log")
	case ready.Status == v1.ConditionUnknown:
		last := ready.LastHeartbeatTime.Time
		if lease != nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(last) {
			last = lease.Spec.RenewTime.Time
		}
		return found(Failing, "NodeSilent", "agent of node %s stopped renewing its Lease %s ago: agent down, host off or network cut",
			n.Name, Age(w.Now, last)).at("spec.renewTime of Lease kube-node-lease/"+n.Name).held("Lease", v1.NamespaceNodeLease, n.Name).
			fact("Ready", "%s: %s", ready.Reason, brief(ready.Message, 120)).
			remedy("on that host: berth status, its log, and whether it reaches the API server")
	case ready.Status == v1.ConditionFalse:
		return notReadyCause(n, ready.Message).fact("since", "%s ago", Age(w.Now, ready.LastTransitionTime.Time))
	}
	if c := nodeCondition(n, v1.NodeNetworkUnavailable); c != nil && c.Status == v1.ConditionTrue {
		return found(Failing, "NodeNetwork", "network of node %s is not available: %s: %s", n.Name, c.Reason, brief(c.Message, 160))
	}
	if lease != nil && lease.Spec.RenewTime != nil && w.Now.Sub(lease.Spec.RenewTime.Time) > stale {
		return found(Failing, "NodeSilent", "agent of node %s stopped renewing its Lease %s ago, though the node still says Ready",
			n.Name, Age(w.Now, lease.Spec.RenewTime.Time)).at("spec.renewTime of the Lease").held("Lease", v1.NamespaceNodeLease, n.Name)
	}
	return nil
}

// notReadyCause reads the agent's own message.
func notReadyCause(n *v1.Node, message string) *Answer {
	m := brief(message, 200)
	switch {
	case strings.Contains(message, "network"):
		return found(Failing, "NodeNetwork", "network plugin of node %s is not ready: %s", n.Name, m).
			remedy("check the CNI configuration on that host (/etc/cni/net.d) and its network plugin's pod")
	case strings.Contains(message, "runtime"):
		return found(Failing, "NodeRuntime", "container runtime of node %s is down: %s", n.Name, m).
			remedy("start the container runtime on that host and look at its log")
	case strings.Contains(message, "shut"):
		return found(Failing, "NodeShutdown", "node %s is shutting down: %s", n.Name, m)
	}
	return found(Failing, "NodeNotReady", "node %s is not Ready: %s", n.Name, m)
}

// pressures are the conditions that refuse pods, with what ran short.
var pressures = []struct {
	t    v1.NodeConditionType
	what string
}{{v1.NodeMemoryPressure, "memory"}, {v1.NodeDiskPressure, "disk"}, {v1.NodePIDPressure, "process ids"}}

// nodeLimits tells what keeps pods off a node that is Ready.
func nodeLimits(w *World, n *v1.Node) *Answer {
	for _, p := range pressures {
		if c := nodeCondition(n, p.t); c != nil && c.Status == v1.ConditionTrue {
			a := found(Failing, string(p.t), "node %s is short of %s (%s) since %s: it evicts pods and takes none", n.Name, p.what, p.t,
				Age(w.Now, c.LastTransitionTime.Time)).at("status.conditions["+string(p.t)+"]").fact("message", "%s", c.Message)
			for i := len(w.Records) - 1; i >= 0; i-- {
				if strings.Contains(w.Records[i].Decision, "evict") {
					a.fact("eviction", "%s%s", w.Records[i].Decision, causeOf(&w.Records[i]))
					break
				}
			}
			return a
		}
	}
	if n.Spec.Unschedulable {
		return found(Healthy, "Cordoned", "node %s is cordoned (spec.unschedulable): it takes no new pods",
			n.Name).at("spec.unschedulable").
			remedy("berth kubectl uncordon %s", n.Name)
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != v1.TaintEffectPreferNoSchedule {
			return found(Healthy, "Tainted", "taint %s keeps pods off node %s unless they tolerate it", t.ToString(),
				n.Name).at("spec.taints")
		}
	}
	return nil
}
