package nft

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// fixed are the rules of tables by layout, which many checks compare with.
var fixed sync.Map

// Rules lists, in words, the rules of a table with these classes, but for the
// chain DropCIDRs writes.
func (l Layout) Rules(classes []model.Class) map[string][]string {
	base, ok := fixed.Load(l.marker())
	if !ok {
		tx := NewTx(l.Family, "")
		l.Build(tx)
		l.Hook(tx)
		base, _ = fixed.LoadOrStore(l.marker(), tx.rules())
	}
	out := maps.Clone(base.(map[string][]string))
	tx := NewTx(l.Family, "")
	for _, t := range timeouts(classes) {
		l.AddTimeout(tx, t)
	}
	for _, c := range classes {
		l.AddClass(tx, c)
	}
	maps.Copy(out, tx.rules())
	return out
}

// CIDRRules lists, in words, what DropCIDRs writes.
func (l Layout) CIDRRules(cidrs []netip.Prefix) (chain string, rules []string) {
	tx := NewTx(l.Family, "")
	l.DropCIDRs(tx, cidrs)
	return cidrChain, tx.rules()[cidrChain]
}

// rules are what tx adds, in words.
func (t *Tx) rules() map[string][]string {
	out := map[string][]string{}
	for _, o := range t.Ops {
		if o.Verb == AddRule {
			out[o.Name] = append(out[o.Name], o.says())
		}
	}
	return out
}

// Unordered says of a chain that the order of its rules tells nothing: they
// lead to the classes, and every frontend is in one of these.
func Unordered(chain string) bool { return chain == "vip-classes" || chain == "nodeport-classes" }
