package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
)

// Packet is a packet, the first of a connection unless Known, and the world it
// is in.
type Packet struct {
	Proto    byte
	Src, Dst netip.AddrPort
	// In is the interface it came in through; empty if it starts here.
	In string
	// Mark and Priority are the packet's.
	Mark, Priority uint32
	// Now is the time in seconds, for affinity.
	Now float64
	// Here says whether an address is the host's own.
	Here func(netip.Addr) bool
	// Out tells the interface a packet to an address leaves through.
	Out func(netip.Addr) string
	// Known says that the packet belongs to a connection that was let through.
	Known bool
	// ICMPType is the message's type where Proto is that of ICMPv6.
	ICMPType byte
	// Random draws a number below n.
	Random func(n uint32) uint32
}

// outcome is what became of it.
type outcome struct {
	// Verdict is "accept", "drop" or "reject".
	Verdict string
	// To is the destination, which is the original one without translation.
	To netip.AddrPort
	// Masqueraded says that the source became the host's own.
	Masqueraded bool
	// Mark and Priority are the packet's as it leaves.
	Mark, Priority uint32
}

// Connect sends a packet through a table's chains: those where it comes in or
// starts, those where it is forwarded, and those where it leaves.
func (k *Fake) Connect(f row.Family, table string, p Packet) (outcome, error) {
	t := k.tables[tableKey{f, table}]
	out := outcome{Verdict: "accept", To: p.Dst, Mark: p.Mark, Priority: p.Priority}
	if t == nil {
		return out, nil
	}
	way := []uint32{unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING}
	if p.In == "" {
		way = []uint32{unix.NF_INET_LOCAL_OUT, unix.NF_INET_POST_ROUTING}
	}
	m := &evaluator{table: t, family: f, p: p, out: &out}
	for i, h := range way {
		if i > 0 {
			if p.Here(out.To.Addr()) {
				break // delivered here
			}
			m.oif = p.Out(out.To.Addr())
		}
		for _, c := range t.at(h) {
			if _, err := m.chain(c, 0); err != nil {
				return out, err
			}
			if out.Verdict != "accept" {
				return out, nil
			}
		}
	}
	return out, nil
}

// at lists the chains at a hook in the order in which packets enter them.
func (t *fakeTable) at(hook uint32) (chains []*fakeChain) {
	for _, c := range t.chains {
		if c.hook != nil && c.hook.Num == hook {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b *fakeChain) int { return cmp.Compare(a.hook.Priority, b.hook.Priority) })
	return chains
}

// machine evaluates rules.
type evaluator struct {
	table  *fakeTable
	family row.Family
	p      Packet
	oif    string
	// to is the chain that a lookup led to.
	to   string
	out  *outcome
	regs [64 + 16*4]byte
}

// signal is how a rule or chain ended.
type signal int

const (
	next    signal = iota // go on with the next rule
	stop                  // a verdict was reached
	returns               // the chain was left by goto
)

const maxDepth = 16

// chain runs a chain's rules.
func (m *evaluator) chain(c *fakeChain, depth int) (signal, error) {
	if depth > maxDepth {
		return stop, fmt.Errorf("chains lead deeper than %d", maxDepth)
	}
	for _, r := range c.rules {
		s, err := m.rule(r, depth)
		if err != nil {
			return stop, fmt.Errorf("evaluating %q: %w", r, err)
		}
		if s == stop {
			return stop, nil
		}
		if s == returns {
			return next, nil
		}
	}
	return next, nil
}

// reg is where a register's bytes begin: 1..4 are of 16 bytes, those from
// NFT_REG32_00 on of four.
func (m *evaluator) reg(r uint32) []byte {
	if r >= unix.NFT_REG32_00 {
		return m.regs[4*(r-unix.NFT_REG32_00):]
	}
	return m.regs[16*(r-1):]
}

func (m *evaluator) load(r uint32, b []byte) {
	to := m.reg(r)
	clear(to[:(len(b)+3)/4*4])
	copy(to, b)
}

// rule runs one rule; next also stands for "did not match".
func (m *evaluator) rule(r Op, depth int) (signal, error) {
	for _, e := range r.Rule {
		switch e := e.(type) {
		case *expr.Verdict:
			return m.verdict(e.Kind, e.Chain, depth)
		case *expr.Reject:
			m.out.Verdict = "reject"
			return stop, nil
		case *expr.Masq:
			m.out.Masqueraded = true
			return stop, nil
		case *expr.NAT:
			a, _ := netip.AddrFromSlice(m.reg(e.RegAddrMin)[:m.family.AddrLen()])
			m.out.To = netip.AddrPortFrom(a, binary.BigEndian.Uint16(m.reg(e.RegProtoMin)))
			return stop, nil
		case *expr.Lookup:
			found, err := m.lookup(e)
			if err != nil || !found {
				return next, err
			}
			if m.table.sets[e.SetName].Chains {
				return m.verdict(expr.VerdictGoto, m.to, depth)
			}
		default:
			matched, err := m.step(e)
			if err != nil || !matched {
				return next, err
			}
		}
	}
	return next, nil
}

func (m *evaluator) verdict(kind expr.VerdictKind, chain string, depth int) (signal, error) {
	switch kind {
	case expr.VerdictAccept:
		return stop, nil
	case expr.VerdictDrop:
		m.out.Verdict = "drop"
		return stop, nil
	case expr.VerdictJump, expr.VerdictGoto:
		c := m.table.chains[chain]
		if c == nil {
			return stop, fmt.Errorf("no chain %s", chain)
		}
		s, err := m.chain(c, depth+1)
		if s == next && kind == expr.VerdictGoto {
			s = returns
		}
		return s, err
	}
	return stop, fmt.Errorf("unknown verdict %d", kind)
}

func (m *evaluator) lookup(e *expr.Lookup) (found bool, err error) {
	s := m.table.sets[e.SetName]
	if s == nil {
		return false, fmt.Errorf("no set %s", e.SetName)
	}
	v, ok := s.find(m.reg(e.SourceRegister)[:Width(s.Key)], m.p.Now)
	if e.Invert {
		return !ok, nil
	}
	if ok && s.Chains {
		m.to = chainOf([]byte(v))
		return true, nil
	}
	if ok && e.IsDestRegSet {
		m.load(e.DestRegister, []byte(v))
	}
	return ok, nil
}

// step runs an expression that ends nothing, and says whether it matched.
func (m *evaluator) step(e expr.Any) (bool, error) {
	switch e := e.(type) {
	case *expr.Payload:
		b, err := m.payload(e)
		m.load(e.DestRegister, b)
		return true, err
	case *expr.Meta:
		return true, m.meta(e)
	case *expr.Ct:
		m.load(e.Register, Num(m.ct(e.Key)))
	case *expr.Fib:
		a := m.out.To.Addr()
		if e.FlagSADDR {
			a = m.p.Src.Addr()
		}
		kind := uint32(unix.RTN_UNICAST)
		if m.p.Here(a) {
			kind = unix.RTN_LOCAL
		}
		m.load(e.Register, Num(kind))
	case *expr.Numgen:
		m.load(e.Register, Num(e.Offset+m.p.Random(e.Modulus)))
	case *expr.Immediate:
		m.load(e.Register, e.Data)
	case *expr.Bitwise:
		b := bytes.Clone(m.reg(e.SourceRegister)[:e.Len])
		for i := range b {
			b[i] = b[i]&e.Mask[i] ^ e.Xor[i]
		}
		m.load(e.DestRegister, b)
	case *expr.Byteorder:
		b := bytes.Clone(m.reg(e.SourceRegister)[:e.Len])
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
			slices.Reverse(b)
		}
		m.load(e.DestRegister, b)
	case *expr.Cmp:
		return compared(e.Op, bytes.Compare(m.reg(e.Register)[:len(e.Data)], e.Data))
	case *expr.Range:
		b := m.reg(e.Register)[:len(e.FromData)]
		in := bytes.Compare(b, e.FromData) >= 0 && bytes.Compare(b, e.ToData) <= 0
		return in == (e.Op == expr.CmpOpEq), nil
	case *expr.Dynset:
		s := m.table.sets[e.SetName]
		if s == nil {
			return false, fmt.Errorf("no set %s", e.SetName)
		}
		key := string(m.reg(e.SrcRegKey)[:Width(s.Key)])
		if e.Operation == DynsetDelete {
			delete(s.until, key)
			return true, nil
		}
		if _, there := s.find([]byte(key), m.p.Now); !there {
			s.rows[key] = string(m.reg(e.SrcRegData)[:Width(s.Value)])
		}
		s.until[key] = m.p.Now + e.Timeout.Seconds()
	default:
		return false, fmt.Errorf("unknown expression %T", e)
	}
	return true, nil
}

// compared says whether a comparison by op holds of what is less (-1), equal or greater.
func compared(op expr.CmpOp, order int) (bool, error) {
	switch op {
	case expr.CmpOpEq:
		return order == 0, nil
	case expr.CmpOpNeq:
		return order != 0, nil
	case expr.CmpOpGte:
		return order >= 0, nil
	case expr.CmpOpLte:
		return order <= 0, nil
	}
	return false, fmt.Errorf("unknown comparison %d", op)
}

// ct is what connection tracking knows of the packet.
func (m *evaluator) ct(key expr.CtKey) uint32 {
	switch {
	case key == expr.CtKeySTATE && m.p.Known:
		return expr.CtStateBitESTABLISHED
	case key == expr.CtKeySTATE:
		return expr.CtStateBitNEW
	case m.out.To != m.p.Dst:
		return CtStatusDNAT
	}
	return 0
}

func (m *evaluator) payload(e *expr.Payload) ([]byte, error) {
	src, dst := Saddr(m.family, 0).(*expr.Payload).Offset, Daddr(m.family, 0).(*expr.Payload).Offset
	switch {
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == src:
		return m.p.Src.Addr().AsSlice(), nil
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == dst:
		return m.out.To.Addr().AsSlice(), nil
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == 2:
		return binary.BigEndian.AppendUint16(nil, m.out.To.Port()), nil
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == 0 && e.Len == 1 && m.p.Proto == unix.IPPROTO_ICMPV6:
		return []byte{m.p.ICMPType}, nil
	}
	return nil, fmt.Errorf("payload at %d of header %d is unknown", e.Offset, e.Base)
}

func (m *evaluator) meta(e *expr.Meta) error {
	switch {
	case e.Key == expr.MetaKeyMARK && e.SourceRegister:
		m.out.Mark = binary.NativeEndian.Uint32(m.reg(e.Register))
	case e.Key == expr.MetaKeyMARK:
		m.load(e.Register, Num(m.out.Mark))
	case e.Key == expr.MetaKeyPRIORITY && e.SourceRegister:
		m.out.Priority = binary.NativeEndian.Uint32(m.reg(e.Register))
	case e.Key == expr.MetaKeyPRIORITY:
		m.load(e.Register, Num(m.out.Priority))
	case e.Key == expr.MetaKeyL4PROTO:
		m.load(e.Register, []byte{m.p.Proto})
	case e.Key == expr.MetaKeyIIFNAME:
		m.load(e.Register, Ifname(m.p.In))
	case e.Key == expr.MetaKeyOIFNAME:
		m.load(e.Register, Ifname(m.oif))
	default:
		return fmt.Errorf("meta %d is unknown", e.Key)
	}
	return nil
}
