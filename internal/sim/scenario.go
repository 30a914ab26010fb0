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
	Duration    Duration `json:"duration"`
	Seed        uint64   `json:"seed"`
	Cluster     Cluster  `json:"cluster"`
	// Flags are set by the names that the controllers and agents have for them.
	Flags     map[string]any `json:"flags"`
	Workloads []Workload     `json:"workloads"`
	Events    []Event        `json:"events"`

	live *snapshot
}

// Cluster says how many nodes there are and what they are like.
type Cluster struct {
	Zones []Zone `json:"zones"`
	// CPU, Memory and MaxPods are each node's allocatable.
	CPU     string `json:"cpu"`
	Memory  string `json:"memory"`
	MaxPods int64  `json:"maxPods"`
	// APILatency is how long one API request takes, WatchLatency how long
	// after that the controllers and agents hear of it.
	APILatency   Duration `json:"apiLatency"`
	WatchLatency Duration `json:"watchLatency"`
	// PodStart and PodStop are how long an agent takes to bring a pod to Ready
	// and to end it. Boot is a host's time from power to a working agent.
	PodStart Duration `json:"podStart"`
	PodStop  Duration `json:"podStop"`
	Boot     Duration `json:"boot"`
}

// Zone is a group of nodes. Its nodes are named after it, zone-1 and so on,
// and dealt out evenly over its racks, zone-r1 and so on.
type Zone struct {
	Name   string            `json:"name"`
	Region string            `json:"region"`
	Nodes  int               `json:"nodes"`
	Racks  int               `json:"racks"`
	Labels map[string]string `json:"labels"`
	Taints []v1.Taint        `json:"taints"`
}

// Workload is a number of pods that someone keeps.
type Workload struct {
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
	RunsFor     Duration `json:"runsFor"`
	Completions int      `json:"completions"`
}

// Event is what happens At a time: exactly one of the other fields.
type Event struct {
	At Duration `json:"at"`
	// Kill takes power away; nodes come back after For, or when healed.
	Kill *Fault `json:"kill,omitempty"`
	// Cut cuts the network between nodes and the API; pods run on.
	Cut *Fault `json:"cut,omitempty"`
	// Pause stops the agent only: no heartbeats, pods run on.
	Pause *Fault `json:"pause,omitempty"`
	// Slow makes nodes renew their lease only every so often.
	Slow *Slow `json:"slow,omitempty"`
	// NotReady makes nodes report that they are not ready.
	NotReady *Fault `json:"notReady,omitempty"`
	// Flap cuts and heals again and again, each node at its own times.
	Flap *Flap `json:"flap,omitempty"`
	// Heal ends every fault of the nodes it names; of all if it names none.
	Heal *Select `json:"heal,omitempty"`
	// Delete deletes Node objects whose hosts are gone for good.
	Delete *Select `json:"delete,omitempty"`
	// OutOfService taints dead nodes so that their pods are released.
	OutOfService *Select `json:"outOfService,omitempty"`
	// Upgrade drains, reboots and frees nodes, Batch at a time.
	Upgrade *Upgrade `json:"upgrade,omitempty"`
	// RestartControllers takes all controllers and the scheduler away For a
	// time.
	RestartControllers *Span `json:"restartControllers,omitempty"`
	// API makes every request take longer, or fail.
	API *API `json:"api,omitempty"`
	// StallWatch lets the controllers hear nothing, while the API works.
	StallWatch *Span `json:"stallWatch,omitempty"`
}

// Select names nodes: those that fit all of Zone, Rack, Names and Labels, and
// of these Count or Percent, taken evenly over the list.
type Select struct {
	Zone    string            `json:"zone"`
	Rack    string            `json:"rack"`
	Names   []string          `json:"names"`
	Labels  map[string]string `json:"labels"`
	Count   int               `json:"count"`
	Percent float64           `json:"percent"`
}

// Fault befalls some nodes, For a time or until healed.
type Fault struct {
	Select `json:",inline"`
	For    Duration `json:"for"`
	// Stagger spreads the fault's beginning over nodes at random.
	Stagger Duration `json:"stagger"`
}

// Slow makes heartbeats come every Every.
type Slow struct {
	Fault `json:",inline"`
	Every Duration `json:"every"`
}

// Flap is Down and Up in turn, each a third shorter or longer at random.
type Flap struct {
	Fault `json:",inline"`
	Down  Duration `json:"down"`
	Up    Duration `json:"up"`
}

// Upgrade takes nodes through a reboot, Batch at a time.
type Upgrade struct {
	Select `json:",inline"`
	Batch  int `json:"batch"`
	// NoDrain reboots nodes under their pods.
	NoDrain bool `json:"noDrain"`
	// DrainTimeout ends the wait for pods that a budget holds back.
	DrainTimeout Duration `json:"drainTimeout"`
}

// Span is a length of time.
type Span struct {
	For Duration `json:"for"`
}

// API is a fault of the API server.
type API struct {
	Latency Duration `json:"latency"`
	Down    bool     `json:"down"`
	For     Duration `json:"for"`
}

// Duration is a length of time as people write it.
type Duration = strict.Duration
