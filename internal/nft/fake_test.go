package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/nft/row"
)

var (
	plainShape = row.Shape{Name: "s", Key: 4}
	mapShape   = row.Shape{Name: "m", Key: 4, Value: 4}
	chainShape = row.Shape{Name: "c", Key: 4, Value: row.ChainLen, Chains: true}
)

// transaction makes one on table t of IPv4.
func transaction(ops ...Op) *Tx {
	tx := NewTx(row.V4, "t")
	for _, o := range ops {
		tx.Add(o)
	}
	return tx
}

func bytesOf(n ...byte) (out []byte) {
	for _, b := range n {
		out = append(out, b, b, b, b)
	}
	return out
}

func toChain(key byte, name string) []byte {
	value := make([]byte, row.ChainLen)
	copy(value, name)
	return append(bytesOf(key), value...)
}

// begun is a table with a set, a map, a map to chains and two chains.
func begun() []Op {
	field := []Type{TypeLink}
	return []Op{{Verb: AddTable}, {Verb: AddSet, Name: "s", Set: &Set{Name: "s", Key: field}},
		{Verb: AddSet, Name: "m", Set: &Set{Name: "m", Key: field, Value: field}},
		{Verb: AddSet, Name: "c", Set: &Set{Name: "c", Key: field, Chains: true}}, {Verb: AddChain, Name: "a"}, {Verb: AddChain, Name: "b"},
		{Verb: AddRule, Name: "b", Rule: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}}}
}

// TestFakeRefusesWhatTheKernelRefuses: operations on the table of begun, each
// of its own, with the kernel's answer. Tests of the proxy and of policies rely
// on these refusals.
func TestFakeRefusesWhatTheKernelRefuses(t *testing.T) {
	addRows := func(s row.Shape, rows []byte) Op { return Op{Verb: AddRows, Name: s.Name, Shape: s, Rows: rows} }
	deleteRows := func(s row.Shape, rows []byte) Op { return Op{Verb: DeleteRows, Name: s.Name, Shape: s, Rows: rows} }
	for _, c := range []struct {
		why  string
		ops  []Op
		want error
	}{
		{"adding what is there", []Op{{Verb: AddTable}, {Verb: AddChain, Name: "a"}, {Verb: AddSet, Name: "s", Set: &Set{}}}, nil},
		{"the same row twice", []Op{addRows(mapShape, bytesOf(1, 2)), addRows(mapShape, bytesOf(1, 2))}, nil},
		{"another value for a key", []Op{addRows(mapShape, bytesOf(1, 2)), addRows(mapShape, bytesOf(1, 3))}, unix.EEXIST},
		{"removing a row", []Op{addRows(plainShape, bytesOf(1)), deleteRows(plainShape, bytesOf(1))}, nil},
		{"removing a row that is not there", []Op{deleteRows(plainShape, bytesOf(1))}, unix.ENOENT},
		{"rows of no set", []Op{addRows(row.Shape{Name: "x", Key: 4}, bytesOf(1))}, unix.ENOENT},
		{"a row to a chain", []Op{addRows(chainShape, toChain(1, "a"))}, nil},
		{"a row to no chain", []Op{addRows(chainShape, toChain(1, "x"))}, unix.ENOENT},
		{"a rule of no chain", []Op{{Verb: AddRule, Name: "x"}}, unix.ENOENT},
		{"deleting an empty chain", []Op{{Verb: DeleteChain, Name: "a"}}, nil},
		{"deleting a chain with rules", []Op{{Verb: DeleteChain, Name: "b"}}, unix.EBUSY},
		{"deleting a chain that was flushed", []Op{{Verb: FlushChain, Name: "b"}, {Verb: DeleteChain, Name: "b"}}, nil},
		{"deleting a chain that a row leads to", []Op{addRows(chainShape, toChain(1, "a")), {Verb: DeleteChain, Name: "a"}}, unix.EBUSY},
		{"deleting no chain", []Op{{Verb: DeleteChain, Name: "x"}}, unix.ENOENT},
		{"deleting a set", []Op{{Verb: DeleteSet, Name: "s"}}, nil},
		{"deleting no set", []Op{{Verb: DeleteSet, Name: "x"}}, unix.ENOENT},
		{"deleting the table twice", []Op{{Verb: DeleteTable}, {Verb: DeleteTable}}, unix.ENOENT},
		{"making it again", []Op{{Verb: DeleteTable}, {Verb: AddTable}, {Verb: AddChain, Name: "b"}, {Verb: DeleteChain, Name: "b"}}, nil},
		{"adding to a table that was deleted", []Op{{Verb: DeleteTable}, {Verb: AddChain, Name: "a"}}, unix.ENOENT},
	} {
		k := NewFake()
		if err := k.Apply(transaction(begun()...)); err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(k.Chains(row.V4, "t"))
		err := k.Apply(transaction(c.ops...), transaction())
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.why, err, c.want)
		}
		if err != nil && (!strings.Contains(err.Error(), "table IPv4 t") || !strings.Contains(err.Error(), c.ops[len(c.ops)-1].String())) {
			t.Errorf("%s: %v names neither the table nor what was refused", c.why, err)
		}
		if after := fmt.Sprint(k.Chains(row.V4, "t")); err != nil && after != before {
			t.Errorf("%s: refused, and chains are %s instead of %s", c.why, after, before)
		}
	}
}

// TestAllOrNothing: several transactions are done together or not at all, and a
// mistake made while gathering does nothing.
func TestAllOrNothing(t *testing.T) {
	k := NewFake()
	other := NewTx(row.V6, "t")
	other.Add(Op{Verb: DeleteTable}) // there is none
	if err := k.Apply(transaction(begun()...), other); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the second cannot be done: %v", err)
	}
	bad := transaction(begun()...)
	bad.Add(Op{Verb: AddRows, Name: "m", Shape: mapShape, Rows: make([]byte, 7)})
	if err := k.Apply(transaction(begun()...), bad); err == nil || bad.Err() == nil || !strings.Contains(err.Error(), "7 bytes") {
		t.Errorf("half a row: %v", err)
	}
	if tables, _ := k.Tables(row.V4); len(tables) > 0 {
		t.Errorf("tables %s were made", tables)
	}
	k.Fail = func(tx *Tx) error { return unix.EAGAIN }
	if err := k.Apply(transaction(begun()...)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a kernel that fails: %v", err)
	}
	if k.Fail = nil; k.Apply(Replace(row.V4, "t"), Remove(row.V4, "never")) != nil {
		t.Error("what is not there can be replaced and removed")
	}
	if tables, _ := k.Tables(row.V4); !slices.Equal(tables, []string{"t"}) {
		t.Errorf("tables %s", tables)
	}
	if err := k.Rows(row.V4, "t", "none", nil); !IsNotExist(err) {
		t.Errorf("rows of no set: %v", err)
	}
}

// TestParts: parts do one after the other what the whole does at once, whatever
// their size.
func TestParts(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops := begun()
		for range rapid.IntRange(0, 5).Draw(r, "ops") {
			shape := rapid.SampledFrom([]row.Shape{plainShape, mapShape}).Draw(r, "shape")
			var rows []byte
			for range rapid.IntRange(0, 6).Draw(r, "rows") {
				key := rapid.Byte().Draw(r, "key")
				rows = append(rows, bytesOf(key, key)[:shape.Stride()]...)
			}
			ops = append(ops, Op{Verb: AddRows, Name: shape.Name, Shape: shape, Rows: rows})
		}
		size := rapid.IntRange(1, 8).Draw(r, "size")
		whole, cut := NewFake(), NewFake()
		if err := whole.Apply(transaction(ops...)); err != nil {
			r.Fatal(err)
		}
		for _, part := range transaction(ops...).Parts(size) {
			n := 0
			for _, o := range part.Ops {
				n += o.count()
			}
			if n > size {
				r.Fatalf("a part has %d rows, want at most %d", n, size)
			}
			if err := cut.Apply(part); err != nil {
				r.Fatal(err)
			}
		}
		for _, set := range []string{"s", "m"} {
			if a, b := rowsOf(r, whole, set), rowsOf(r, cut, set); a != b {
				r.Fatalf("set %s has %s, want %s", set, b, a)
			}
		}
	})
}

func rowsOf(r *rapid.T, k Kernel, set string) string {
	var out []string
	if err := k.Rows(row.V4, "t", set, func(key, value []byte) bool {
		out = append(out, fmt.Sprintf("%x:%x", key, value))
		return true
	}); err != nil {
		r.Fatal(err)
	}
	return strings.Join(out, " ")
}

// TestText: a transaction in words, which goldens of the proxy and of policies
// are made of.
func TestText(t *testing.T) {
	tx := transaction(begun()...)
	tx.Rule("a", Saddr(row.V4, R0), &expr.Lookup{SourceRegister: R0, SetName: "s", Invert: true}, Jump("b"))
	tx.Rule("a", Within(Daddr(row.V4, R0), netip.MustParsePrefix("10.0.0.0/8"), false), Goto("b"))
	tx.Rule("a", Proto(6), Link(expr.MetaKeyIIFNAME, "eth0"))
	tx.Add(Op{Verb: AddRows, Name: "m", Shape: mapShape, Rows: bytesOf(1, 2)})
	tx.Add(Op{Verb: DeleteRows, Name: "m", Shape: mapShape, Rows: bytesOf(1)})
	want := `table IPv4 t
add table 
add set s
add set m
add set c
add chain a
add chain b
add rule to chain b: drop
add rule to chain a: [r0 = payload 4@1+12] [r0 not in s] jump b
add rule to chain a: [r0 = payload 4@1+16] [r0 = r0 & ff000000 ^ 00000000] [r0 != 0a000000] goto b
add rule to chain a: [r0 = meta 16] [r0 == 06] [r0 = meta 6] [r0 == 65746830000000000000000000000000]
add rows: 1 in m
  01010101 : 02020202
delete rows: 1 in m
  01010101
`
	if got := tx.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if rules := tx.Rules(); len(rules["a"]) != 3 || rules["b"][0] != "drop" {
		t.Errorf("rules %q", rules)
	}
}

// TestPacketsMeetRules: what the fake kernel does with a packet for rules of
// every kind that is used here.
func TestPacketsMeetRules(t *testing.T) {
	here, there, pod := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("10.1.0.5")
	drop, accept := &expr.Verdict{Kind: expr.VerdictDrop}, &expr.Verdict{Kind: expr.VerdictAccept}
	within := func(p string, want bool) []expr.Any { return Within(Daddr(row.V4, R0), netip.MustParsePrefix(p), want) }
	for _, c := range []struct {
		why   string
		rules func(tx *Tx)
		want  string
	}{
		{"no rules", func(*Tx) {}, "accept"},
		{"drop", func(tx *Tx) { tx.Rule("in", drop) }, "drop"},
		{"the first verdict counts", func(tx *Tx) { tx.Rule("in", accept); tx.Rule("in", drop) }, "accept"},
		{"a rule that does not match", func(tx *Tx) { tx.Rule("in", within("198.51.100.0/24", true), drop) }, "accept"},
		{"one that does", func(tx *Tx) { tx.Rule("in", within("192.0.2.0/29", true), drop) }, "drop"},
		{"all but a prefix", func(tx *Tx) { tx.Rule("in", within("192.0.2.0/29", false), drop) }, "accept"},
		{"one address", func(tx *Tx) { tx.Rule("in", within("192.0.2.7/32", true), drop) }, "drop"},
		{"protocol", func(tx *Tx) { tx.Rule("in", Proto(17), drop) }, "accept"},
		{"interface", func(tx *Tx) { tx.Rule("in", Link(expr.MetaKeyIIFNAME, "veth0"), drop) }, "drop"},
		{"interface it leaves through", func(tx *Tx) { tx.Rule("out", Link(expr.MetaKeyOIFNAME, "eth0"), &expr.Masq{}) },
			"accept masqueraded"},
		{"jump comes back", func(tx *Tx) { tx.Rule("in", Jump("sub")); tx.Rule("in", drop) }, "drop"},
		{"goto does not", func(tx *Tx) { tx.Rule("in", Goto("sub")); tx.Rule("in", drop) }, "accept"},
		{"reject", func(tx *Tx) { tx.Rule("in", &expr.Reject{}) }, "reject"},
		{"translation", func(tx *Tx) {
			tx.Rule("in", &expr.Immediate{Register: R0, Data: pod.AsSlice()}, &expr.Immediate{Register: R0 + 1, Data: []byte{0x1f, 0x90}},
				&expr.NAT{Type: expr.NATTypeDestNAT, RegAddrMin: R0, RegProtoMin: R0 + 1})
		}, "accept to 10.1.0.5:8080"},
		{"translated to the host: not forwarded", func(tx *Tx) {
			tx.Rule("in", &expr.Immediate{Register: R0, Data: here.AsSlice()}, &expr.Immediate{Register: R0 + 1, Data: []byte{0x1f, 0x90}},
				&expr.NAT{Type: expr.NATTypeDestNAT, RegAddrMin: R0, RegProtoMin: R0 + 1})
			tx.Rule("out", drop)
		}, "accept to 10.0.0.1:8080"},
		{"in a set", func(tx *Tx) {
			tx.Add(Op{Verb: AddRows, Name: "addrs", Shape: row.Shape{Name: "addrs", Key: 4}, Rows: there.AsSlice()})
			tx.Rule("in", Daddr(row.V4, R0), &expr.Lookup{SourceRegister: R0, SetName: "addrs"}, drop)
		}, "drop"},
		{"not in a set", func(tx *Tx) {
			tx.Rule("in", Daddr(row.V4, R0), &expr.Lookup{SourceRegister: R0, SetName: "addrs", Invert: true}, drop)
		}, "drop"},
		{"a chain that a map names", func(tx *Tx) {
			tx.Rule("sub", drop)
			value := append(there.AsSlice(), toChain(0, "sub")[4:]...)
			tx.Add(Op{Verb: AddRows, Name: "ways", Shape: row.Shape{Name: "ways", Key: 4, Value: row.ChainLen, Chains: true}, Rows: value})
			tx.Rule("in", Daddr(row.V4, R0), &expr.Lookup{SourceRegister: R0, SetName: "ways", IsDestRegSet: true})
		}, "drop"},
		{"mark", func(tx *Tx) {
			tx.Rule("in", &expr.Immediate{Register: R0, Data: Num(9)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true,
				Register: R0})
			tx.Rule("out", &expr.Meta{Key: expr.MetaKeyMARK, Register: R0}, &expr.Cmp{Op: expr.CmpOpEq, Register: R0, Data: Num(9)}, drop)
		}, "drop"},
		{"a new connection", func(tx *Tx) {
			tx.Rule("in", &expr.Ct{Key: expr.CtKeySTATE, Register: R0},
				&expr.Cmp{Op: expr.CmpOpEq, Register: R0, Data: Num(expr.CtStateBitNEW)}, drop)
		}, "drop"},
	} {
		tx := Replace(row.V4, "t")
		tx.Add(Op{Verb: AddChain, Name: "in", Hook: &Hook{Num: unix.NF_INET_PRE_ROUTING}})
		tx.Add(Op{Verb: AddChain, Name: "out", Hook: &Hook{Num: unix.NF_INET_POST_ROUTING}})
		tx.Add(Op{Verb: AddChain, Name: "sub"})
		field := []Type{FieldsOf(row.V4).Daddr}
		tx.Add(Op{Verb: AddSet, Name: "addrs", Set: &Set{Name: "addrs", Key: field}})
		tx.Add(Op{Verb: AddSet, Name: "ways", Set: &Set{Name: "ways", Key: field, Chains: true}})
		c.rules(tx)
		k := NewFake()
		if err := k.Apply(tx); err != nil {
			t.Errorf("%s: %v", c.why, err)
			continue
		}
		p := Packet{Proto: 6, Src: netip.AddrPortFrom(pod, 40000), Dst: netip.AddrPortFrom(there, 80), In: "veth0",
			Here: func(a netip.Addr) bool { return a == here }, Out: func(netip.Addr) string { return "eth0" }}
		out, err := k.Connect(row.V4, "t", p)
		if err != nil {
			t.Errorf("%s: %v", c.why, err)
			continue
		}
		got := out.Verdict
		if out.Masqueraded {
			got += " masqueraded"
		}
		if out.To != p.Dst {
			got += " to " + out.To.String()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// TestPriorities: chains of one hook are entered by priority, whatever order
// they were made in.
func TestPriorities(t *testing.T) {
	for range 10 { // a map has no order
		tx := Replace(row.V4, "t")
		tx.Add(Op{Verb: AddChain, Name: "late", Hook: &Hook{Num: unix.NF_INET_LOCAL_OUT, Priority: 10}})
		tx.Add(Op{Verb: AddChain, Name: "early", Hook: &Hook{Num: unix.NF_INET_LOCAL_OUT, Priority: -10}})
		tx.Rule("late", &expr.Reject{})
		tx.Rule("early", &expr.Verdict{Kind: expr.VerdictDrop})
		k := NewFake()
		if err := k.Apply(tx); err != nil {
			t.Fatal(err)
		}
		if out, err := k.Connect(row.V4, "t", Packet{}); err != nil || out.Verdict != "drop" {
			t.Fatalf("%+v, %v", out, err)
		}
	}
}
