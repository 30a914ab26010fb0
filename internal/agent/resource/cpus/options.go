package cpus

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// options of the static policy, named as in cpuManagerPolicyOptions.
type options struct {
	// FullCores gives whole physical cores only (full-pcpus-only).
	FullCores bool
	// SpreadNUMA shares out evenly where one NUMA node does not do
	// (distribute-cpus-across-numa).
	SpreadNUMA bool
	// AlignSocket counts a whole socket as aligned (align-by-socket).
	AlignSocket bool
	// SpreadCores takes a thread of many cores before two of one
	// (distribute-cpus-across-cores).
	SpreadCores bool
	// StrictReserved keeps everybody off the reserved CPUs
	// (strict-cpu-reservation).
	StrictReserved bool
	// AlignCache prefers CPUs behind one last-level cache
	// (prefer-align-cpus-by-uncorecache).
	AlignCache bool
}

// ParseOptions reads cpuManagerPolicyOptions and refuses what does not go
// together.
func ParseOptions(in map[string]string) (options, error) {
	var o options
	switches := map[string]*bool{
		"full-pcpus-only": &o.FullCores, "distribute-cpus-across-numa": &o.SpreadNUMA, "align-by-socket": &o.AlignSocket,
		"distribute-cpus-across-cores": &o.SpreadCores, "strict-cpu-reservation": &o.StrictReserved,
		"prefer-align-cpus-by-uncorecache": &o.AlignCache,
	}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		on, known := switches[name]
		if !known {
			return o, fmt.Errorf("cpuManagerPolicyOptions[%s] is not known: allowed are %s", name,
				strings.Join(slices.Sorted(maps.Keys(switches)), ", "))
		}
		var err error
		if *on, err = strconv.ParseBool(in[name]); err != nil {
			return o, fmt.Errorf("cpuManagerPolicyOptions[%s] is %q: must be true or false", name, in[name])
		}
	}
	return o, o.check()
}

func (o options) check() error {
	switch {
	case o.FullCores && o.SpreadCores:
		return errors.New("static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time")
	case o.AlignCache && (o.SpreadNUMA || o.SpreadCores):
		return errors.New("static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa or " +
			"distribute-cpus-across-cores can not be used at the same time")
	case o.SpreadNUMA && o.SpreadCores:
		return errors.New("static policy options distribute-cpus-across-numa and distribute-cpus-across-cores can not be used at the " +
			"same time")
	}
	return nil
}

// CheckTopology refuses options that a topology policy makes pointless.
func (o options) CheckTopology(p topology.Policy) error {
	if o.AlignSocket && p == topology.SingleNUMA {
		return fmt.Errorf("topology manager policy %s is incompatible with CPUManager static policy option align-by-socket", p)
	}
	return nil
}
