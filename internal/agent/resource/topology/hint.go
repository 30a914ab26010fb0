package topology

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Hint is one way to satisfy a request: from these nodes. Mask 0 means any.
type Hint struct {
	Mask      Mask
	Preferred bool
}

// Wishes are the hints of one provider per resource. A nil map, or a resource
// with a nil list, has no preference; an empty list cannot be satisfied.
type Wishes map[string][]Hint

// Policy is what becomes of pods whose resources do not lie together.
type Policy string

// Policies, as KubeletConfiguration names them.
const (
	None       Policy = "none"
	BestEffort Policy = "best-effort"
	Restricted Policy = "restricted"
	SingleNUMA Policy = "single-numa-node"
)

// Policies are all there are.
var Policies = []string{string(None), string(BestEffort), string(Restricted), string(SingleNUMA)}

// MaxNodes is the number of NUMA nodes hints are made for unless the option
// max-allowable-numa-nodes raises it: their number doubles with each node.
const MaxNodes = 8

// options of the topology policies.
type options struct {
	// PreferClosest weighs how far nodes lie apart before their numbers.
	PreferClosest bool
	// MaxNodes is the most nodes that a host may have; 0 is the default.
	MaxNodes int
}

// ParseOptions reads topologyManagerPolicyOptions.
func ParseOptions(in map[string]string) (options, error) {
	o := options{MaxNodes: MaxNodes}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		var err error
		switch name {
		case "prefer-closest-numa-nodes":
			o.PreferClosest, err = strconv.ParseBool(in[name])
		case "max-allowable-numa-nodes":
			if o.MaxNodes, err = strconv.Atoi(in[name]); err == nil && (o.MaxNodes < MaxNodes || o.MaxNodes > 16) {
				err = fmt.Errorf("must be %d to 16", MaxNodes)
			}
		default:
			return o, fmt.Errorf("topologyManagerPolicyOptions[%s] is not known: allowed are max-allowable-numa-nodes and "+
				"prefer-closest-numa-nodes", name)
		}
		if err != nil {
			return o, fmt.Errorf("topologyManagerPolicyOptions[%s] is %q: %w", name, in[name], err)
		}
	}
	return o, nil
}

// Merger merges hints for one host.
type Merger struct {
	Host    *Host
	Policy  Policy
	Options options
}

// Merge chooses nodes for a request. admit says whether the policy takes it.
// With policy none nothing is chosen and all is taken.
func (m Merger) Merge(wishes []Wishes) (best Hint, admit bool) {
	if m.Policy == None || m.Policy == "" {
		return Hint{}, true
	}
	lists := flatten(wishes)
	all := m.Host.NodeMask()
	if m.Policy == SingleNUMA {
		for i := range lists {
			lists[i] = slices.DeleteFunc(slices.Clone(lists[i]), func(h Hint) bool {
				return !h.Preferred || h.Mask.Count() > 1
			})
		}
	}
	best = m.choose(all, lists)
	switch m.Policy {
	case SingleNUMA:
		if best.Mask == all {
			best.Mask = 0 // no one minds where
		}
		return best, best.Preferred
	case Restricted:
		return best, best.Preferred
	}
	return best, true
}

// flatten makes one list per resource of every provider. What no one cares
// about is preferred anywhere; what cannot be had is not preferred anywhere.
func flatten(wishes []Wishes) [][]Hint {
	var out [][]Hint
	for _, w := range wishes {
		if len(w) == 0 {
			out = append(out, []Hint{{Preferred: true}})
			continue
		}
		for _, resource := range slices.Sorted(maps.Keys(w)) {
			switch hints := w[resource]; {
			case hints == nil:
				out = append(out, []Hint{{Preferred: true}})
			case len(hints) == 0:
				out = append(out, []Hint{{}})
			default:
				out = append(out, hints)
			}
		}
	}
	return out
}

// choose looks at every combination of one hint per list.
func (m Merger) choose(all Mask, lists [][]Hint) Hint {
	settle := narrowestWanted(lists)
	best, found := Hint{}, false
	combine(all, lists, func(h Hint) {
		if h.Mask == 0 {
			return // these do not meet anywhere
		}
		if !found || m.better(best, h, settle) {
			best, found = h, true
		}
	})
	if !found {
		return Hint{Mask: all}
	}
	return best
}

// combine calls f with the meeting of every combination. It is preferred if
// all its hints are and name the same nodes.
func combine(all Mask, lists [][]Hint, f func(Hint)) {
	var next func(i int, meet, first Mask, preferred bool)
	next = func(i int, meet, first Mask, preferred bool) {
		if i == len(lists) {
			f(Hint{Mask: meet, Preferred: preferred})
			return
		}
		for _, h := range lists[i] {
			meeting, same, with := meet, first, preferred && h.Preferred
			if h.Mask != 0 {
				meeting &= h.Mask
				if same == 0 {
					same = h.Mask
				}
				with = with && h.Mask == same
			}
			next(i+1, meeting, same, with)
		}
	}
	next(0, all, 0, true)
}

// narrowestWanted is how many nodes the most demanding resource needs at
// least: fewer than that cannot be had, so a choice of as many is the best
// there is among those not preferred.
func narrowestWanted(lists [][]Hint) int {
	most := 0
	for _, hints := range lists {
		least := 0
		for _, h := range hints {
			if n := h.Mask.Count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		most = max(most, least)
	}
	return most
}

// better tells whether candidate is a better choice than best.
func (m Merger) better(best, candidate Hint, settle int) bool {
	if best.Preferred != candidate.Preferred {
		return candidate.Preferred
	}
	if candidate.Preferred {
		return m.narrower(candidate.Mask, best.Mask)
	}
	have, offered := best.Mask.Count(), candidate.Mask.Count()
	switch {
	case have > settle:
		return m.narrower(candidate.Mask, best.Mask)
	case have == settle:
		return offered == settle && m.narrower(candidate.Mask, best.Mask)
	case offered > settle:
		return false
	case offered != have:
		return offered > have
	}
	return m.narrower(candidate.Mask, best.Mask)
}

// narrower is the order of masks, by distance before number where asked for.
func (m Merger) narrower(a, b Mask) bool {
	if m.Options.PreferClosest && a.Count() == b.Count() {
		if x, y := m.Host.Distance(a), m.Host.Distance(b); x != y {
			return x < y
		}
	}
	return a.Narrower(b)
}
