package nft

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// stickyPrefix begins the names of the chains of service ports with affinity.
const stickyPrefix = "sticky-"

// StickyName is the name of such a chain.
func StickyName(id uint32, pool model.Pool) string {
	if pool == model.LocalPool {
		return fmt.Sprintf("%s%08x-local", stickyPrefix, id)
	}
	return fmt.Sprintf("%s%08x", stickyPrefix, id)
}

// ParseStickyName reverses StickyName.
func ParseStickyName(name string) (id uint32, pool model.Pool, ok bool) {
	rest, ok := strings.CutPrefix(name, stickyPrefix)
	if !ok {
		return 0, 0, false
	}
	if r, isLocal := strings.CutSuffix(rest, "-local"); isLocal {
		rest, pool = r, model.LocalPool
	}
	n, err := strconv.ParseUint(rest, 16, 32)
	return uint32(n), pool, err == nil
}

// WriteSticky makes the chain of a service port with affinity hold what c
// says: first the endpoint the client had, then a ladder over all of them.
func (l Layout) WriteSticky(tx *Tx, c model.StickyChain) {
	b, name := builder{l, tx}, StickyName(c.ID, c.Pool)
	tx.Add(Op{Verb: AddChain, Name: name})
	tx.Add(Op{Verb: FlushChain, Name: name})
	memory := func(e model.StickyEndpoint) []expr.Any {
		return []expr.Any{constant(r0, c.ID), b.saddr(r0 + 1), constant(r0+1+b.regs(), e.ID)}
	}
	take := func(e model.StickyEndpoint) []expr.Any {
		port := r0 + b.regs()
		return append(memory(e),
			&expr.Dynset{SrcRegKey: r0, SetName: affinitySet, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Duration(c.Timeout) * time.Second},
			&expr.Immediate{Register: r0, Data: e.At.Addr().AsSlice()}, &expr.Immediate{Register: port, Data: binary.BigEndian.AppendUint16(nil, e.At.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: b.proto32(), RegAddrMin: r0, RegProtoMin: port, Specified: true})
	}
	for _, e := range c.Endpoints {
		b.rule(name, b.proto(c.Proto), memory(e), &expr.Lookup{SourceRegister: r0, SetName: affinitySet}, take(e))
	}
	for i, e := range c.Endpoints {
		b.rule(name, b.proto(c.Proto), &expr.Numgen{Register: r0, Modulus: uint32(len(c.Endpoints) - i), Type: unix.NFT_NG_RANDOM},
			&expr.Cmp{Op: expr.CmpOpEq, Register: r0, Data: num(0)}, take(e))
	}
}

// DeleteSticky takes such a chain away; nothing may lead to it any more.
func (l Layout) DeleteSticky(tx *Tx, c model.StickyChain) {
	tx.Add(Op{Verb: FlushChain, Name: StickyName(c.ID, c.Pool)})
	tx.Add(Op{Verb: DeleteChain, Name: StickyName(c.ID, c.Pool)})
}

// StickyRules lists the rules of such a chain in words.
func (l Layout) StickyRules(c model.StickyChain) []string {
	tx := NewTx(l.Family, "")
	l.WriteSticky(tx, c)
	return tx.rules()[StickyName(c.ID, c.Pool)]
}
