package network

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
)

// families have a table each.
var families = []row.Family{row.V4, row.V6}

// everybody are the multicast ranges: no one answers to their addresses.
var everybody = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

// masquerade hides this node's pods behind the node where they leave the
// cluster: what goes to other pods keeps its address. What goes through the
// WireGuard device guard, if that has a name, and is not from one of this node's
// own ranges is sent by the device's address: the other side takes nothing
// else. The tables are replaced in one transaction.
func masquerade(k nft.Kernel, table string, own, cluster []netip.Prefix, guard string) error {
	var txs []*nft.Tx
	for _, f := range families {
		pods := of(f, own)
		if len(pods) == 0 {
			txs = append(txs, nft.Remove(f, table))
			continue
		}
		tx := nft.Replace(f, table)
		txs = append(txs, tx)
		const chain = "postrouting"
		tx.Add(nft.Op{Verb: nft.AddChain, Name: chain, Hook: &nft.Hook{Num: unix.NF_INET_POST_ROUTING, Priority: 100, Type: "nat"}})
		masq := &expr.Masq{FullyRandom: true}
		for _, p := range pods {
			rule := within(f, p, true, true)
			for _, not := range append(of(f, cluster), of(f, everybody)...) {
				rule = append(rule, within(f, not, false, false)...)
			}
			tx.Rule(chain, rule, masq)
		}
		if guard != "" {
			rule := nft.Link(expr.MetaKeyOIFNAME, guard)
			for _, p := range pods {
				rule = append(rule, within(f, p, true, false)...)
			}
			tx.Rule(chain, rule, masq)
		}
	}
	if err := k.Apply(txs...); err != nil {
		return fmt.Errorf("masquerading what pods send out of the cluster: %w", err)
	}
	return nil
}

// fence lets packets of this cluster's tunnel in from nodes alone: VXLAN itself
// asks no one who they are. Other tunnels at the same port, told apart by their
// number, are not touched. The tables are replaced in one transaction; without a
// tunnel they are removed.
func fence(k nft.Kernel, table string, tunnel *tunnel, nodes []netip.Addr) error {
	var txs []*nft.Tx
	for _, f := range families {
		if tunnel == nil || !f.Has(tunnel.Local) {
			txs = append(txs, nft.Remove(f, table))
			continue
		}
		tx := nft.Replace(f, table)
		txs = append(txs, tx)
		set := row.Shape{Name: "nodes", Key: f.AddrLen()}
		tx.Add(nft.Op{Verb: nft.AddSet, Name: set.Name, Set: &nft.Set{Name: set.Name, Key: []nft.Type{nft.FieldsOf(f).Saddr}}})
		var rows []byte
		for _, a := range nodes {
			if f.Has(a) {
				rows = append(rows, a.AsSlice()...)
			}
		}
		if len(rows) > 0 {
			tx.Add(nft.Op{Verb: nft.AddRows, Name: set.Name, Shape: set, Rows: rows})
		}
		const chain = "input"
		tx.Add(nft.Op{Verb: nft.AddChain, Name: chain, Hook: &nft.Hook{Num: unix.NF_INET_LOCAL_IN, Priority: -300, Type: "filter"}})
		field := func(at, size uint32, data ...byte) []expr.Any {
			return []expr.Any{&expr.Payload{DestRegister: nft.R0, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: size},
				&expr.Cmp{Op: expr.CmpOpEq, Register: nft.R0, Data: data}}
		}
		// The number is in the fifth to seventh byte of VXLAN's header (RFC
		// 7348), behind UDP's 8.
		tx.Rule(chain, nft.Proto(unix.IPPROTO_UDP), field(2, 2, Port>>8, Port&0xff), field(12, 3, byte(tunnel.VNI>>16), byte(tunnel.VNI>>8),
			byte(tunnel.VNI)),
			nft.Saddr(f, nft.R0), &expr.Lookup{SourceRegister: nft.R0, SetName: set.Name, Invert: true},
			&expr.Verdict{Kind: expr.VerdictDrop})
	}
	if err := k.Apply(txs...); err != nil {
		return fmt.Errorf("letting only nodes into the tunnel: %w", err)
	}
	return nil
}

func of(f row.Family, all []netip.Prefix) (out []netip.Prefix) {
	for _, p := range all {
		if f.Has(p.Addr()) {
			out = append(out, p.Masked())
		}
	}
	return out
}

// within compares the source or destination with a range: is it in there, or not.
func within(f row.Family, p netip.Prefix, source, want bool) []expr.Any {
	if source {
		return nft.Within(nft.Saddr(f, nft.R0), p, want)
	}
	return nft.Within(nft.Daddr(f, nft.R0), p, want)
}
