package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/strict"
)

// script is what befalls the fleet, in order of time.
type script []act

// act is what happens At a time after the start: exactly one of the others.
type act struct {
	At strict.Duration `json:"at"`
	// Stop takes hosts away, with what ran on them.
	Stop *selection `json:"stop,omitempty"`
	// Cut takes the network away; pods run on.
	Cut *selection `json:"cut,omitempty"`
	// NotReady makes agents say that they are not ready, until Resume.
	NotReady *selection `json:"notReady,omitempty"`
	// Resume ends all of these.
	Resume *selection `json:"resume,omitempty"`
}

// selection names nodes: those of Zone, or of Names, or all; and of these Count
// or Percent, taken evenly over the list.
type selection struct {
	Zone    string   `json:"zone"`
	Names   []string `json:"names"`
	Count   int      `json:"count"`
	Percent float64  `json:"percent"`
}

// ParseScript reads a script from YAML.
func ParseScript(text []byte) (script, error) {
	var s script
	if err := strict.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	for i, a := range s {
		if err := a.check(); err != nil {
			return nil, fmt.Errorf("script: [%d]: %w", i, err)
		}
	}
	slices.SortStableFunc(s, func(a, b act) int { return int(a.At - b.At) })
	return s, nil
}

// what is the act's name and its nodes.
func (a *act) what() (verb string, nodes *selection, n int) {
	for _, x := range []struct {
		verb string
		sel  *selection
	}{{"stop", a.Stop}, {"cut", a.Cut}, {"notReady", a.NotReady}, {"resume", a.Resume}} {
		if x.sel != nil {
			verb, nodes = x.verb, x.sel
			n++
		}
	}
	return verb, nodes, n
}

func (a *act) check() error {
	_, sel, n := a.what()
	switch {
	case n != 1:
		return fmt.Errorf("has %d actions: exactly one of stop, cut, notReady, resume is allowed", n)
	case sel.Percent < 0 || sel.Percent > 100 || sel.Count < 0:
		return fmt.Errorf("count %d, percent %g: must be at least 0, and percent at most 100", sel.Count, sel.Percent)
	case sel.Zone != "" && len(sel.Names) > 0:
		return errors.New("zone and names must not both be set")
	}
	return nil
}

// choose lists the nodes that a selection names.
func (f *fleet) choose(s *selection) []*hollow {
	var all []*hollow
	for _, h := range f.nodes {
		if (s.Zone == "" || h.zone == s.Zone) && (len(s.Names) == 0 || slices.Contains(s.Names, h.name)) {
			all = append(all, h)
		}
	}
	want := len(all)
	if s.Percent > 0 {
		want = int(float64(len(all))*s.Percent/100 + 0.5)
	}
	if s.Count > 0 {
		want = min(want, s.Count)
	}
	out := make([]*hollow, 0, want)
	for i := range want {
		out = append(out, all[i*len(all)/want])
	}
	return out
}

// String is the selection in words.
func (s *selection) String() string {
	text := "all nodes"
	switch {
	case s.Zone != "":
		text = "zone " + s.Zone
	case len(s.Names) > 0:
		text = strings.Join(s.Names, ", ")
	}
	if s.Percent > 0 {
		text = fmt.Sprintf("%g %% of %s", s.Percent, text)
	}
	if s.Count > 0 {
		text = fmt.Sprintf("%d of %s", s.Count, text)
	}
	return text
}
