package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Kind is the shape of a set's rows.
type Kind uint8

// The kinds.
const (
	// Peers are addresses of pods.
	Peers Kind = iota
	// Blocks are ranges of addresses.
	Blocks
	// Named are address, protocol and port of pods' named ports.
	Named
	// Selves are pairs of one address, for what a pod sends to itself.
	Selves
)

// SelfSet is the one set of kind Selves.
const SelfSet = "self"

// Set is a set the kernel must have. Blocks are filled when the set is made
// and never change.
type Set struct {
	Name   string
	Kind   Kind
	Blocks []addrRange
}

// Rule is one rule of a chain: jump if Jump is set; else accept, if Accept is
// set, what matches everything that is not empty; else drop.
type Rule struct {
	Jump   string
	Accept bool
	// Peers names a set of kind Peers or Blocks.
	Peers string
	// Named names a set of kind Named.
	Named string
	// Ports are written into the rule and not a set: a set of intervals of
	// two fields has no rows yet when the rules of its transaction begin to
	// hold (Linux 6.18), so that packets would be dropped in between.
	Ports portRange
}

// Chain is a chain the kernel must have. Fresh chains are new; others lose
// their old rules.
type Chain struct {
	Name      string
	Direction Direction
	Fresh     bool
	Rules     []Rule
}

// Row is a row of a set that follows pods.
type Row struct {
	Set   string
	Kind  Kind
	Addr  netip.Addr
	Proto uint8
	Port  uint16
}

// Guard leads an address of this node to a profile.
type Guard struct {
	Direction Direction
	Addr      netip.Addr
	Chain     string
}

// Changes is what must happen to the kernel. Rows and guards are deleted
// before others are added.
type Changes struct {
	Sets       []Set
	Chains     []Chain
	Del, Add   []Row
	Unguard    []Guard
	Guard      []Guard
	DropChains []string
	// DropSets carry the kind alone.
	DropSets []Set
	// Problems are policies with parts that could not be understood.
	Problems []error
}

// Empty says that the kernel need not be touched.
func (c *Changes) Empty() bool {
	return len(c.Sets)+len(c.Chains)+len(c.Del)+len(c.Add)+len(c.Unguard)+len(c.Guard)+len(c.DropChains)+len(c.DropSets) == 0
}

func (c *Changes) sort() {
	slices.SortFunc(c.Sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.DropSets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(c.DropChains)
	for _, rows := range [][]Row{c.Del, c.Add} {
		slices.SortFunc(rows, func(a, b Row) int {
			return cmp.Or(strings.Compare(a.Set, b.Set), a.Addr.Compare(b.Addr), int(a.Proto)-int(b.Proto), int(a.Port)-int(b.Port))
		})
	}
	for _, guards := range [][]Guard{c.Unguard, c.Guard} {
		slices.SortFunc(guards, func(a, b Guard) int {
			return cmp.Or(int(a.Direction)-int(b.Direction), a.Addr.Compare(b.Addr))
		})
	}
}

// Text prints the changes, one a line, in the order they must be made.
func (c *Changes) Text() string {
	var b strings.Builder
	for _, g := range c.Unguard {
		fmt.Fprintf(&b, "- %s %s -> %s\n", g.Direction, g.Addr, g.Chain)
	}
	for _, r := range c.Del {
		fmt.Fprintf(&b, "- %s\n", r)
	}
	for _, s := range c.Sets {
		fmt.Fprintf(&b, "+ set %s%s\n", s.Name, s.contents())
	}
	for _, ch := range c.Chains {
		how := "="
		if ch.Fresh {
			how = "+"
		}
		fmt.Fprintf(&b, "%s chain %s\n", how, ch.Name)
		for _, r := range ch.Rules {
			fmt.Fprintf(&b, "    %s\n", r)
		}
	}
	for _, r := range c.Add {
		fmt.Fprintf(&b, "+ %s\n", r)
	}
	for _, g := range c.Guard {
		fmt.Fprintf(&b, "+ %s %s -> %s\n", g.Direction, g.Addr, g.Chain)
	}
	for _, name := range c.DropChains {
		fmt.Fprintf(&b, "- chain %s\n", name)
	}
	for _, s := range c.DropSets {
		fmt.Fprintf(&b, "- set %s\n", s.Name)
	}
	return b.String()
}

func (s Set) contents() string {
	var parts []string
	for _, r := range s.Blocks {
		parts = append(parts, fmt.Sprintf("%s-%s", r.First, r.Last))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// String prints a rule as what it does.
func (r Rule) String() string {
	if r.Jump != "" {
		return "jump " + r.Jump
	}
	if !r.Accept {
		return "drop"
	}
	var b strings.Builder
	if r.Peers != "" {
		b.WriteString("with " + r.Peers + " ")
	}
	if r.Named != "" {
		b.WriteString("on " + r.Named + " ")
	}
	if r.Ports.Proto != 0 {
		fmt.Fprintf(&b, "on %d/%d-%d ", r.Ports.Proto, r.Ports.First, r.Ports.Last)
	}
	return b.String() + "accept"
}

// String prints a row as set and key.
func (r Row) String() string {
	if r.Kind == Named {
		return fmt.Sprintf("%s: %s %d/%d", r.Set, r.Addr, r.Proto, r.Port)
	}
	return fmt.Sprintf("%s: %s", r.Set, r.Addr)
}
