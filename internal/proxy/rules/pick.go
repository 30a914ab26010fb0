package rules

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// pickName is the chain that chooses from a pool of a size rounded up.
func pickName(nodePort bool, pool model.Pool, n int) string {
	name := "pick"
	if nodePort {
		name += "-nodeport"
	}
	if pool == model.LocalPool {
		name += "-local"
	}
	return fmt.Sprintf("%s-%d", name, n)
}

// drawName is the chain that draws from a pool of a size rounded up, once.
func drawName(nodePort bool, pool model.Pool, n int) string {
	return "draw" + strings.TrimPrefix(pickName(nodePort, pool, n), "pick")
}

// shared makes the chains that choose an endpoint while their maps are empty:
// a rule of a new chain that looks into a map makes the kernel go through the
// whole map. So no class that comes later pays for the size of the cluster.
//
// Every rule that looks into a map is also gone through by the kernel for every
// row that comes: a draw is one rule of one chain, to which all others jump.
func (b builder) shared() {
	b.sharedSticky()
	for _, nodePort := range []bool{false, true} {
		for _, pool := range pools {
			for n := 1; n <= largestOf(pool); n *= 2 {
				name := drawName(nodePort, pool, n)
				b.tx.Add(nft.Op{Verb: nft.AddChain, Name: name})
				b.rule(name, b.draw(nodePort, pool, n))
				name = pickName(nodePort, pool, n)
				b.tx.Add(nft.Op{Verb: nft.AddChain, Name: name})
				choose(n, func(mod int) { b.rule(name, nft.Jump(drawName(nodePort, pool, mod))) })
				b.rule(name, &expr.Verdict{Kind: expr.VerdictDrop})
			}
		}
	}
}

// pick appends the rules that send a connection of a class to an endpoint of
// a pool whose size, rounded up to a power of two, is n.
func (b builder) pick(chain string, c model.Class, pool model.Pool, n int) {
	if c.Timeout > 0 && n > 0 {
		b.stick(chain, c, pool, n)
	}
	switch {
	case n == 0:
	case n <= largestOf(pool):
		b.rule(chain, nft.Goto(pickName(c.NodePort, pool, n)))
		return
	default:
		choose(n, func(mod int) { b.rule(chain, b.draw(c.NodePort, pool, mod)) })
	}
	b.rule(chain, &expr.Verdict{Kind: expr.VerdictDrop})
}

// choose says which draws, one after the other, find a random endpoint of a
// pool whose size, rounded up, is n.
func choose(n int, draw func(mod int)) {
	if n > 1 {
		for range draws {
			draw(n)
		}
		// The lower half of the indexes is always someone's.
		n /= 2
	}
	// More than once, since a row that is being replaced can be missed, and
	// at last the index that is there as long as any is.
	for _, mod := range []int{n, n, 1, 1} {
		draw(mod)
	}
}

// draw looks a random index of a pool up and sends the connection to the
// endpoint that has it; the rule ends if no one has.
func (b builder) draw(nodePort bool, pool model.Pool, mod int) []expr.Any {
	t := model.Endpoints
	if nodePort {
		t = model.NodePortEndpoints
	}
	return append(b.key(nodePort, r0),
		&expr.Numgen{Register: b.afterKey(nodePort), Modulus: uint32(mod), Type: unix.NFT_NG_RANDOM,
			Offset: uint32(pool) * model.LocalBase},
		find(t, b.Family), b.dnat())
}

// dnat sends to the address and port loaded to r0.
func (b builder) dnat() expr.Any {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: b.proto32(), RegAddrMin: r0, RegProtoMin: r0 + b.regs(), Specified: true}
}

// largestOf is the largest pool, rounded up, with choosing chains of its own.
func largestOf(pool model.Pool) int {
	if pool == model.LocalPool {
		return largestLocal
	}
	return largestShared
}
