package nft

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/model"
)

const (
	// layoutVersion changes whenever the meaning of rules or rows does.
	layoutVersion = "6"
	markerPrefix  = "layout-"
	// cidrChain drops what goes to addresses of no Service.
	cidrChain = "service-cidrs"
	// draws is how often an index is drawn that nobody may have. At least
	// every second one is somebody's, so endpoints at the low half of a pool
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
	// the three is set; none means that nobody can be told.
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
	r0   = unix.NFT_REG32_00
	rTmp = unix.NFT_REG32_00
)

type builder struct {
	Layout
	tx *Tx
}

// Build appends the fixed part of a table to tx: sets, chains, rules. The table
// must not exist, or be deleted earlier in tx. No packet comes there before Hook.
func (l Layout) Build(tx *Tx) {
	b := builder{l, tx}
	b.sets()
	for _, c := range []string{"frontends", "vips", "nodeports", "vip-classes", "nodeport-classes", cidrChain} {
		tx.Add(Op{Verb: AddChain, Name: c})
	}
	b.shared()
	b.rule("frontends", b.daddrIn(model.ClusterIPs), goTo("vips"))
	// An external address may be the node's own, which has node ports too.
	b.rule("frontends", b.daddrIn(model.ExternalIPs), jump("vips"))
	if l.AllNodePorts {
		b.rule("frontends", b.toHere(), b.notLoopback(), goTo("nodeports"))
	} else {
		b.rule("frontends", b.daddrIn(model.NodeAddrs), b.toHere(), goTo("nodeports"))
	}
	b.rule("frontends", jump(cidrChain))
	// Twice: a frontend that moves between classes while a packet walks
	// through them can be missed where it was and where it is.
	for range 2 {
		b.rule("vips", jump("vip-classes"))
		b.rule("nodeports", jump("nodeport-classes"))
	}
	// A cluster IP in use, but on another port: refuse at once.
	b.rule("vips", b.daddrIn(model.ClusterIPs), b.proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	b.rule("vips", b.daddrIn(model.ClusterIPs), b.unreachable())
}

// baseChains are those that packets enter.
var baseChains = []string{"prerouting", "output", "postrouting"}

var hooks = map[string]*Hook{"prerouting": {unix.NF_INET_PRE_ROUTING, -100}, "output": {unix.NF_INET_LOCAL_OUT, -100}, "postrouting": {unix.NF_INET_POST_ROUTING, 100}}

// Hook appends what leads packets into a table that was built, and what says
// that it is whole.
func (l Layout) Hook(tx *Tx) {
	b := builder{l, tx}
	tx.Add(Op{Verb: AddChain, Name: l.marker()})
	for _, c := range baseChains {
		tx.Add(Op{Verb: AddChain, Name: c, Hook: hooks[c]})
	}
	b.rule("prerouting", jump("frontends"))
	b.rule("output", jump("frontends"))
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
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(b.MarkBit), Xor: num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rTmp, Data: num(0)},
		b.setMark(0), masq)
	dnat := []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(ctStatusDNAT), Xor: num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rTmp, Data: num(0)}}
	b.rule("postrouting", dnat, b.saddr(r0), b.daddr(r0+b.regs()),
		&expr.Lookup{SourceRegister: r0, SetName: model.Hairpin.Shape(b.Family).Name}, masq)
	if b.SameBridge != "" {
		b.rule("postrouting", dnat, b.ifIs(expr.MetaKeyIIFNAME, b.SameBridge), b.ifIs(expr.MetaKeyOIFNAME, b.SameBridge), masq)
	}
}

// ctStatusDNAT is IPS_DST_NAT of the kernel's connection tracking.
const ctStatusDNAT = 1 << 5

func (b builder) sets() {
	for t := model.Table(0); int(t) < model.NumTables; t++ {
		if t != model.VIPs && t != model.NodePorts {
			b.set(model.Set{Table: t})
		}
	}
}

// set declares the set of a table, or of one class.
func (b builder) set(s model.Set) {
	f, shape := fieldsOf(b.Family), s.Shape(b.Family)
	var key, value []Type
	switch s.Table {
	case model.VIPs:
		key = []Type{f.daddr, TypeProto, TypePort}
	case model.NodePorts:
		key = []Type{TypeProto, TypePort}
	case model.Endpoints:
		key, value = []Type{f.daddr, TypeProto, TypePort, TypeIndex}, []Type{f.daddr, TypePort}
	case model.NodePortEndpoints:
		key, value = []Type{TypeProto, TypePort, TypeIndex}, []Type{f.daddr, TypePort}
	case model.Sticky:
		key, value = []Type{f.daddr, TypeProto, TypePort}, []Type{TypePriority}
	case model.StickyNodePorts:
		key, value = []Type{TypeProto, TypePort}, []Type{TypePriority}
	case model.Picks:
		key, value = []Type{TypePriority, TypeIndex}, []Type{TypePriority}
	case model.StickyEndpoints, model.StickyLocal:
		key, value = []Type{TypePriority}, []Type{f.daddr, TypePort}
	case model.Hairpin:
		key = []Type{f.saddr, f.daddr}
	case model.ClusterIPs, model.ExternalIPs, model.NodeAddrs:
		key = []Type{f.daddr}
	case model.Ranges:
		key = []Type{f.daddr, TypeProto, TypePort, f.saddr}
	}
	if width(key) != shape.Key || width(value) != shape.Value {
		panic("nft: set " + shape.Name + " has another shape than its rows")
	}
	b.tx.Add(Op{Verb: AddSet, Name: shape.Name, Set: &Set{Name: shape.Name, Key: key, Value: value, Interval: shape.Interval}})
}

// AddClass appends the set and the chain of a class, which must not exist; its
// timeout, if it has one, must.
func (l Layout) AddClass(tx *Tx, c model.Class) {
	b := builder{l, tx}
	s, classes := model.Set{Table: model.VIPs, Class: c}, "vip-classes"
	if c.NodePort {
		s.Table, classes = model.NodePorts, "nodeport-classes"
	}
	b.set(s)
	name := c.Name()
	tx.Add(Op{Verb: AddChain, Name: name})
	b.class(name, c)
	b.rule(classes, b.key(c.NodePort, r0), &expr.Lookup{SourceRegister: r0, SetName: name}, goTo(name))
}

// DropCIDRs rewrites the chain that drops what goes to an address of a
// Service range that no Service has.
func (l Layout) DropCIDRs(tx *Tx, cidrs []netip.Prefix) {
	b := builder{l, tx}
	tx.Add(Op{Verb: FlushChain, Name: cidrChain})
	for _, p := range cidrs {
		if p = p.Masked(); l.Family.Has(p.Addr()) {
			b.rule(cidrChain, b.within(b.daddr(r0), p, true), &expr.Verdict{Kind: expr.VerdictDrop})
		}
	}
}

func (b builder) class(name string, c model.Class) {
	if c.Ranges {
		key, next := b.key(c.NodePort, r0), r0+2+b.regs()
		b.rule(name, key, b.saddr(next),
			&expr.Lookup{SourceRegister: r0, SetName: model.Ranges.Shape(b.Family).Name, Invert: true}, &expr.Verdict{Kind: expr.VerdictDrop})
	}
	switch c.Kind {
	case model.Reject:
		b.rule(name, b.proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
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
		b.tx.Add(Op{Verb: AddChain, Name: whole})
		b.pick(whole, c, model.ClusterPool, c.Cluster)
		if b.hasLocal() {
			b.rule(name, b.isLocal(true), goTo(whole))
		}
		b.rule(name, b.fromHere(), b.setMark(b.MarkBit), goTo(whole))
	}
	if c.LocalPolicy {
		b.pick(name, c, model.LocalPool, c.Local)
	} else {
		b.pick(name, c, model.ClusterPool, c.Cluster)
	}
}

func jump(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }
func goTo(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// rule appends a rule; parts are expressions or lists of them.
func (b builder) rule(chain string, parts ...any) {
	var es []expr.Any
	for _, p := range parts {
		switch p := p.(type) {
		case []expr.Any:
			es = append(es, p...)
		case expr.Any:
			es = append(es, p)
		}
	}
	b.tx.Add(Op{Verb: AddRule, Name: chain, Rule: es})
}

// regs is how many registers an address takes.
func (b builder) regs() uint32 { return uint32(b.Family.AddrLen() / 4) }

func (b builder) proto32() uint32 {
	if b.Family == model.V6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (b builder) saddr(reg uint32) expr.Any {
	off := uint32(12)
	if b.Family == model.V6 {
		off = 8
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: off, Len: uint32(b.Family.AddrLen())}
}

func (b builder) daddr(reg uint32) expr.Any {
	off := uint32(16)
	if b.Family == model.V6 {
		off = 24
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: off, Len: uint32(b.Family.AddrLen())}
}

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

func (b builder) proto(n byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: rTmp}, &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp, Data: []byte{n}}}
}

func (b builder) unreachable() expr.Any {
	code := uint8(3) // port unreachable, ICMP
	if b.Family == model.V6 {
		code = 4 // port unreachable, ICMPv6
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}
}

func (b builder) toHere() []expr.Any {
	return []expr.Any{&expr.Fib{Register: rTmp, ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp, Data: num(unix.RTN_LOCAL)}}
}

func (b builder) fromHere() []expr.Any {
	return []expr.Any{&expr.Fib{Register: rTmp, ResultADDRTYPE: true, FlagSADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp, Data: num(unix.RTN_LOCAL)}}
}

// setMark sets our bit of the packet's mark to bit, and no other.
func (b builder) setMark(bit uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(^b.MarkBit), Xor: num(bit)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: rTmp}}
}

func (b builder) hasLocal() bool {
	return len(b.LocalCIDRs) > 0 || b.LocalBridge != "" || b.LocalPrefix != ""
}

func (b builder) ifIs(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: rTmp}, &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp, Data: ifname(name)}}
}

// isLocal matches traffic from pods on this node, or all other traffic.
func (b builder) isLocal(want bool) []expr.Any {
	op := expr.CmpOpEq
	if !want {
		op = expr.CmpOpNeq
	}
	switch {
	case b.LocalBridge != "":
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: rTmp}, &expr.Cmp{Op: op, Register: rTmp, Data: ifname(b.LocalBridge)}}
	case b.LocalPrefix != "":
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: rTmp}, &expr.Cmp{Op: op, Register: rTmp, Data: []byte(b.LocalPrefix)}}
	}
	// One CIDR a family: the configuration allows no more.
	return b.within(b.saddr(r0), b.LocalCIDRs[0].Masked(), want)
}

func (b builder) notLoopback() []expr.Any {
	lo := netip.MustParsePrefix("127.0.0.0/8")
	if b.Family == model.V6 {
		lo = netip.MustParsePrefix("::1/128")
	}
	return b.within(b.daddr(r0), lo, false)
}

// within matches an address loaded to r0 that lies in a prefix, or outside.
func (b builder) within(load expr.Any, p netip.Prefix, want bool) []expr.Any {
	op := expr.CmpOpEq
	if !want {
		op = expr.CmpOpNeq
	}
	out := []expr.Any{load}
	if p.Bits() < p.Addr().BitLen() {
		out = append(out, &expr.Bitwise{SourceRegister: r0, DestRegister: r0, Len: uint32(b.Family.AddrLen()), Mask: mask(p), Xor: make([]byte, b.Family.AddrLen())})
	}
	return append(out, &expr.Cmp{Op: op, Register: r0, Data: p.Addr().AsSlice()})
}

func mask(p netip.Prefix) []byte {
	m := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

func num(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// ifname is an interface name as the kernel compares it: padded with zeros.
func ifname(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

// Matches says whether a table with these chains has this layout.
func (l Layout) Matches(chains []string) bool { return slices.Contains(chains, l.marker()) }
