package model_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/internal/policy/model"
	"github.com/berth-dev/berth/internal/policy/oracle"
)

// kernel holds what a real one would and refuses what a real one would
// refuse.
type kernel struct {
	t      *testing.T
	sets   map[string]model.Set
	rows   map[model.Row]bool
	chains map[string][]model.Rule
	guards map[model.Guard]bool // without the chain
	to     map[model.Guard]string
}

func newKernel(t *testing.T) *kernel {
	return &kernel{t, map[string]model.Set{model.SelfSet: {Name: model.SelfSet, Kind: model.Selves}}, map[model.Row]bool{},
		map[string][]model.Rule{}, map[model.Guard]bool{}, map[model.Guard]string{}}
}

func (k *kernel) must(ok bool, format string, args ...any) {
	k.t.Helper()
	if !ok {
		k.t.Fatalf(format, args...)
	}
}

func (k *kernel) apply(c *model.Changes) {
	k.t.Helper()
	for _, g := range c.Unguard {
		at := model.Guard{Direction: g.Direction, Addr: g.Addr}
		k.must(k.to[at] == g.Chain, "unguard %v: leads to %q", g, k.to[at])
		delete(k.to, at)
	}
	for _, r := range c.Del {
		k.must(k.rows[r], "deleting the row %v that is not there", r)
		delete(k.rows, r)
	}
	for _, s := range c.Sets {
		_, there := k.sets[s.Name]
		k.must(!there, "set %s made twice", s.Name)
		k.sets[s.Name] = s
	}
	for _, ch := range c.Chains {
		_, there := k.chains[ch.Name]
		k.must(there == !ch.Fresh, "chain %s: fresh is %v, there is %v", ch.Name, ch.Fresh, there)
		k.chains[ch.Name] = ch.Rules
	}
	for _, r := range c.Add {
		s, there := k.sets[r.Set]
		k.must(there && s.Kind == r.Kind, "row %v has no set of its kind", r)
		k.must(!k.rows[r], "row %v added twice", r)
		k.rows[r] = true
	}
	for _, g := range c.Guard {
		at := model.Guard{Direction: g.Direction, Addr: g.Addr}
		k.must(k.to[at] == "", "guard %v added twice", g)
		k.to[at] = g.Chain
	}
	for _, name := range c.DropChains {
		_, there := k.chains[name]
		k.must(there, "dropping the chain %s that is not there", name)
		delete(k.chains, name)
	}
	for _, s := range c.DropSets {
		had, there := k.sets[s.Name]
		k.must(there && had.Kind == s.Kind, "dropping the set %s that is not there", s.Name)
		delete(k.sets, s.Name)
		for r := range k.rows {
			if r.Set == s.Name {
				delete(k.rows, r)
			}
		}
	}
	for _, chain := range k.to {
		_, there := k.chains[chain]
		k.must(there, "a guard leads to the chain %s that is not there", chain)
	}
	for name, rules := range k.chains {
		for _, r := range rules {
			_, jump := k.chains[r.Jump]
			k.must(r.Jump == "" || jump, "%s jumps to %s, which is not there", name, r.Jump)
			for _, s := range []string{r.Peers, r.Named} {
				_, there := k.sets[s]
				k.must(s == "" || there, "%s looks into %s, which is not there", name, s)
			}
		}
	}
}

func (k *kernel) allows(p oracle.Packet) bool {
	if k.rows[model.Row{Set: model.SelfSet, Kind: model.Selves, Addr: p.Src}] && p.Src == p.Dst {
		return true
	}
	if p.Src == p.Dst {
		return true // nothing guards it
	}
	for _, g := range []model.Guard{{Direction: model.Egress, Addr: p.Src}, {Direction: model.Ingress, Addr: p.Dst}} {
		if chain := k.to[g]; chain != "" && !k.run(chain, g.Direction, p) {
			return false
		}
	}
	return true
}

// run says whether a chain accepts; falling off its end is no answer, which
// no profile may give.
func (k *kernel) run(chain string, d model.Direction, p oracle.Packet) bool {
	other := p.Src
	if d == model.Egress {
		other = p.Dst
	}
	for _, r := range k.chains[chain] {
		switch {
		case r.Jump != "":
			if k.run(r.Jump, d, p) {
				return true
			}
		case r.Accept && k.has(r.Peers, other, p) && k.has(r.Named, p.Dst, p) &&
			(r.Ports.Proto == 0 || r.Ports.Proto == p.Proto && r.Ports.First <= p.Port && p.Port <= r.Ports.Last):
			return true
		}
	}
	return false
}

func (k *kernel) has(set string, ip netip.Addr, p oracle.Packet) bool {
	s := k.sets[set]
	switch {
	case set == "":
		return true
	case s.Kind == model.Peers:
		return k.rows[model.Row{Set: set, Kind: model.Peers, Addr: ip}]
	case s.Kind == model.Named:
		return k.rows[model.Row{Set: set, Kind: model.Named, Addr: ip, Proto: p.Proto, Port: p.Port}]
	}
	for _, b := range s.Blocks {
		if b.First.Is4() == ip.Is4() && !ip.Less(b.First) && !b.Last.Less(ip) {
			return true
		}
	}
	return false
}

// TestRandomHistoriesDecideAsTheOracle also proves that a snapshot holds what
// the history of changes built.
func TestRandomHistoriesDecideAsTheOracle(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h, k := oracle.NewHistory(seed), newKernel(t)
			for range 60 {
				for range 1 + h.IntN(4) {
					h.Step()
				}
				k.apply(h.Model.Commit())
				whole := newKernel(t)
				whole.apply(h.Model.Snapshot())
				for range 40 {
					p := oracle.RandomPacket(h.Rand)
					want := h.Cluster.Allows(p)
					if got := k.allows(p); got != want {
						t.Fatalf("%+v: rows say %v, policies say %v\n%s", p, got, want, h.Model.Snapshot().Text())
					}
					if got := whole.allows(p); got != want {
						t.Fatalf("%+v: snapshot says %v, policies say %v", p, got, want)
					}
				}
				if len(k.rows) != len(whole.rows) || len(k.sets) != len(whole.sets) || len(k.chains) != len(whole.chains) ||
					len(k.to) != len(whole.to) {
					t.Fatalf("history left %d rows, %d sets, %d chains, %d guards; a snapshot has %d, %d, %d, %d", len(k.rows), len(k.sets),
						len(k.chains), len(k.to),
						len(whole.rows), len(whole.sets), len(whole.chains), len(whole.to))
				}
			}
			for key := range h.Cluster.Pods {
				h.Model.DeletePod(key)
			}
			for key := range h.Cluster.Policies {
				h.Model.DeletePolicy(key)
			}
			k.apply(h.Model.Commit())
			if len(k.rows)+len(k.chains)+len(k.to)+len(k.sets)-1 > 0 {
				t.Errorf("an empty cluster leaves %v, %v, %v, %v", k.rows, k.chains, k.to, k.sets)
			}
		})
	}
}
