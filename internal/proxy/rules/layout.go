package rules

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
)

const (
	// layoutVersion changes whenever the meaning of rules or rows does.
	layoutVersion = "6"
	markerPrefix  = "layout-"
	// cidrChain drops what goes to addresses of no Service.
	cidrChain = "service-cidrs"
	// draws is how often an index is drawn that no one may have. At least
	// every second one is someone's, so endpoints at the low half of a pool
	// are preferred by at most one connection in 2^draws.
	draws = 8
	// largestShared is the largest pool, rounded up, whose choosing chains
	// are there from the start; largestLocal the same of the pools of one node.
	largestShared = 1024
	largestLocal  = 256
)

// Layout is what the fixed rules depend on.
type Layout struct {
	Family model.Family
	// MarkBit is the bit set on packets to masquerade.
	MarkBit uint32
	// MasqueradeAll masquerades all cluster IP traffic.
	MasqueradeAll bool
	// Local tells pods on this node from everybody else. At most one of
	// the three is set; none means that no one can be told.
	LocalCIDRs  []netip.Prefix
	LocalBridge string
	LocalPrefix string
	// AllNodePorts lets node ports answer on every local address but
	// loopback ones; otherwise only on those in NodeAddrs.
	AllNodePorts bool
	// SameBridge, if set, is a bridge whose ports reach each other without
	// passing netfilter, so that replies only come back to us if we
	// masquerade what goes from it to it.
	SameBridge string
}

// marker is the name of an empty chain that tells which layout a table has.
func (l Layout) marker() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %+v", layoutVersion, l)
	return fmt.Sprintf("%s%016x", markerPrefix, h.Sum64())
}

// The registers rules use, from the first one on: nft can print what was
// loaded into consecutive registers as one key.
const (
	r0   = nft.R0
	rTmp = nft.R0
)

type builder struct {
	Layout
	tx *nft.Tx
}

// Build appends the fixed part of a table to tx: sets, chains, rules. The table
// must not exist, or be deleted earlier in tx. No packet comes there before Hook.
func (l Layout) Build(tx *nft.Tx) {
	b := builder{l, tx}
	b.sets()
	for _, c := range []string{"frontends", "vips", "nodeports", "vip-classes", "nodeport-classes", cidrChain} {
		tx.Add(nft.Op{Verb: nft.AddChain, Name: c})
	}
	b.shared()
	b.rule("frontends", b.daddrIn(model.ClusterIPs), nft.Goto("vips"))
	// An external address may be the node's own, which has node ports too.
	b.rule("frontends", b.daddrIn(model.ExternalIPs), nft.Jump("vips"))
	if l.AllNodePorts {
		b.rule("frontends", b.toHere(), b.notLoopback(), nft.Goto("nodeports"))
	} else {
		b.rule("frontends", b.daddrIn(model.NodeAddrs), b.toHere(), nft.Goto("nodeports"))
	}
	b.rule("frontends", nft.Jump(cidrChain))
	// Twice: a frontend that moves between classes while a packet walks
	// through them can be missed where it was and where it is.
	for range 2 {
		b.rule("vips", nft.Jump("vip-classes"))
		b.rule("nodeports", nft.Jump("nodeport-classes"))
	}
	// A cluster IP in use, but on another port: refuse at once.
	b.rule("vips", b.daddrIn(model.ClusterIPs), nft.Proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	b.rule("vips", b.daddrIn(model.ClusterIPs), b.unreachable())
}

// baseChains are those that packets enter.
var baseChains = []string{"prerouting", "output", "postrouting"}

var hooks = map[string]*nft.Hook{
	"prerouting":  {Num: unix.NF_INET_PRE_ROUTING, Priority: -100},
	"output":      {Num: unix.NF_INET_LOCAL_OUT, Priority: -100},
	"postrouting": {Num: unix.NF_INET_POST_ROUTING, Priority: 100},
}

// Hook appends what leads packets into a table that was built, and what says
// that it is whole.
func (l Layout) Hook(tx *nft.Tx) {
	b := builder{l, tx}
	tx.Add(nft.Op{Verb: nft.AddChain, Name: l.marker()})
	for _, c := range baseChains {
		tx.Add(nft.Op{Verb: nft.AddChain, Name: c, Hook: hooks[c]})
	}
	b.rule("prerouting", nft.Jump("frontends"))
	b.rule("output", nft.Jump("frontends"))
	b.postrouting()
}

// Hooked says whether packets may come into a table with these chains.
func Hooked(chains []string) bool {
	return slices.ContainsFunc(chains, func(c string) bool {
		return slices.Contains(baseChains, c) || strings.HasPrefix(c, markerPrefix)
	})
}

func (b builder) postrouting() {
	b.unmark()
	masq := &expr.Masq{FullyRandom: true}
	b.rule("postrouting", &expr.Meta{Key: expr.MetaKeyMARK, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: nft.Num(b.MarkBit), Xor: nft.Num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rTmp, Data: nft.Num(0)},
		b.setMark(0), masq)
	dnat := []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: nft.Num(nft.CtStatusDNAT), Xor: nft.Num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rTmp, Data: nft.Num(0)}}
	b.rule("postrouting", dnat, b.saddr(r0), b.daddr(r0+b.regs()),
		&expr.Lookup{SourceRegister: r0, SetName: model.Hairpin.Shape(b.Family).Name}, masq)
	if b.SameBridge != "" {
		b.rule("postrouting", dnat, nft.Link(expr.MetaKeyIIFNAME, b.SameBridge), nft.Link(expr.MetaKeyOIFNAME, b.SameBridge), masq)
	}
}

func (b builder) sets() {
	for t := model.Table(0); int(t) < model.NumTables; t++ {
		if t != model.VIPs && t != model.NodePorts {
			b.set(model.Set{Table: t})
		}
	}
}

// set declares the set of a table, or of one class.
func (b builder) set(s model.Set) {
	f, shape := nft.FieldsOf(b.Family), s.Shape(b.Family)
	var key, value []nft.Type
	switch s.Table {
	case model.VIPs:
		key = []nft.Type{f.Daddr, nft.TypeProto, nft.TypePort}
	case model.NodePorts:
		key = []nft.Type{nft.TypeProto, nft.TypePort}
	case model.Endpoints:
		key, value = []nft.Type{f.Daddr, nft.TypeProto, nft.TypePort, nft.TypeIndex}, []nft.Type{f.Daddr, nft.TypePort}
	case model.NodePortEndpoints:
		key, value = []nft.Type{nft.TypeProto, nft.TypePort, nft.TypeIndex}, []nft.Type{f.Daddr, nft.TypePort}
	case model.Sticky:
		key, value = []nft.Type{f.Daddr, nft.TypeProto, nft.TypePort}, []nft.Type{nft.TypePriority}
	case model.StickyNodePorts:
		key, value = []nft.Type{nft.TypeProto, nft.TypePort}, []nft.Type{nft.TypePriority}
	case model.Picks:
		key, value = []nft.Type{nft.TypePriority, nft.TypeIndex}, []nft.Type{nft.TypePriority}
	case model.StickyEndpoints, model.StickyLocal:
		key, value = []nft.Type{nft.TypePriority}, []nft.Type{f.Daddr, nft.TypePort}
	case model.Hairpin:
		key = []nft.Type{f.Saddr, f.Daddr}
	case model.ClusterIPs, model.ExternalIPs, model.NodeAddrs:
		key = []nft.Type{f.Daddr}
	case model.Ranges:
		key = []nft.Type{f.Daddr, nft.TypeProto, nft.TypePort, f.Saddr}
	}
	if nft.Width(key) != shape.Key || nft.Width(value) != shape.Value {
		panic("nft: set " + shape.Name + " has another shape than its rows")
	}
	b.tx.Add(nft.Op{Verb: nft.AddSet, Name: shape.Name, Set: &nft.Set{Name: shape.Name, Key: key, Value: value, Interval: shape.Interval}})
}

// AddClass appends the set and the chain of a class, which must not exist; its
// timeout, if it has one, must.
func (l Layout) AddClass(tx *nft.Tx, c model.Class) {
	b := builder{l, tx}
	s, classes := model.Set{Table: model.VIPs, Class: c}, "vip-classes"
	if c.NodePort {
		s.Table, classes = model.NodePorts, "nodeport-classes"
	}
	b.set(s)
	name := c.Name()
	tx.Add(nft.Op{Verb: nft.AddChain, Name: name})
	b.class(name, c)
	b.rule(classes, b.key(c.NodePort, r0), &expr.Lookup{SourceRegister: r0, SetName: name}, nft.Goto(name))
}

// DropCIDRs rewrites the chain that drops what goes to an address of a
// Service range that no Service has.
func (l Layout) DropCIDRs(tx *nft.Tx, cidrs []netip.Prefix) {
	b := builder{l, tx}
	tx.Add(nft.Op{Verb: nft.FlushChain, Name: cidrChain})
	for _, p := range cidrs {
		if p = p.Masked(); l.Family.Has(p.Addr()) {
			b.rule(cidrChain, nft.Within(b.daddr(r0), p, true), &expr.Verdict{Kind: expr.VerdictDrop})
		}
	}
}

func (b builder) class(name string, c model.Class) {
	if c.Ranges {
		key, next := b.key(c.NodePort, r0), r0+2+b.regs()
		b.rule(name, key, b.saddr(next),
			&expr.Lookup{SourceRegister: r0, SetName: model.Ranges.Shape(b.Family).Name, Invert: true},
			&expr.Verdict{Kind: expr.VerdictDrop})
	}
	switch c.Kind {
	case model.Reject:
		b.rule(name, nft.Proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
		b.rule(name, b.unreachable())
		return
	case model.Drop:
		b.rule(name, &expr.Verdict{Kind: expr.VerdictDrop})
		return
	}
	switch {
	case !c.External && b.MasqueradeAll:
		b.rule(name, b.setMark(b.MarkBit))
	case !c.External && b.hasLocal():
		b.rule(name, b.isLocal(false), b.setMark(b.MarkBit))
	case c.External && !c.LocalPolicy:
		b.rule(name, b.setMark(b.MarkBit))
	case c.External && c.Cluster > 0:
		// The two exceptions from a Local policy: pods here are served as
		// in the cluster, and the node itself too, but masqueraded.
		whole := name + "-whole"
		b.tx.Add(nft.Op{Verb: nft.AddChain, Name: whole})
		b.pick(whole, c, model.ClusterPool, c.Cluster)
		if b.hasLocal() {
			b.rule(name, b.isLocal(true), nft.Goto(whole))
		}
		b.rule(name, b.fromHere(), b.setMark(b.MarkBit), nft.Goto(whole))
	}
	if c.LocalPolicy {
		b.pick(name, c, model.LocalPool, c.Local)
	} else {
		b.pick(name, c, model.ClusterPool, c.Cluster)
	}
}

// rule appends a rule; parts are expressions or lists of them.
func (b builder) rule(chain string, parts ...any) { b.tx.Rule(chain, parts...) }

// regs is how many registers an address takes.
func (b builder) regs() uint32 { return uint32(b.Family.AddrLen() / 4) }

func (b builder) proto32() uint32 {
	if b.Family == model.V6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (b builder) saddr(reg uint32) expr.Any { return nft.Saddr(b.Family, reg) }
func (b builder) daddr(reg uint32) expr.Any { return nft.Daddr(b.Family, reg) }

// key loads what a frontend is found by.
func (b builder) key(nodePort bool, r uint32) []expr.Any {
	var out []expr.Any
	if !nodePort {
		out, r = append(out, b.daddr(r)), r+b.regs()
	}
	return append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r},
		&expr.Payload{DestRegister: r + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// afterKey is the register behind such a key that begins at r0.
func (b builder) afterKey(nodePort bool) uint32 {
	if nodePort {
		return r0 + 2
	}
	return r0 + 2 + b.regs()
}

func (b builder) daddrIn(t model.Table) []expr.Any {
	return []expr.Any{b.daddr(r0), &expr.Lookup{SourceRegister: r0, SetName: t.Shape(b.Family).Name}}
}

func (b builder) unreachable() expr.Any {
	code := uint8(3) // port unreachable, ICMP
	if b.Family == model.V6 {
		code = 4 // port unreachable, ICMPv6
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}
}

func (b builder) toHere() []expr.Any {
	return []expr.Any{&expr.Fib{Register: rTmp, ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp,
		Data: nft.Num(unix.RTN_LOCAL)}}
}

func (b builder) fromHere() []expr.Any {
	return []expr.Any{&expr.Fib{Register: rTmp, ResultADDRTYPE: true, FlagSADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp,
		Data: nft.Num(unix.RTN_LOCAL)}}
}

// setMark sets our bit of the packet's mark to bit, and no other.
func (b builder) setMark(bit uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: nft.Num(^b.MarkBit), Xor: nft.Num(bit)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: rTmp}}
}

func (b builder) hasLocal() bool {
	return len(b.LocalCIDRs) > 0 || b.LocalBridge != "" || b.LocalPrefix != ""
}

// isLocal matches traffic from pods on this node, or all other traffic.
func (b builder) isLocal(want bool) []expr.Any {
	op := expr.CmpOpEq
	if !want {
		op = expr.CmpOpNeq
	}
	switch {
	case b.LocalBridge != "":
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: rTmp}, &expr.Cmp{Op: op, Register: rTmp,
			Data: nft.Ifname(b.LocalBridge)}}
	case b.LocalPrefix != "":
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: rTmp}, &expr.Cmp{Op: op, Register: rTmp,
			Data: []byte(b.LocalPrefix)}}
	}
	// One CIDR a family: the configuration allows no more.
	return nft.Within(b.saddr(r0), b.LocalCIDRs[0].Masked(), want)
}

func (b builder) notLoopback() []expr.Any {
	lo := netip.MustParsePrefix("127.0.0.0/8")
	if b.Family == model.V6 {
		lo = netip.MustParsePrefix("::1/128")
	}
	return nft.Within(b.daddr(r0), lo, false)
}

// Matches says whether a table with these chains has this layout.
func (l Layout) Matches(chains []string) bool { return slices.Contains(chains, l.marker()) }
