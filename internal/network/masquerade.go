package network

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
)

// everybody are the multicast ranges: nobody answers to their addresses.
var everybody = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

// masquerade hides this node's pods behind the node where they leave the
// cluster: what goes to other pods keeps its address. What goes through the
// WireGuard device guard, if that has a name, and is not from one of this node's
// own ranges is sent by the device's address: the other side takes nothing
// else. The tables are replaced in one transaction.
func masquerade(k nft.Kernel, table string, own, cluster []netip.Prefix, guard string) error {
	var txs []*nft.Tx
	for _, f := range []row.Family{row.V4, row.V6} {
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
