package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
)

// R0 is the first register of four bytes: an IPv6 address takes four of them.
const R0 = unix.NFT_REG32_00

const (
	// CtStatusDNAT is IPS_DST_NAT of the kernel's connection tracking.
	CtStatusDNAT = 1 << 5
	// DynsetDelete is NFT_DYNSET_OP_DELETE.
	DynsetDelete = 2
)

// Saddr loads the source address of a packet.
func Saddr(f row.Family, reg uint32) expr.Any { return address(f, reg, 12, 8) }

// Daddr loads the destination address of a packet.
func Daddr(f row.Family, reg uint32) expr.Any { return address(f, reg, 16, 24) }

func address(f row.Family, reg, v4, v6 uint32) expr.Any {
	at := v4
	if f == row.V6 {
		at = v6
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: uint32(f.AddrLen())}
}

// Within matches an address, which load brings to R0, that lies in a prefix, or
// outside.
func Within(load expr.Any, p netip.Prefix, want bool) []expr.Any {
	op := expr.CmpOpEq
	if !want {
		op = expr.CmpOpNeq
	}
	size := p.Addr().BitLen() / 8
	out := []expr.Any{load}
	if p.Bits() < 8*size {
		out = append(out, &expr.Bitwise{SourceRegister: R0, DestRegister: R0, Len: uint32(size), Mask: mask(p), Xor: make([]byte, size)})
	}
	return append(out, &expr.Cmp{Op: op, Register: R0, Data: p.Addr().AsSlice()})
}

func mask(p netip.Prefix) []byte {
	m := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// Link matches a packet's interface, which key names, by its name.
func Link(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: R0}, &expr.Cmp{Op: expr.CmpOpEq, Register: R0, Data: Ifname(name)}}
}

// Proto matches the transport protocol of a packet.
func Proto(n byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: R0}, &expr.Cmp{Op: expr.CmpOpEq, Register: R0, Data: []byte{n}}}
}

// Jump goes to a chain and comes back, Goto does not.
func Jump(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }

// Goto goes to a chain and does not come back.
func Goto(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// Num is a number as rules compare what is no part of a packet.
func Num(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Ifname is an interface name as the kernel compares it: padded with zeros.
func Ifname(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

// Rule appends a rule; parts are expressions or lists of them.
func (t *Tx) Rule(chain string, parts ...any) {
	var es []expr.Any
	for _, p := range parts {
		switch p := p.(type) {
		case []expr.Any:
			es = append(es, p...)
		case expr.Any:
			es = append(es, p)
		}
	}
	t.Add(Op{Verb: AddRule, Name: chain, Rule: es})
}

// Replace begins a transaction that makes a table again, whatever stands:
// adding it first makes the deletion succeed on what is not there.
func Replace(f row.Family, table string) *Tx {
	tx := Remove(f, table)
	tx.Add(Op{Verb: AddTable})
	return tx
}

// Remove is a transaction that deletes a table; it is no error when there is none.
func Remove(f row.Family, table string) *Tx {
	tx := NewTx(f, table)
	tx.Add(Op{Verb: AddTable})
	tx.Add(Op{Verb: DeleteTable})
	return tx
}
