package network

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// everybody are the multicast ranges: nobody answers to their addresses.
var everybody = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

// masquerade hides this node's pods behind the node where they leave the
// cluster: what goes to other pods keeps its address. What goes through the
// WireGuard device guard, if that has a name, and is not from one of this node's
// own ranges is sent by the device's address: the other side takes nothing
// else. The tables are replaced in one transaction.
func masquerade(table string, own, cluster []netip.Prefix, guard string, opts ...nftables.ConnOption) error {
	conn, err := nftables.New(opts...)
	if err != nil {
		return fmt.Errorf("opening nftables for masquerade: %w", err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		t := &nftables.Table{Family: family, Name: table}
		// Adding first makes the deletion succeed on what is not there.
		conn.AddTable(t)
		conn.DelTable(t)
		pods := of(family, own)
		if len(pods) == 0 {
			continue
		}
		conn.AddTable(t)
		chain := conn.AddChain(&nftables.Chain{Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		for _, p := range pods {
			rule := within(p, true, expr.CmpOpEq)
			for _, not := range append(of(family, cluster), of(family, everybody)...) {
				rule = append(rule, within(not, false, expr.CmpOpNeq)...)
			}
			conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(rule, &expr.Masq{FullyRandom: true})})
		}
		if guard != "" {
			rule := leaves(guard)
			for _, p := range pods {
				rule = append(rule, within(p, true, expr.CmpOpNeq)...)
			}
			conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(rule, &expr.Masq{FullyRandom: true})})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("masquerading what pods send out of the cluster, in table %s: %w", table, err)
	}
	return nil
}

func of(family nftables.TableFamily, all []netip.Prefix) (out []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() == (family == nftables.TableFamilyIPv4) {
			out = append(out, p.Masked())
		}
	}
	return out
}

// leaves compares the link a packet leaves through.
func leaves(link string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}}
}

// within compares the source or destination with a range.
func within(p netip.Prefix, source bool, op expr.CmpOp) []expr.Any {
	size := uint32(p.Addr().BitLen() / 8)
	offset := uint32(12) // IPv4's source
	if size == 16 {
		offset = 8
	}
	if !source {
		offset += size
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Addr().AsSlice()},
	}
}
