package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// has says whether a rule has an expression that ok wants.
func has[T expr.Any](o nft.Op, ok func(T) bool) bool {
	for _, e := range o.Rule {
		if e, is := e.(T); is && ok(e) {
			return true
		}
	}
	return false
}

// lacking are kernels without one feature each: what they refuse of an operation.
// before holds the chains with hooks of the transaction so far.
var lacking = map[string]func(o nft.Op, hooked bool) bool{
	"nftables":                        func(o nft.Op, _ bool) bool { return o.Verb == nft.AddTable },
	"chains that translate addresses": func(o nft.Op, _ bool) bool { return o.Hook != nil },
	"maps and sets":                   func(o nft.Op, _ bool) bool { return o.Set != nil && len(o.Set.Key) == 1 },
	"maps and sets by several fields": func(o nft.Op, _ bool) bool {
		return o.Set != nil && len(o.Set.Key) > 1 && !o.Set.Interval && !o.Set.Dynamic
	},
	"ranges in sets of several fields": func(o nft.Op, _ bool) bool { return o.Set != nil && o.Set.Interval },
	"random numbers":                   func(o nft.Op, _ bool) bool { return has(o, func(*expr.Numgen) bool { return true }) },
	"translating destinations":         func(o nft.Op, _ bool) bool { return has(o, func(*expr.NAT) bool { return true }) },
	"masquerading":                     func(o nft.Op, _ bool) bool { return has(o, func(*expr.Masq) bool { return true }) },
	"telling the node's own addresses": func(o nft.Op, _ bool) bool { return has(o, func(*expr.Fib) bool { return true }) },
	"refusing before routing": func(o nft.Op, hooked bool) bool {
		return hooked &&
			has(o, func(*expr.Reject) bool { return true })
	},
	"the state of connections": func(o nft.Op, _ bool) bool { return has(o, func(*expr.Ct) bool { return true }) },
	"marks and priorities that rules write": func(o nft.Op, hooked bool) bool {
		return hooked && has(o, func(m *expr.Meta) bool { return m.SourceRegister })
	},
	"interfaces by name": func(o nft.Op, _ bool) bool {
		return has(o, func(m *expr.Meta) bool { return m.Key == expr.MetaKeyOIFNAME })
	},
	"maps that rules write, with timeouts": func(o nft.Op, _ bool) bool { return o.Set != nil && o.Set.Dynamic },
	"rows that rules delete": func(o nft.Op, _ bool) bool {
		return has(o, func(d *expr.Dynset) bool { return d.Operation == nft.DynsetDelete })
	},
}

// without is a kernel that refuses some operations as the real one does.
func without(refuses func(o nft.Op, hooked bool) bool) *nft.Fake {
	k := nft.NewFake()
	k.Fail = func(tx *nft.Tx) error {
		hooked := false
		for i, o := range tx.Ops {
			if hooked = hooked || o.Hook != nil; refuses(o, hooked) {
				return nft.OpError(tx, i, unix.EOPNOTSUPP)
			}
		}
		return nil
	}
	return k
}

// TestProbeNamesWhatIsMissing has kernels without one feature each: it is named,
// with what brings it, and nothing else is.
func TestProbeNamesWhatIsMissing(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		if err := probe(nft.NewFake(), f); err != nil {
			t.Errorf("a kernel with everything: %v", err)
		}
		for _, n := range needs {
			refuses := lacking[n.name]
			if refuses == nil {
				t.Errorf("no kernel is tried without %s", n.name)
				continue
			}
			err := probe(without(refuses), f)
			want := fmt.Sprintf("the kernel lacks what the service rules of %s need: %s (%s)", f, n.name, n.needs)
			var lack *Lack
			if !errors.As(err, &lack) || err.Error() != want {
				t.Errorf("without %s: got %v, want %s", n.name, err, want)
			}
		}
	}
	err := probe(without(func(o nft.Op, h bool) bool { return lacking["random numbers"](o, h) || lacking["masquerading"](o, h) }), model.V4)
	if err == nil || !strings.Contains(err.Error(), "CONFIG_NFT_NUMGEN, Linux 4.9 or later); masquerading (CONFIG_NFT_MASQ)") {
		t.Errorf("two things missing: %v", err)
	}
}

// TestProbeOfBothFamilies: what both lack is told once, the rest of each.
func TestProbeOfBothFamilies(t *testing.T) {
	of := func(refuses func(o nft.Op, hooked bool) bool) string {
		return fmt.Sprint(probeAll(without(refuses), []model.Family{model.V4, model.V6}))
	}
	if got, want := of(lacking["masquerading"]),
		"the kernel lacks what the service rules of IPv4 and IPv6 need: masquerading (CONFIG_NFT_MASQ)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got := of(func(o nft.Op, _ bool) bool {
		return has(o, func(r *expr.Reject) bool { return r.Type == unix.NFT_REJECT_ICMP_UNREACH && r.Code == 4 })
	})
	if !strings.HasPrefix(got, "the kernel lacks what the service rules of IPv6 need: refusing before routing") ||
		strings.Contains(got, "IPv4 need") {
		t.Errorf("only IPv6 lacks something: %s", got)
	}
}

// TestProbeWithoutRights: what a process may not do says nothing of the kernel.
func TestProbeWithoutRights(t *testing.T) {
	k := nft.NewFake()
	k.Fail = func(tx *nft.Tx) error { return nft.OpError(tx, 0, unix.EPERM) }
	var lack *Lack
	if err := probe(k, model.V4); errors.As(err, &lack) || !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
}

// TestProbeTriesEverything: whatever the rules are made of, in every way they
// can be configured, is among what is tried.
func TestProbeTriesEverything(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		tried := map[string]bool{}
		for _, n := range needs {
			kinds(n.tx(f, "t"), tried)
		}
		local := netip.MustParsePrefix("10.0.0.0/8")
		if f == model.V6 {
			local = netip.MustParsePrefix("fd00::/8")
		}
		for _, l := range []Layout{{AllNodePorts: true}, {LocalCIDRs: []netip.Prefix{local}}, {LocalBridge: "b"}, {LocalPrefix: "p"},
			{SameBridge: "b", MasqueradeAll: true}} {
			l.Family, l.MarkBit = f, 1
			tx, used := nft.NewTx(f, "t"), map[string]bool{}
			l.Build(tx)
			l.AddTimeout(tx, 60)
			for _, kind := range []model.Kind{model.Spread, model.Reject, model.Drop} {
				for i := range 32 {
					l.AddClass(tx, model.Class{Kind: kind, NodePort: i&1 > 0, External: i&2 > 0, LocalPolicy: i&4 > 0, Ranges: i&8 > 0,
						Timeout: 60 * (i & 16) / 16, Cluster: 4096, Local: 2})
				}
			}
			l.DropCIDRs(tx, []netip.Prefix{local})
			l.Hook(tx)
			kinds(tx, used)
			for k := range used {
				if !tried[k] {
					t.Errorf("%s: %s is used and not tried", f, k)
				}
			}
		}
	}
}

// kinds notes what an older or smaller kernel may lack of what tx does.
func kinds(tx *nft.Tx, into map[string]bool) {
	for _, o := range tx.Ops {
		switch {
		case o.Set != nil:
			into[fmt.Sprintf("a set: several fields %t, map %t, ranges %t, written by rules %t", len(o.Set.Key) > 1, len(o.Set.Value) > 0,
				o.Set.Interval, o.Set.Dynamic)] = true
		case o.Hook != nil:
			into[fmt.Sprintf("hook %d", o.Hook.Num)] = true
		}
		for _, e := range o.Rule {
			k := fmt.Sprintf("%T", e)
			switch e := e.(type) {
			case *expr.Meta:
				k += fmt.Sprint(e.Key, e.SourceRegister)
			case *expr.Ct:
				k += fmt.Sprint(e.Key)
			case *expr.Numgen:
				k += fmt.Sprint(e.Type)
			case *expr.Dynset:
				k += fmt.Sprint(e.Operation, e.Timeout > 0, e.SrcRegData > 0)
			case *expr.Fib:
				k += fmt.Sprint(e.ResultADDRTYPE, e.FlagSADDR, e.FlagDADDR)
			case *expr.NAT:
				k += fmt.Sprint(e.Type)
			case *expr.Masq:
				k += fmt.Sprint(e.FullyRandom)
			case *expr.Reject:
				k += fmt.Sprint(e.Type, e.Code)
			case *expr.Lookup:
				k += fmt.Sprint(e.IsDestRegSet, e.Invert)
			case *expr.Verdict:
				k += fmt.Sprint(e.Kind)
			case *expr.Byteorder:
				k += fmt.Sprint(e.Op, e.Len, e.Size)
			}
			into[k] = true
		}
	}
}

// TestProbeHost probes the kernel at hand and leaves nothing behind.
func TestProbeHost(t *testing.T) {
	ns := netnstest.New(t)
	err := netnstest.In(ns, func() error {
		k, err := nft.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		before, err := k.Generation()
		if err != nil {
			return err
		}
		for range 20 { // on whatever threads
			if err := ProbeHost(model.V4, model.V6); err != nil {
				return err
			}
		}
		if now, err := k.Generation(); err != nil || now != before {
			return fmt.Errorf("the probe changed the tables of where it was started (%v)", err)
		}
		// Once where it is, to see that the tables are made at all.
		if err := probe(k, model.V6); err != nil {
			return err
		}
		chains, err := k.Chains(model.V6, "probe-1")
		if err == nil && len(chains) != 2+len(baseChains) {
			err = fmt.Errorf("chains of the probe: %v", chains)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestApartComesBack: no thread stays in the namespace that was made, the
// program's first one included.
func TestApartComesBack(t *testing.T) {
	netnstest.New(t) // skips without root
	inodes := map[string]int{}
	for range 50 {
		var there string
		err := apart(func() (err error) {
			there, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		inodes[there]++
		threads, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil || len(threads) == 0 {
			t.Fatalf("%d threads, %v", len(threads), err)
		}
		for _, at := range threads {
			if now, err := os.Readlink(at); err == nil && now == there {
				t.Fatalf("%s is still in the namespace that was made", at)
			}
		}
	}
	if home, err := os.Readlink("/proc/self/ns/net"); err != nil || inodes[home] > 0 {
		t.Errorf("it ran at home: %v (%v)", inodes, err)
	}
}
