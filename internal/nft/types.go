package nft

import (
	"encoding/binary"

	"github.com/google/nftables/expr"

	"github.com/berth-dev/berth/internal/nft/row"
)

// Type is one field of a key or value: the number nft knows its type by, its
// length in bytes, and the expression that nft prints in a "typeof".
type Type struct {
	magic uint32
	len   int
	expr  []byte
}

// Numbers nft gives to expressions and protocols in what it stores with a set.
const (
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	descTH  = 11
	descIP  = 12
	descIP6 = 13

	thDport = 2
)

// Field types.
var (
	TypeProto = Type{12, 1, typeof(exprMeta, uint32(expr.MetaKeyL4PROTO))}
	TypePort  = Type{13, 2, typeof(exprPayload, descTH, thDport)}
	// TypePriority is a packet's priority, where rules carry numbers.
	TypePriority = Type{23, 4, typeof(exprMeta, uint32(expr.MetaKeyPRIORITY))}
	// TypeLink is the index of an interface, TypeMAC a hardware address.
	TypeLink = Type{40, 4, typeof(exprMeta, uint32(expr.MetaKeyIIF))}
	TypeMAC  = Type{9, 6, nil}
	// TypeIndex is what numgen makes; nft has no name for its type, so that
	// sets with such a field are declared by their expressions.
	TypeIndex = Type{4, 4, typeof(exprNumgen, 1, 4, 0)}
)

// fields are the fields that depend on the family.
type fields struct{ Saddr, Daddr Type }

// FieldsOf returns the source and destination address of a family.
func FieldsOf(f row.Family) fields {
	if f == row.V6 {
		return fields{Type{8, 16, typeof(exprPayload, descIP6, 8)}, Type{8, 16, typeof(exprPayload, descIP6, 9)}}
	}
	return fields{Type{7, 4, typeof(exprPayload, descIP, 11)}, Type{7, 4, typeof(exprPayload, descIP, 12)}}
}

// tlv is an attribute of what nft stores with a set.
func tlv(typ byte, data ...byte) []byte { return append([]byte{typ, byte(len(data))}, data...) }

func tlv32(typ byte, n uint32) []byte {
	return tlv(typ, binary.NativeEndian.AppendUint32(nil, n)...)
}

// typeof encodes an expression with its numbered arguments.
func typeof(kind uint32, args ...uint32) []byte {
	var in []byte
	for i, a := range args {
		in = append(in, tlv32(byte(i), a)...)
	}
	return append(tlv32(0, kind), tlv(1, in...)...)
}

func typeofAll(ts []Type) []byte {
	if len(ts) == 1 {
		return ts[0].expr
	}
	var in []byte
	for i, t := range ts {
		in = append(in, tlv(byte(i), t.expr...)...)
	}
	return append(tlv32(0, exprConcat), tlv(1, in...)...)
}

// userdata is what nft wants to find with a set that has no plain type.
func (s *Set) userdata() []byte {
	plain := true
	for _, t := range s.Key {
		plain = plain && t.magic != TypeIndex.magic
	}
	if plain {
		return nil
	}
	out := tlv32(0, 0) // byte order of a concatenation: none
	isMap := len(s.Value) > 0
	if isMap {
		out = append(out, tlv32(1, 0)...)
	}
	out = append(out, tlv(3, typeofAll(s.Key)...)...)
	if isMap {
		out = append(out, tlv(4, typeofAll(s.Value)...)...)
	}
	return append(out, tlv32(6, 0)...)
}
