package nft

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/model"
)

const (
	classesMap  = "classes"
	affinityMap = "affinity"
	// layoutVersion changes whenever the meaning of rules or rows does.
	layoutVersion = "2"
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
	return fmt.Sprintf("layout-%016x", h.Sum64())
}

// The registers rules use. A frontend's key lies at rKey, its class comes
// to rClass and its id to rID; what is looked up next with the id follows it.
const (
	rClass = unix.NFT_REG32_00
	rID    = unix.NFT_REG32_01
	rNext  = unix.NFT_REG32_02
	rKey   = unix.NFT_REG32_08
	rTmp   = unix.NFT_REG32_15
	// rClient holds id . source address, the key of affinity.
	rClient = unix.NFT_REG32_07
)

type builder struct {
	Layout
	tx *Tx
}

// Build appends the whole fixed part of a table to tx: sets, chains, rules.
// The table must not exist, or be deleted earlier in tx.
func (l Layout) Build(tx *Tx) {
	b := builder{l, tx}
	b.sets()
	for _, c := range []string{"frontends", "masquerade", l.marker()} {
		tx.Add(Op{Verb: AddChain, Name: c})
	}
	tx.Add(Op{Verb: AddChain, Name: "prerouting", Hook: &Hook{unix.NF_INET_PRE_ROUTING, -100}})
	tx.Add(Op{Verb: AddChain, Name: "output", Hook: &Hook{unix.NF_INET_LOCAL_OUT, -100}})
	tx.Add(Op{Verb: AddChain, Name: "postrouting", Hook: &Hook{unix.NF_INET_POST_ROUTING, 100}})
	jump := &expr.Verdict{Kind: expr.VerdictJump, Chain: "frontends"}
	b.rule("prerouting", jump)
	b.rule("output", jump)

	// Twice: while a row is replaced, a lookup that began before the change
	// can miss both the old row and the new one.
	for range 2 {
		b.rule("frontends", b.vipKey(), b.find(model.Services, rClass), b.toClass())
	}
	np := []any{b.addrType(false), &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp, Data: num(unix.RTN_LOCAL)}}
	if l.AllNodePorts {
		np = append(np, b.notLoopback())
	} else {
		np = append(np, b.daddr(rNext), &expr.Lookup{SourceRegister: rNext, SetName: model.NodeAddrs.Shape(l.Family).Name})
	}
	b.rule("frontends", append(np, b.portKey(), b.find(model.NodePorts, rClass), b.toClass())...)
	// A cluster IP in use, but on another port: refuse at once.
	inUse := []any{b.daddr(rNext), &expr.Lookup{SourceRegister: rNext, SetName: model.ClusterIPs.Shape(l.Family).Name}}
	b.rule("frontends", append(append([]any{}, inUse...), b.proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})...)
	b.rule("frontends", append(inUse, b.unreachable())...)

	b.rule("postrouting", &expr.Meta{Key: expr.MetaKeyMARK, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(l.MarkBit), Xor: num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rTmp, Data: num(0)},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "masquerade"})
	dnat := []any{&expr.Ct{Key: expr.CtKeySTATUS, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(ctStatusDNAT), Xor: num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rTmp, Data: num(0)}}
	masq := &expr.Masq{FullyRandom: true}
	b.rule("postrouting", append(append([]any{}, dnat...), b.saddr(rNext), b.daddr(rNext+b.regs()),
		&expr.Lookup{SourceRegister: rNext, SetName: model.Hairpin.Shape(l.Family).Name}, masq)...)
	if l.SameBridge != "" {
		b.rule("postrouting", append(append([]any{}, dnat...),
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: ifname(l.SameBridge)},
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: unix.NFT_REG_1}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: ifname(l.SameBridge)}, masq)...)
	}
	b.rule("masquerade", &expr.Meta{Key: expr.MetaKeyMARK, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(^l.MarkBit), Xor: num(0)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: rTmp}, masq)
}

// ctStatusDNAT is IPS_DST_NAT of the kernel's connection tracking.
const ctStatusDNAT = 1 << 5

func (b builder) sets() {
	addr := TypeIPv4
	if b.Family == model.V6 {
		addr = TypeIPv6
	}
	shape := func(t model.Table, key []Type, value ...Type) {
		s := t.Shape(b.Family)
		if width(key) != s.Key || width(value) != s.Value {
			panic("nft: table " + s.Name + " has another shape than its rows")
		}
		b.tx.Add(Op{Verb: AddSet, Name: s.Name, Set: &Set{Name: s.Name, Key: key, Value: value, Interval: s.Interval}})
	}
	shape(model.Services, []Type{addr, TypeProto, TypePort}, TypeMark)
	shape(model.ServiceIDs, []Type{addr, TypeProto, TypePort}, TypeMark)
	shape(model.NodePorts, []Type{TypeProto, TypePort}, TypeMark)
	shape(model.NodePortIDs, []Type{TypeProto, TypePort}, TypeMark)
	shape(model.Endpoints, []Type{TypeMark, TypeMark}, addr, TypePort)
	shape(model.Members, []Type{TypeMark, addr, TypePort})
	shape(model.LocalMembers, []Type{TypeMark, addr, TypePort})
	shape(model.Hairpin, []Type{addr, addr})
	shape(model.ClusterIPs, []Type{addr})
	shape(model.NodeAddrs, []Type{addr})
	shape(model.Ranges, []Type{TypeMark, addr})
	b.tx.Add(Op{Verb: AddSet, Name: classesMap, Set: &Set{Name: classesMap, Key: []Type{TypeMark}, Verdict: true}})
	b.tx.Add(Op{Verb: AddSet, Name: affinityMap, Set: &Set{Name: affinityMap, Key: []Type{TypeMark, addr}, Value: []Type{addr, TypePort}, Dynamic: true}})
}

// AddClass appends the chain of a class and its number. The chain must not
// have rules yet.
func (l Layout) AddClass(tx *Tx, c model.ClassID) {
	b := builder{l, tx}
	name := c.Class.Name()
	tx.Add(Op{Verb: AddChain, Name: name})
	b.class(name, c.Class)
	tx.Add(Op{Verb: AddVerdict, Name: name, Key: c.ID})
}

func (b builder) class(name string, c model.Class) {
	table := model.ServiceIDs
	key := b.vipKey
	if c.NodePort {
		table, key = model.NodePortIDs, b.portKey
	}
	id := []any{key(), b.find(table, rID)}
	if c.Ranges {
		b.rule(name, append(append([]any{}, id...), b.saddr(rNext),
			&expr.Lookup{SourceRegister: rID, SetName: model.Ranges.Shape(b.Family).Name, Invert: true}, &expr.Verdict{Kind: expr.VerdictDrop})...)
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
	p := pick{id: id, again: b.find(table, rClient), affinity: time.Duration(c.Affinity) * time.Second}
	switch {
	case !c.External && b.MasqueradeAll:
		b.rule(name, b.mark())
	case !c.External && b.hasLocal():
		b.rule(name, b.isLocal(false), b.mark())
	case c.External && !c.LocalPolicy:
		b.rule(name, b.mark())
	case c.External && c.Cluster > 0:
		// The two exceptions from a Local policy: pods here are served as
		// in the cluster, and the node itself too, but masqueraded.
		whole := name + "-whole"
		b.tx.Add(Op{Verb: AddChain, Name: whole})
		b.pick(whole, p, model.Members, 0, c.Cluster)
		to := &expr.Verdict{Kind: expr.VerdictGoto, Chain: whole}
		if b.hasLocal() {
			b.rule(name, b.isLocal(true), to)
		}
		b.rule(name, b.addrType(true), &expr.Cmp{Op: expr.CmpOpEq, Register: rTmp, Data: num(unix.RTN_LOCAL)}, b.mark(), to)
	}
	if c.LocalPolicy {
		b.pick(name, p, model.LocalMembers, model.LocalBase, c.Local)
	} else {
		b.pick(name, p, model.Members, 0, c.Cluster)
	}
}

// pick is what choosing an endpoint depends on beside the pool.
type pick struct {
	// id brings the id to rID, again to rClient.
	id       []any
	again    expr.Any
	affinity time.Duration
}

// pick appends the rules that send a connection to one of n endpoints.
func (b builder) pick(chain string, p pick, members model.Table, base uint32, n int) {
	port := rNext + b.regs()
	to := &expr.NAT{Type: expr.NATTypeDestNAT, Family: b.proto32(), RegAddrMin: rNext, RegProtoMin: port, Specified: true}
	remember := func(rule []any) []any {
		if p.affinity == 0 {
			return append(rule, to)
		}
		// The choice lies behind the id at rID; the key of the affinity
		// map needs the id once more, in front of the client.
		return append(rule, p.again, b.saddr(rClient+1),
			&expr.Dynset{SrcRegKey: rClient, SrcRegData: rNext, SetName: affinityMap, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: p.affinity}, to)
	}
	if p.affinity > 0 && n > 0 {
		b.rule(chain, remember(append(append([]any{}, p.id...), b.saddr(rNext),
			&expr.Lookup{SourceRegister: rID, SetName: affinityMap, DestRegister: rNext, IsDestRegSet: true},
			&expr.Lookup{SourceRegister: rID, SetName: members.Shape(b.Family).Name}))...)
	}
	// A packet between two generations may ask for an index that has just
	// gone; index 0 is there as long as there is any endpoint.
	// The third try is for lookups that began before a row was replaced.
	for _, mod := range []int{n, 1, n} {
		if n == 0 {
			break
		}
		b.rule(chain, remember(append(append([]any{}, p.id...),
			&expr.Numgen{Register: rNext, Modulus: uint32(mod), Type: unix.NFT_NG_RANDOM, Offset: base},
			&expr.Lookup{SourceRegister: rID, SetName: model.Endpoints.Shape(b.Family).Name, DestRegister: rNext, IsDestRegSet: true}))...)
	}
	b.rule(chain, &expr.Verdict{Kind: expr.VerdictDrop})
}

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

func (b builder) vipKey() []expr.Any {
	r := rKey + b.regs()
	return []expr.Any{b.daddr(rKey), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r},
		&expr.Payload{DestRegister: r + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func (b builder) portKey() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: rKey},
		&expr.Payload{DestRegister: rKey + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func (b builder) find(t model.Table, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: rKey, SetName: t.Shape(b.Family).Name, DestRegister: to, IsDestRegSet: true}
}

func (b builder) toClass() expr.Any {
	return &expr.Lookup{SourceRegister: rClass, SetName: classesMap, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true}
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

func (b builder) addrType(source bool) expr.Any {
	return &expr.Fib{Register: rTmp, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source}
}

func (b builder) mark() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: rTmp},
		&expr.Bitwise{SourceRegister: rTmp, DestRegister: rTmp, Len: 4, Mask: num(^b.MarkBit), Xor: num(b.MarkBit)},
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
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1}, &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: ifname(b.LocalBridge)}}
	case b.LocalPrefix != "":
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1}, &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte(b.LocalPrefix)}}
	}
	// One CIDR a family: the configuration allows no more.
	p := b.LocalCIDRs[0].Masked()
	return []expr.Any{b.saddr(rNext), &expr.Bitwise{SourceRegister: rNext, DestRegister: rNext, Len: uint32(b.Family.AddrLen()), Mask: mask(p), Xor: make([]byte, b.Family.AddrLen())},
		&expr.Cmp{Op: op, Register: rNext, Data: p.Addr().AsSlice()}}
}

func (b builder) notLoopback() []expr.Any {
	lo := netip.MustParsePrefix("127.0.0.0/8")
	if b.Family == model.V6 {
		lo = netip.MustParsePrefix("::1/128")
	}
	return []expr.Any{b.daddr(rNext), &expr.Bitwise{SourceRegister: rNext, DestRegister: rNext, Len: uint32(b.Family.AddrLen()), Mask: mask(lo), Xor: make([]byte, b.Family.AddrLen())},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: rNext, Data: lo.Addr().AsSlice()}}
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

// Classes reads the numbers of the class chains of a table.
func Classes(k Kernel, f model.Family, table string) (map[uint32]string, error) {
	out := map[uint32]string{}
	err := k.Rows(f, table, classesMap, func(key, chain []byte) bool {
		if len(key) == 4 {
			out[binary.NativeEndian.Uint32(key)] = string(chain)
		}
		return true
	})
	return out, err
}
