package rules

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// How a client returns to its endpoint: the service port's number is looked up
// by the frontend (owner), the endpoint's by that and the client (known), and
// then where that endpoint is (take). A number goes from one rule to the next in
// the packet's priority, since nft cannot print a rule in which one lookup's
// result is the key of another. Anyone who is not known, or whose endpoint is gone,
// is forgotten, given one by the draw and remembered.
//
// The rules of a chain that other chains jump to look into maps; the rules of
// classes do not, for the reason told at shared.

// affinityName is the map of the clients remembered for so many seconds.
func affinityName(timeout int) string { return fmt.Sprintf("affinity-%d", timeout) }

func ownerName(nodePort bool) string {
	if nodePort {
		return "sticky-owner-nodeport"
	}
	return "sticky-owner"
}

func poolSuffix(pool model.Pool) string {
	if pool == model.LocalPool {
		return "-local"
	}
	return ""
}

func dialName(pool model.Pool) string { return "sticky-dial" + poolSuffix(pool) }
func tossName(pool model.Pool, n int) string {
	return fmt.Sprintf("sticky-draw%s-%d", poolSuffix(pool), n)
}
func tossesName(pool model.Pool, n int) string {
	return fmt.Sprintf("sticky-pick%s-%d", poolSuffix(pool), n)
}
func knownName(pool model.Pool, timeout int) string {
	return fmt.Sprintf("sticky-known%s-%d", poolSuffix(pool), timeout)
}
func takeName(pool model.Pool, timeout int) string {
	return fmt.Sprintf("sticky-take%s-%d", poolSuffix(pool), timeout)
}
func rememberName(timeout int) string { return fmt.Sprintf("sticky-remember-%d", timeout) }
func forgetName(timeout int) string   { return fmt.Sprintf("sticky-forget-%d", timeout) }

var pools = []model.Pool{model.ClusterPool, model.LocalPool}

// number loads the packet's priority; setNumber stores it.
func number(reg uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg} }
func setNumber(reg uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg}
}

// port loads the part of the number that tells the service port.
func port(reg uint32) []expr.Any {
	return []expr.Any{number(reg), &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: nft.Num(model.StickyPort),
		Xor: nft.Num(0)}}
}

func noNumber() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: r0, Data: nft.Num(0)}, setNumber(r0)}
}

func find(t model.Table, f model.Family) expr.Any {
	return &expr.Lookup{SourceRegister: r0, SetName: t.Shape(f).Name, DestRegister: r0, IsDestRegSet: true}
}

func (b builder) chain(name string, rules ...[]any) {
	b.tx.Add(nft.Op{Verb: nft.AddChain, Name: name})
	for _, r := range rules {
		b.rule(name, r...)
	}
}

// sharedSticky makes those chains of affinity that do not depend on its timeout.
func (b builder) sharedSticky() {
	for _, nodePort := range []bool{false, true} {
		t := model.Sticky
		if nodePort {
			t = model.StickyNodePorts
		}
		b.chain(ownerName(nodePort), []any{noNumber()}, []any{b.key(nodePort, r0), find(t, b.Family), setNumber(r0)})
	}
	for _, pool := range pools {
		t := model.StickyEndpoints
		if pool == model.LocalPool {
			t = model.StickyLocal
		}
		b.chain(dialName(pool))
		// One rule would do, but nft asks for the protocol when it loads ports.
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			b.rule(dialName(pool), nft.Proto(proto), number(r0), find(t, b.Family), b.dnat())
		}
		for n := 1; n <= largestOf(pool); n *= 2 {
			b.chain(tossName(pool, n), []any{b.toss(pool, n)})
			b.chain(tossesName(pool, n))
			choose(n, func(mod int) { b.rule(tossesName(pool, n), nft.Jump(tossName(pool, mod))) })
		}
	}
}

// toss draws an index of a pool, once, and sets the number to that of the
// endpoint that has it. After one that hit nothing comes of others.
func (b builder) toss(pool model.Pool, n int) []expr.Any {
	return []expr.Any{number(r0), &expr.Numgen{Register: r0 + 1, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM,
		Offset: uint32(pool) * model.LocalBase},
		find(model.Picks, b.Family), setNumber(r0)}
}

// AddTimeout appends the map of the clients remembered for so many seconds, and
// the chains that look into it. They must not exist.
func (l Layout) AddTimeout(tx *nft.Tx, seconds int) {
	b, name := builder{l, tx}, affinityName(seconds)
	tx.Add(nft.Op{Verb: nft.AddSet, Name: name, Set: affinitySet(name, l.Family)})
	// An entry that is there keeps its endpoint, and is kept longer.
	b.chain(rememberName(seconds), b.write(name, unix.NFT_DYNSET_OP_UPDATE, time.Duration(seconds)*time.Second))
	b.chain(forgetName(seconds), b.write(name, nft.DynsetDelete, 0), []any{port(r0), setNumber(r0)})
	for _, pool := range pools {
		b.chain(takeName(pool, seconds), []any{nft.Jump(rememberName(seconds))}, []any{nft.Jump(dialName(pool))})
		b.chain(knownName(pool, seconds), []any{number(r0), b.saddr(r0 + 1),
			&expr.Lookup{SourceRegister: r0, SetName: name, DestRegister: r0, IsDestRegSet: true}, setNumber(r0),
			nft.Jump(takeName(pool, seconds))})
	}
}

// affinitySet is a map of the endpoints that clients had.
func affinitySet(name string, f model.Family) *nft.Set {
	return &nft.Set{Name: name, Key: []nft.Type{nft.TypePriority, nft.FieldsOf(f).Saddr}, Value: []nft.Type{nft.TypePriority},
		Dynamic: true}
}

// write changes the entry of the packet's client in such a map.
func (b builder) write(set string, op uint32, timeout time.Duration) []any {
	data := r0 + 1 + b.regs()
	return []any{port(r0), b.saddr(r0 + 1), number(data), &expr.Dynset{SrcRegKey: r0, SrcRegData: data, SetName: set, Operation: op,
		Timeout: timeout}}
}

// stick appends the rules that send a connection of a class with affinity to
// the endpoint the client had, or else to one that is drawn and remembered. What
// they leave over (whose rows are just going) is served as without affinity.
func (b builder) stick(chain string, c model.Class, pool model.Pool, n int) {
	b.rule(chain, nft.Jump(ownerName(c.NodePort)))
	b.rule(chain, nft.Jump(knownName(pool, c.Timeout)))
	b.rule(chain, nft.Jump(forgetName(c.Timeout)))
	if n <= largestOf(pool) {
		b.rule(chain, nft.Jump(tossesName(pool, n)))
	} else {
		choose(n, func(mod int) { b.rule(chain, b.toss(pool, mod)) })
	}
	// Of two first connections at once, both get what is remembered.
	b.rule(chain, nft.Jump(rememberName(c.Timeout)))
	b.rule(chain, port(r0), setNumber(r0))
	b.rule(chain, nft.Jump(knownName(pool, c.Timeout)))
}

// unmark takes the number from a packet that leaves: what it is queued by is
// none of our business.
func (b builder) unmark() {
	b.rule("postrouting", number(r0), &expr.Byteorder{SourceRegister: r0, DestRegister: r0, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpGte, Register: r0, Data: binary.BigEndian.AppendUint32(nil, model.StickyFlag)}, noNumber())
}

// timeouts lists the timeouts of classes, each once.
func timeouts(classes []model.Class) []int {
	var out []int
	for _, c := range classes {
		if c.Timeout > 0 {
			out = append(out, c.Timeout)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
