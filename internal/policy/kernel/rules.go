package kernel

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/policy/model"
)

// The registers a rule builds its key in: four bytes each, an IPv6 address
// takes four.
const reg = unix.NFT_REG32_00

func (f *family) regs() uint32 { return f.addr.Bytes / 4 }

// set names a set with the types of its key.
func (f *family) set(name string, k model.Kind) *nftables.Set {
	s := &nftables.Set{Table: f.table, Name: name, KeyType: f.addr}
	switch k {
	case model.Blocks:
		s.Interval = true
	case model.Named:
		s.KeyType = nftables.MustConcatSetType(f.addr, nftables.TypeInetProto, nftables.TypeInetService)
		s.Concatenation = true
	case model.Selves:
		s.KeyType = nftables.MustConcatSetType(f.addr, f.addr)
		s.Concatenation = true
	}
	return s
}

// dispatch is the map from a pod of this node to its profile.
func (f *family) dispatch(d model.Direction) *nftables.Set {
	return &nftables.Set{Table: f.table, Name: "guarded-" + d.String(), IsMap: true, KeyType: f.addr, DataType: nftables.TypeVerdict}
}

func (f *family) addSet(conn *nftables.Conn, s model.Set) error {
	set := f.set(s.Name, s.Kind)
	if err := conn.AddSet(set, nil); err != nil {
		return err
	}
	var elements []nftables.SetElement
	for _, b := range s.Blocks {
		if b.First.Is6() == f.v6 {
			elements = append(elements, interval(b)...)
		}
	}
	for len(elements) > 0 {
		n := min(len(elements), chunk)
		if err := conn.SetAddElements(set, elements[:n]); err != nil {
			return err
		}
		elements = elements[n:]
	}
	return nil
}

// interval is where a range begins and where it has ended; one that reaches
// to the last address has no end.
func interval(r model.AddrRange) []nftables.SetElement {
	out := []nftables.SetElement{{Key: r.First.AsSlice()}}
	if next := r.Last.Next(); next.IsValid() {
		out = append(out, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
	}
	return out
}

func portKey(proto uint8, port uint16) []byte {
	return append([]byte{proto, 0, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(port)<<16)...)
}

func element(r model.Row) nftables.SetElement {
	key := r.Addr.AsSlice()
	switch r.Kind {
	case model.Named:
		key = append(key, portKey(r.Proto, r.Port)...)
	case model.Selves:
		key = append(key, key...)
	}
	return nftables.SetElement{Key: key}
}

// frame makes what every table has, but for what hook makes.
func (f *family) frame(conn *nftables.Conn) error {
	if err := conn.AddSet(f.set(model.SelfSet, model.Selves), nil); err != nil {
		return err
	}
	for _, d := range []model.Direction{model.Egress, model.Ingress} {
		if err := conn.AddSet(f.dispatch(d), nil); err != nil {
			return err
		}
	}
	return nil
}

// hook makes the two chains that packets enter.
func (f *family) hook(conn *nftables.Conn, _ *model.Changes) error {
	// What a node's own processes send or get does not pass the forward hook:
	// probes reach every pod, and pods reach the node.
	for _, d := range []model.Direction{model.Egress, model.Ingress} {
		accept, priority := nftables.ChainPolicyAccept, nftables.ChainPriority(model.Egress-d)
		chain := conn.AddChain(&nftables.Chain{Table: f.table, Name: d.String(), Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: &priority, Policy: &accept})
		for _, exprs := range f.base(d) {
			conn.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: exprs})
		}
	}
	return nil
}

func (f *family) base(d model.Direction) [][]expr.Any {
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	rules := [][]expr.Any{{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: native(0)}, accept,
	}}
	if f.v6 {
		// Neighbours and multicast groups are found by ICMPv6 (130-137, 143),
		// which passes here between ports of a bridge.
		kind := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_ICMPV6}},
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}}
		rules = append(rules,
			append(kind[:3:3], &expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: []byte{130}}, &expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: []byte{137}}, accept),
			append(kind[:3:3], &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{143}}, accept))
	}
	rules = append(rules, []expr.Any{f.saddr(reg), f.daddr(reg + f.regs()), &expr.Lookup{SourceRegister: reg, SetName: model.SelfSet}, accept})
	// Twice: while a row is replaced, a lookup that began before the change
	// can miss both the old row and the new one.
	guarded := []expr.Any{f.guarded(d), &expr.Lookup{SourceRegister: reg, SetName: f.dispatch(d).Name, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}}
	return append(rules, guarded, guarded)
}

// rule is one rule of a profile or a policy.
func (f *family) rule(d model.Direction, r model.Rule) []expr.Any {
	if r.Jump != "" {
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: r.Jump}}
	}
	if !r.Accept {
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	}
	var out []expr.Any
	if r.Peers != "" {
		out = append(out, f.other(d), &expr.Lookup{SourceRegister: reg, SetName: r.Peers})
	}
	port := func(to uint32) expr.Any {
		return &expr.Payload{DestRegister: to, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	}
	if r.Named != "" {
		at := reg + f.regs()
		out = append(out, f.daddr(reg), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: at}, port(at+1),
			&expr.Lookup{SourceRegister: reg, SetName: r.Named})
	}
	if p := r.Ports; p.Proto != 0 {
		out = append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{p.Proto}})
		first, last := binary.BigEndian.AppendUint16(nil, p.First), binary.BigEndian.AppendUint16(nil, p.Last)
		switch {
		case p.First == p.Last:
			out = append(out, port(reg), &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: first})
		case p.First > 0 || p.Last < 65535:
			out = append(out, port(reg), &expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: first, ToData: last})
		}
	}
	return append(out, &expr.Verdict{Kind: expr.VerdictAccept})
}

// guarded loads the address of the pod a direction guards, other that of who
// it talks to.
func (f *family) guarded(d model.Direction) expr.Any {
	if d == model.Egress {
		return f.saddr(reg)
	}
	return f.daddr(reg)
}

func (f *family) other(d model.Direction) expr.Any { return f.guarded(model.Egress - d) }

func (f *family) saddr(to uint32) expr.Any {
	at := uint32(12)
	if f.v6 {
		at = 8
	}
	return &expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: f.addr.Bytes}
}

func (f *family) daddr(to uint32) expr.Any {
	at := uint32(16)
	if f.v6 {
		at = 24
	}
	return &expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: f.addr.Bytes}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
