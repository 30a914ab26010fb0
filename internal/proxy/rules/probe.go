package rules

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// need is something of the kernel that the rules cannot do without.
type need struct {
	// name is what it is, needs the option or the Linux it comes with.
	name, needs string
	// on is the feature without which this one cannot be tried.
	on string
	// try appends the least that needs it. The table is there.
	try func(b builder)
}

const (
	tables    = "nftables"
	natChains = "chains that translate addresses"
	plainMaps = "maps and sets"
)

// needs are tried in this order. TestProbeTriesEverything holds them to what
// the rules are made of.
var needs = []need{
	{name: tables, needs: "CONFIG_NF_TABLES with CONFIG_NF_TABLES_IPV4 and CONFIG_NF_TABLES_IPV6", try: func(builder) {}},
	{name: natChains, needs: "CONFIG_NFT_NAT", on: tables, try: func(b builder) {
		for _, c := range baseChains {
			b.tx.Add(nft.Op{Verb: nft.AddChain, Name: c, Hook: hooks[c]})
		}
	}},
	{name: plainMaps, needs: "CONFIG_NF_TABLES_SET, where the kernel has that option", on: tables, try: func(b builder) {
		b.set(model.Set{Table: model.ClusterIPs})
		b.set(model.Set{Table: model.StickyEndpoints})
		b.chain("a", []any{b.daddrIn(model.ClusterIPs), nft.Jump("b")}, []any{number(r0), find(model.StickyEndpoints, b.Family)})
	}},
	{name: "maps and sets by several fields", needs: "Linux 4.1 or later", on: plainMaps, try: func(b builder) {
		b.set(model.Set{Table: model.Sticky})
		b.set(model.Set{Table: model.Hairpin})
		b.chain("a", []any{b.key(false, r0), find(model.Sticky, b.Family)},
			[]any{b.saddr(r0), b.daddr(r0 + b.regs()), &expr.Lookup{SourceRegister: r0, SetName: model.Hairpin.Shape(b.Family).Name},
				&expr.Verdict{Kind: expr.VerdictDrop}})
	}},
	{name: "ranges in sets of several fields", needs: "Linux 5.6 or later", on: plainMaps, try: func(b builder) {
		b.set(model.Set{Table: model.Ranges})
		b.chain("a", []any{b.key(false, r0), b.saddr(r0 + 2 + b.regs()), &expr.Lookup{SourceRegister: r0,
			SetName: model.Ranges.Shape(b.Family).Name, Invert: true}, nft.Goto("b")})
	}},
	{name: "random numbers", needs: "CONFIG_NFT_NUMGEN, Linux 4.9 or later", on: tables, try: func(b builder) {
		b.chain("a", []any{&expr.Numgen{Register: r0, Modulus: 2, Type: unix.NFT_NG_RANDOM, Offset: 1}})
	}},
	{name: "translating destinations", needs: "CONFIG_NFT_NAT", on: natChains, try: func(b builder) {
		b.hooked("prerouting", nft.Proto(unix.IPPROTO_TCP), &expr.Immediate{Register: r0, Data: make([]byte, b.Family.AddrLen())},
			&expr.Immediate{Register: r0 + b.regs(), Data: make([]byte, 2)}, b.dnat())
	}},
	{name: "masquerading", needs: "CONFIG_NFT_MASQ", on: natChains, try: func(b builder) {
		b.hooked("postrouting", &expr.Masq{FullyRandom: true})
	}},
	{name: "telling the node's own addresses", needs: "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6, Linux 4.10 or later", on: natChains,
		try: func(b builder) {
			for _, c := range baseChains[:2] {
				b.hooked(c, b.toHere(), b.fromHere())
			}
		}},
	{name: "refusing before routing", needs: "CONFIG_NFT_REJECT_IPV4 and CONFIG_NFT_REJECT_IPV6, Linux 5.9 or later", on: natChains,
		try: func(b builder) {
			for _, c := range baseChains[:2] {
				b.hooked(c, nft.Proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
				b.rule(c, b.unreachable())
			}
		}},
	{name: "the state of connections", needs: "CONFIG_NFT_CT", on: natChains, try: func(b builder) {
		b.hooked("postrouting", &expr.Ct{Key: expr.CtKeySTATUS, Register: rTmp})
	}},
	{name: "marks and priorities that rules write", needs: "Linux 3.14 or later", on: natChains, try: func(b builder) {
		b.hooked("postrouting", b.setMark(b.MarkBit))
		b.unmark()
	}},
	{name: "interfaces by name", needs: "CONFIG_NF_TABLES", on: natChains, try: func(b builder) {
		b.hooked("postrouting", nft.Link(expr.MetaKeyIIFNAME, "a"), nft.Link(expr.MetaKeyOIFNAME, "a"))
	}},
	{name: "maps that rules write, with timeouts", needs: "Linux 4.1 or later", on: plainMaps, try: func(b builder) {
		b.memory()
		b.chain("a", b.write(probeMemory, unix.NFT_DYNSET_OP_UPDATE, time.Minute))
	}},
	{name: "rows that rules delete", needs: "Linux 5.4 or later", on: "maps that rules write, with timeouts", try: func(b builder) {
		b.memory()
		b.chain("a", b.write(probeMemory, nft.DynsetDelete, 0))
	}},
}

const probeMemory = "memory"

// memory declares a map that rules write.
func (b builder) memory() {
	b.tx.Add(nft.Op{Verb: nft.AddSet, Name: probeMemory, Set: affinitySet(probeMemory, b.Family)})
}

// hooked makes a base chain with a rule: what may stand there is checked too.
func (b builder) hooked(chain string, parts ...any) {
	b.tx.Add(nft.Op{Verb: nft.AddChain, Name: chain, Hook: hooks[chain]})
	b.rule(chain, parts...)
}

// tx is a table of its own with what the feature is for.
func (x need) tx(f model.Family, table string) *nft.Tx {
	tx := nft.NewTx(f, table)
	tx.Add(nft.Op{Verb: nft.AddTable})
	tx.Add(nft.Op{Verb: nft.AddChain, Name: "a"})
	tx.Add(nft.Op{Verb: nft.AddChain, Name: "b"})
	if x.name == tables {
		return tx
	}
	x.try(builder{Layout{Family: f, MarkBit: 1}, tx})
	return tx
}

// Lack is what a kernel has not that the rules of some families need.
type Lack struct {
	Families []model.Family
	Features []string
}

// Error names all that is missing.
func (l *Lack) Error() string {
	var of []string
	for _, f := range l.Families {
		of = append(of, f.String())
	}
	return fmt.Sprintf("the kernel lacks what the service rules of %s need: %s", strings.Join(of, " and "), strings.Join(l.Features, "; "))
}

// probe tries what the rules of a family need, each in a table of its own, and
// returns a *Lack that names what the kernel does not take. The tables stay:
// k is a kernel no one uses.
func probe(k nft.Kernel, f model.Family) error {
	var missing []string
	failed := map[string]bool{}
	for i, x := range needs {
		if failed[x.on] {
			failed[x.name] = true // not known, and not what has to be fixed first
			continue
		}
		err := k.Apply(x.tx(f, fmt.Sprint("probe-", i)))
		switch {
		case err == nil:
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			return fmt.Errorf("trying what the kernel can: %w", err)
		default:
			failed[x.name] = true
			missing = append(missing, fmt.Sprintf("%s (%s)", x.name, x.needs))
		}
	}
	if len(missing) > 0 {
		return &Lack{[]model.Family{f}, missing}
	}
	return nil
}

// ErrUntried says that this process may not make a network namespace.
var ErrUntried = errors.New("no network namespace to try the kernel in")

// ProbeHost probes the kernel in a network namespace that ends with the call, so
// that no table, rule or counter of the host's own is touched.
func ProbeHost(families ...model.Family) error {
	done := make(chan error, 1)
	go func() { done <- apart(func() error { return probeHere(families) }) }()
	return <-done
}

// apart runs f in a network namespace of its own, which is gone afterwards.
func apart(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrUntried, err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrUntried, err)
	}
	err = f()
	// To end the thread with the goroutine would not do: a program's first
	// thread never ends, and would keep the namespace.
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("leaving the probe's network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

func probeHere(families []model.Family) error {
	k, err := nft.Open()
	if err != nil {
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			return &Lack{families, []string{fmt.Sprintf("%s (%s)", tables, needs[0].needs)}}
		}
		return err
	}
	defer k.Close()
	return probeAll(k, families)
}

// probeAll tells what several families lack alike once.
func probeAll(k nft.Kernel, families []model.Family) error {
	var errs []error
	var last *Lack
	for _, f := range families {
		err := probe(k, f)
		var lack *Lack
		if errors.As(err, &lack) && last != nil && slices.Equal(last.Features, lack.Features) {
			last.Families = append(last.Families, f)
			continue
		}
		last, errs = lack, append(errs, err)
	}
	return errors.Join(errs...)
}
