package sim

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/strict"
)

// Scenario is a cluster and what befalls it.
type Scenario struct {
	// Name is the title of every output.
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Duration    duration `json:"duration"`
	Seed        uint64   `json:"seed"`
	Cluster     Cluster  `json:"cluster"`
	// Flags are set by the names that the controllers and agents have for them.
	Flags     map[string]any `json:"flags"`
	Workloads []workloadSpec `json:"workloads"`
	Events    []clusterEvent `json:"events"`

	live *snapshot
}

// Cluster says how many nodes there are and what they are like.
type Cluster struct {
	Zones []zoneSpec `json:"zones"`
	// CPU, Memory and MaxPods are each node's allocatable.
	CPU     string `json:"cpu"`
	Memory  string `json:"memory"`
	MaxPods int64  `json:"maxPods"`
	// APILatency is how long one api request takes, WatchLatency how long
	// after that the controllers and agents hear of it.
	APILatency   duration `json:"apiLatency"`
	WatchLatency duration `json:"watchLatency"`
	// PodStart and PodStop are how long an agent takes to bring a pod to Ready
	// and to end it. Boot is a host's time from power to a working agent.
	PodStart duration `json:"podStart"`
	PodStop  duration `json:"podStop"`
	Boot     duration `json:"boot"`
}

// zoneSpec is a group of nodes. Its nodes are named after it, zone-1 and so on,
// and dealt out evenly over its racks, zone-r1 and so on.
type zoneSpec struct {
	Name   string            `json:"name"`
	Region string            `json:"region"`
	Nodes  int               `json:"nodes"`
	Racks  int               `json:"racks"`
	Labels map[string]string `json:"labels"`
	Taints []v1.Taint        `json:"taints"`
}

// workloadSpec is a number of pods that someone keeps.
type workloadSpec struct {
	Name string `json:"name"`
	// Kind is Deployment, StatefulSet, DaemonSet, Job or Pods: pods that
	// no one replaces.
	Kind     string `json:"kind"`
	Replicas int    `json:"replicas"`
	// Count makes that many equal workloads, name-1 and so on.
	Count  int    `json:"count"`
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	// TolerationSeconds is for not-ready and unreachable nodes; without it the
	// defaults of the flags apply.
	TolerationSeconds *int64            `json:"tolerationSeconds"`
	Tolerations       []v1.Toleration   `json:"tolerations"`
	NodeSelector      map[string]string `json:"nodeSelector"`
	Priority          int32             `json:"priority"`
	// SpreadOver asks, softly, for even spread over the values of a node label.
	SpreadOver string `json:"spreadOver"`
	// MaxUnavailable is its disruption budget; 0 means none.
	MaxUnavailable int `json:"maxUnavailable"`
	// RunsFor and Completions are for Jobs: each pod succeeds after RunsFor;
	// Replicas run at a time.
	RunsFor     duration `json:"runsFor"`
	Completions int      `json:"completions"`
}

// clusterEvent is what happens At a time: exactly one of the other fields.
type clusterEvent struct {
	At duration `json:"at"`
	// Kill takes power away; nodes come back after For, or when healed.
	Kill *fault `json:"kill,omitempty"`
	// Cut cuts the network between nodes and the api; pods run on.
	Cut *fault `json:"cut,omitempty"`
	// Pause stops the agent only: no heartbeats, pods run on.
	Pause *fault `json:"pause,omitempty"`
	// slow makes nodes renew their lease only every so often.
	Slow *slow `json:"slow,omitempty"`
	// NotReady makes nodes report that they are not ready.
	NotReady *fault `json:"notReady,omitempty"`
	// flap cuts and heals again and again, each node at its own times.
	Flap *flap `json:"flap,omitempty"`
	// Heal ends every fault of the nodes it names; of all if it names none.
	Heal *selection `json:"heal,omitempty"`
	// Delete deletes Node objects whose hosts are gone for good.
	Delete *selection `json:"delete,omitempty"`
	// OutOfService taints dead nodes so that their pods are released.
	OutOfService *selection `json:"outOfService,omitempty"`
	// upgradePlan drains, reboots and frees nodes, Batch at a time.
	Upgrade *upgradePlan `json:"upgrade,omitempty"`
	// RestartControllers takes all controllers and the scheduler away For a
	// time.
	RestartControllers *timeSpan `json:"restartControllers,omitempty"`
	// api makes every request take longer, or fail.
	API *api `json:"api,omitempty"`
	// StallWatch lets the controllers hear nothing, while the api works.
	StallWatch *timeSpan `json:"stallWatch,omitempty"`
}

// selection names nodes: those that fit all of Zone, Rack, Names and Labels, and
// of these Count or Percent, taken evenly over the list.
type selection struct {
	Zone    string            `json:"zone"`
	Rack    string            `json:"rack"`
	Names   []string          `json:"names"`
	Labels  map[string]string `json:"labels"`
	Count   int               `json:"count"`
	Percent float64           `json:"percent"`
}

// fault befalls some nodes, For a time or until healed.
type fault struct {
	selection `json:",inline"`
	For       duration `json:"for"`
	// Stagger spreads the fault's beginning over nodes at random.
	Stagger duration `json:"stagger"`
}

// slow makes heartbeats come every Every.
type slow struct {
	fault `json:",inline"`
	Every duration `json:"every"`
}

// flap is Down and Up in turn, each a third shorter or longer at random.
type flap struct {
	fault `json:",inline"`
	Down  duration `json:"down"`
	Up    duration `json:"up"`
}

// upgradePlan takes nodes through a reboot, Batch at a time.
type upgradePlan struct {
	selection `json:",inline"`
	Batch     int `json:"batch"`
	// NoDrain reboots nodes under their pods.
	NoDrain bool `json:"noDrain"`
	// DrainTimeout ends the wait for pods that a budget holds back.
	DrainTimeout duration `json:"drainTimeout"`
}

// timeSpan is a length of time.
type timeSpan struct {
	For duration `json:"for"`
}

// api is a fault of the api server.
type api struct {
	Latency duration `json:"latency"`
	Down    bool     `json:"down"`
	For     duration `json:"for"`
}

// duration is a length of time as people write it.
type duration = strict.Duration
