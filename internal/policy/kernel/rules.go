package kernel

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
	"github.com/berth-dev/berth/internal/policy/model"
)

// reg is the first of the registers a rule builds its key in: four bytes each,
// an IPv6 address takes four.
const reg = nft.R0

// family is a table of one address family.
type family struct {
	row.Family
	table string
}

func (f *family) regs() uint32 { return uint32(f.AddrLen() / 4) }

// has says whether an address belongs to the family.
func (f *family) has(a netip.Addr) bool { return a.Is6() == (f.Family == row.V6) }

// shape is that of a set's rows.
func (f *family) shape(name string, k model.Kind) row.Shape {
	s := row.Shape{Name: name, Key: f.AddrLen()}
	switch k {
	case model.Blocks:
		s.Interval, s.Single = true, true
	case model.Named:
		s.Key += 8
	case model.Selves:
		s.Key *= 2
	}
	return s
}

// set declares a set with the types of its key.
func (f *family) set(name string, k model.Kind) *nft.Set {
	of := nft.FieldsOf(f.Family)
	s := &nft.Set{Name: name, Key: []nft.Type{of.Daddr}}
	switch k {
	case model.Blocks:
		s.Interval = true
	case model.Named:
		s.Key = []nft.Type{of.Daddr, nft.TypeProto, nft.TypePort}
	case model.Selves:
		s.Key = []nft.Type{of.Saddr, of.Daddr}
	}
	return s
}

// dispatch names the map from a pod of this node to its profile.
func dispatch(d model.Direction) string { return "guarded-" + d.String() }

func (f *family) dispatchShape(d model.Direction) row.Shape {
	return row.Shape{Name: dispatch(d), Key: f.AddrLen(), Value: row.ChainLen, Chains: true}
}

func (f *family) addSet(tx *nft.Tx, s model.Set) {
	tx.Add(nft.Op{Verb: nft.AddSet, Name: s.Name, Set: f.set(s.Name, s.Kind)})
	var rows []byte
	for _, b := range s.Blocks {
		if f.has(b.First) {
			rows = append(append(rows, b.First.AsSlice()...), b.Last.AsSlice()...)
		}
	}
	if len(rows) > 0 {
		tx.Add(nft.Op{Verb: nft.AddRows, Name: s.Name, Shape: f.shape(s.Name, s.Kind), Rows: rows})
	}
}

// put appends the key of a row.
func put(b []byte, r model.Row) []byte {
	addr := r.Addr.AsSlice()
	b = append(b, addr...)
	switch r.Kind {
	case model.Named:
		b = binary.BigEndian.AppendUint16(append(b, r.Proto, 0, 0, 0), r.Port)
		b = append(b, 0, 0)
	case model.Selves:
		b = append(b, addr...)
	}
	return b
}

// frame makes what every table has, but for what hook makes.
func (f *family) frame(tx *nft.Tx) {
	tx.Add(nft.Op{Verb: nft.AddSet, Name: model.SelfSet, Set: f.set(model.SelfSet, model.Selves)})
	for _, d := range directions {
		tx.Add(nft.Op{Verb: nft.AddSet, Name: dispatch(d), Set: &nft.Set{Name: dispatch(d), Key: []nft.Type{nft.FieldsOf(f.Family).Daddr},
			Chains: true}})
	}
}

// directions in the order in which packets meet them.
var directions = []model.Direction{model.Egress, model.Ingress}

// hook makes the two chains that packets enter.
func (f *family) hook(tx *nft.Tx) {
	// What a node's own processes send or get does not pass the forward hook:
	// probes reach every pod, and pods reach the node.
	for _, d := range directions {
		tx.Add(nft.Op{Verb: nft.AddChain, Name: d.String(), Hook: &nft.Hook{Num: unix.NF_INET_FORWARD, Priority: int32(model.Egress - d),
			Type: "filter"}})
		f.base(tx, d)
	}
}

func (f *family) base(tx *nft.Tx, d model.Direction) {
	chain, accept := d.String(), &expr.Verdict{Kind: expr.VerdictAccept}
	tx.Rule(chain, &expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: nft.Num(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
			Xor: nft.Num(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: nft.Num(0)}, accept)
	if f.Family == row.V6 {
		// Neighbours and multicast groups are found by ICMPv6 (130-137, 143),
		// which passes here between ports of a bridge.
		kind := append(nft.Proto(unix.IPPROTO_ICMPV6), &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0,
			Len: 1})
		tx.Rule(chain, kind, &expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: []byte{130}}, &expr.Cmp{Op: expr.CmpOpLte, Register: reg,
			Data: []byte{137}}, accept)
		tx.Rule(chain, kind, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{143}}, accept)
	}
	tx.Rule(chain, nft.Saddr(f.Family, reg), nft.Daddr(f.Family, reg+f.regs()), &expr.Lookup{SourceRegister: reg, SetName: model.SelfSet},
		accept)
	// Twice: while a row is replaced, a lookup that began before the change
	// can miss both the old row and the new one.
	for range 2 {
		tx.Rule(chain, f.guarded(d), &expr.Lookup{SourceRegister: reg, SetName: dispatch(d), IsDestRegSet: true,
			DestRegister: unix.NFT_REG_VERDICT})
	}
}

// rule is one rule of a profile or a policy.
func (f *family) rule(d model.Direction, r model.Rule) []expr.Any {
	if r.Jump != "" {
		return []expr.Any{nft.Jump(r.Jump)}
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
		out = append(out, nft.Daddr(f.Family, reg), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: at}, port(at+1),
			&expr.Lookup{SourceRegister: reg, SetName: r.Named})
	}
	if p := r.Ports; p.Proto != 0 {
		out = append(out, nft.Proto(p.Proto)...)
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
		return nft.Saddr(f.Family, reg)
	}
	return nft.Daddr(f.Family, reg)
}

func (f *family) other(d model.Direction) expr.Any { return f.guarded(model.Egress - d) }
