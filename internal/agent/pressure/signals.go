package pressure

import (
	"fmt"
	"slices"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/node"
)

// Signal names an amount of something that can run short.
type Signal string

// The signals. Container file system signals are not configurable: they copy
// the thresholds of the file system they lie on.
const (
	MemoryAvailable            Signal = "memory.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodeFSAvailable            Signal = "nodefs.available"
	NodeFSInodesFree           Signal = "nodefs.inodesFree"
	ImageFSAvailable           Signal = "imagefs.available"
	ImageFSInodesFree          Signal = "imagefs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

// signalRow says what a signal stands for. The order of the rows is the order
// in which shortages are dealt with: memory kills fastest.
type signalRow struct {
	signal    Signal
	resource  string // in messages
	condition v1.NodeConditionType
	// images and containers say what can be reclaimed for it without ending a
	// pod, on a node whose images share its file system, and on one where they
	// have their own.
	shared, dedicated reclaim
}

type reclaim struct{ containers, images bool }

var signalRows = []signalRow{
	{signal: MemoryAvailable, resource: "memory", condition: v1.NodeMemoryPressure},
	{signal: AllocatableMemoryAvailable, resource: "memory", condition: v1.NodeMemoryPressure},
	{signal: NodeFSAvailable, resource: "ephemeral-storage", condition: v1.NodeDiskPressure, shared: reclaim{true, true}},
	{signal: NodeFSInodesFree, resource: "inodes", condition: v1.NodeDiskPressure, shared: reclaim{true, true}},
	{signal: ImageFSAvailable, resource: "ephemeral-storage", condition: v1.NodeDiskPressure, shared: reclaim{true, true},
		dedicated: reclaim{true, true}},
	{signal: ImageFSInodesFree, resource: "inodes", condition: v1.NodeDiskPressure, shared: reclaim{true, true},
		dedicated: reclaim{true, true}},
	{signal: PIDAvailable, resource: "pids", condition: v1.NodePIDPressure},
}

func rowOf(signal Signal) signalRow {
	for _, row := range signalRows {
		if row.signal == signal {
			return row
		}
	}
	return signalRow{signal: signal}
}

func rank(signal Signal) int {
	return slices.IndexFunc(signalRows, func(row signalRow) bool { return row.signal == signal })
}

// threshold is a limit that a signal must not fall below.
type threshold struct {
	Signal Signal
	Limit  config.Threshold
	// Grace is how long the signal may stay below; zero for a hard threshold.
	Grace time.Duration
	Soft  bool
	// Reclaim is how far beyond the limit the signal must rise for the
	// shortage to be over.
	Reclaim config.Threshold
}

func (t threshold) key() thresholdKey { return thresholdKey{t.Signal, t.Soft} }

type thresholdKey struct {
	signal Signal
	soft   bool
}

// thresholds reads the thresholds of a configuration, in the order in which
// they are dealt with.
func thresholds(cfg *kubeletv1beta1.KubeletConfiguration) ([]threshold, error) {
	var list []threshold
	add := func(texts map[string]string, field string, soft bool) error {
		for name, text := range texts {
			signal := Signal(name)
			if rank(signal) < 0 {
				return fmt.Errorf("reading %s: %q is no signal", field, name)
			}
			limit, on, err := config.ParseThreshold(text)
			if err != nil {
				return fmt.Errorf("reading %s[%s]: %w", field, name, err)
			}
			if !on {
				continue
			}
			t := threshold{Signal: signal, Limit: limit, Soft: soft}
			if soft {
				if t.Grace, err = time.ParseDuration(cfg.EvictionSoftGracePeriod[name]); err != nil {
					return fmt.Errorf("reading evictionSoftGracePeriod[%s]: %w", name, err)
				}
			}
			if least, ok := cfg.EvictionMinimumReclaim[name]; ok {
				if t.Reclaim, _, err = config.ParseThreshold(least); err != nil {
					return fmt.Errorf("reading evictionMinimumReclaim[%s]: %w", name, err)
				}
			}
			list = append(list, t)
		}
		return nil
	}
	hard := cfg.EvictionHard
	if hard == nil {
		hard = config.DefaultEvictionHard()
	}
	if err := add(hard, "evictionHard", false); err != nil {
		return nil, err
	}
	if err := add(cfg.EvictionSoft, "evictionSoft", true); err != nil {
		return nil, err
	}
	// The cgroup of all pods is guarded like the host, where it has a limit.
	if slices.Contains(cfg.EnforceNodeAllocatable, "pods") {
		for _, t := range list {
			if t.Signal == MemoryAvailable && !t.Soft {
				t.Signal = AllocatableMemoryAvailable
				list = append(list, t)
			}
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := rank(list[i].Signal), rank(list[j].Signal)
		return a < b || a == b && !list[i].Soft && list[j].Soft
	})
	return list, nil
}

// reading is a signal's amount at a time.
type reading struct {
	Available, Capacity int64
}

// Readings are what is known of the signals now; a signal that cannot be read
// is not in it.
type Readings map[Signal]reading

// pressureOf spells conditions as the Node shows them.
func pressureOf(conditions map[v1.NodeConditionType]bool) node.Pressure {
	return node.Pressure{Memory: conditions[v1.NodeMemoryPressure], Disk: conditions[v1.NodeDiskPressure],
		PID: conditions[v1.NodePIDPressure]}
}
