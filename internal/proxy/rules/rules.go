// Package rules writes what the proxy's tables have besides rows: their fixed
// sets, chains and rules, those of each class of frontends, and the probe that
// tells whether a kernel can hold them.
package rules

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// fixed are the rules of tables by layout, which many checks compare with.
var fixed sync.Map

// Rules lists, in words, the rules of a table with these classes, but for the
// chain DropCIDRs writes.
func (l Layout) Rules(classes []model.Class) map[string][]string {
	base, ok := fixed.Load(l.marker())
	if !ok {
		tx := nft.NewTx(l.Family, "")
		l.Build(tx)
		l.Hook(tx)
		base, _ = fixed.LoadOrStore(l.marker(), tx.Rules())
	}
	out := maps.Clone(base.(map[string][]string))
	tx := nft.NewTx(l.Family, "")
	for _, t := range timeouts(classes) {
		l.AddTimeout(tx, t)
	}
	for _, c := range classes {
		l.AddClass(tx, c)
	}
	maps.Copy(out, tx.Rules())
	return out
}

// CIDRRules lists, in words, what DropCIDRs writes.
func (l Layout) CIDRRules(cidrs []netip.Prefix) (chain string, rules []string) {
	tx := nft.NewTx(l.Family, "")
	l.DropCIDRs(tx, cidrs)
	return cidrChain, tx.Rules()[cidrChain]
}

// Unordered says of a chain that the order of its rules tells nothing: they
// lead to the classes, and every frontend is in one of these.
func Unordered(chain string) bool { return chain == "vip-classes" || chain == "nodeport-classes" }
