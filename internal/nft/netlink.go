package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
)

var errNotExist error = unix.ENOENT

// chunk is how many bytes of elements go into one message: one attribute
// holds 64 KiB at most.
const chunk = 48 << 10

// Netlink is the kernel of the network namespace it was opened in.
type Netlink struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
	// heard is where answers are read to; room is the size of the socket's buffer.
	heard []byte
	room  int
	// at[i] is the operation message seq0+i belongs to.
	at []place
	// Messages counts netlink messages sent, for benchmarks and metrics.
	Messages int
	// Applied counts transactions that changed something.
	Applied uint32
}

// place is an operation of a transaction of a batch; op is -1 for what frames it.
type place struct{ tx, op int }

// Open connects to the kernel of the calling thread's network namespace.
func Open() (*Netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netfilter socket: %w", err)
	}
	k := &Netlink{fd: fd}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("preparing the netfilter socket: %w", err)
	}
	return k, nil
}

// OpenAt connects to the kernel of the network namespace of an open file.
func OpenAt(fd int) (*Netlink, error) {
	var k *Netlink
	done := make(chan error)
	go func() {
		// The thread is never unlocked: it ends with the goroutine, and no one
		// else runs in the namespace.
		runtime.LockOSThread()
		err := unix.Setns(fd, unix.CLONE_NEWNET)
		if err != nil {
			done <- fmt.Errorf("entering a network namespace: %w", err)
			return
		}
		k, err = Open()
		done <- err
	}()
	return k, <-done
}

// Close ends the connection; what was applied stays.
func (k *Netlink) Close() error { return unix.Close(k.fd) }

func (k *Netlink) begin(typ uint16, flags uint16, fam byte, of place) int {
	at := len(k.buf)
	k.buf = append(k.buf, make([]byte, 20)...)
	h := k.buf[at:]
	binary.NativeEndian.PutUint16(h[4:], typ)
	binary.NativeEndian.PutUint16(h[6:], flags)
	k.seq++
	binary.NativeEndian.PutUint32(h[8:], k.seq)
	h[16] = fam
	k.at = append(k.at, of)
	return at
}

func (k *Netlink) end(at int) {
	binary.NativeEndian.PutUint32(k.buf[at:], uint32(len(k.buf)-at))
}

func (k *Netlink) attr(typ uint16, data ...byte) {
	k.buf = binary.NativeEndian.AppendUint16(k.buf, uint16(4+len(data)))
	k.buf = binary.NativeEndian.AppendUint16(k.buf, typ)
	k.buf = append(k.buf, data...)
	for len(k.buf)%4 != 0 {
		k.buf = append(k.buf, 0)
	}
}

func (k *Netlink) str(typ uint16, s string) { k.attr(typ, append([]byte(s), 0)...) }
func (k *Netlink) be32(typ uint16, n uint32) {
	k.attr(typ, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func (k *Netlink) nest(typ uint16) int {
	at := len(k.buf)
	k.buf = append(k.buf, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(k.buf[at+2:], typ|unix.NLA_F_NESTED)
	return at
}

func (k *Netlink) close(at int) {
	binary.NativeEndian.PutUint16(k.buf[at:], uint16(len(k.buf)-at))
}

func msgType(t uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | t }

func famByte(f row.Family) byte {
	switch f {
	case row.V6:
		return unix.NFPROTO_IPV6
	case row.Bridge:
		return unix.NFPROTO_BRIDGE
	}
	return unix.NFPROTO_IPV4
}

// Apply sends the transactions as one batch: the kernel takes all of it or none.
func (k *Netlink) Apply(txs ...*Tx) error {
	ops := 0
	for _, tx := range txs {
		if tx.err != nil {
			return tx.err
		}
		ops += len(tx.Ops)
	}
	if ops == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	first, lastSeq, err := k.batch(txs...)
	if err != nil {
		return err
	}
	k.Messages += len(k.at)
	err = k.send()
	if err == nil {
		err = k.answer(txs, first, lastSeq)
	}
	if err == nil {
		k.Applied++
	}
	if cap(k.buf) > 1<<20 {
		k.buf = nil // the first sync's buffer is not needed again
	}
	return err
}

// batch encodes transactions into the buffer, and returns the numbers of the
// first message and of the last one within its frame.
func (k *Netlink) batch(txs ...*Tx) (first, last uint32, err error) {
	k.buf, k.at = k.buf[:0], k.at[:0]
	first = k.seq + 1
	k.frame(unix.NFNL_MSG_BATCH_BEGIN)
	at := 0
	for n, tx := range txs {
		for i := range tx.Ops {
			if at, err = k.encode(tx, place{n, i}); err != nil {
				return 0, 0, fmt.Errorf("encoding %q: %w", tx.Ops[i], err)
			}
		}
	}
	// Only the last message asks for an answer; mistakes answer unasked.
	flags := k.buf[at+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	last = binary.NativeEndian.Uint32(k.buf[at+8:])
	k.frame(unix.NFNL_MSG_BATCH_END)
	return first, last, nil
}

var frame = place{op: -1}

func (k *Netlink) frame(typ uint16) {
	at := k.begin(typ, unix.NLM_F_REQUEST, 0, frame)
	// The subsystem a batch is for, in network order.
	binary.BigEndian.PutUint16(k.buf[at+18:], unix.NFNL_SUBSYS_NFTABLES)
	k.end(at)
}

func (k *Netlink) send() error {
	if size := len(k.buf) + 64<<10; size > max(200<<10, k.room) {
		if err := unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
			return fmt.Errorf("making room for a batch of %d bytes: %w", len(k.buf), err)
		}
		k.room = size
	}
	if err := unix.Sendto(k.fd, k.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("sending a batch of %d bytes to the kernel: %w", len(k.buf), err)
	}
	return nil
}

// answer reads until the last message is acknowledged; the first error in it
// names the operation that failed.
func (k *Netlink) answer(txs []*Tx, first, last uint32) error {
	var failed error
	if k.heard == nil {
		k.heard = make([]byte, 8<<10)
	}
	for {
		n, _, err := unix.Recvfrom(k.fd, k.heard, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(failed, fmt.Errorf("waiting for the kernel to take %d messages: %w", len(k.at), err))
		}
		for m := k.heard[:n]; len(m) >= 20; {
			size := int(binary.NativeEndian.Uint32(m))
			if size < 20 || size > len(m) {
				break
			}
			seq := binary.NativeEndian.Uint32(m[8:])
			errno := -int32(binary.NativeEndian.Uint32(m[16:]))
			isErr := binary.NativeEndian.Uint16(m[4:]) == unix.NLMSG_ERROR
			m = m[min(len(m), (size+3)/4*4):]
			if !isErr || seq-first >= uint32(len(k.at)) {
				continue // an answer to an earlier batch
			}
			if errno != 0 && failed == nil {
				at := k.at[seq-first]
				failed = OpError(txs[at.tx], at.op, unix.Errno(errno))
			}
			if seq == last || k.at[seq-first].op < 0 {
				return failed
			}
		}
	}
}

// OpError is the kernel's refusal of an operation of a transaction, of the whole
// if op is negative.
func OpError(tx *Tx, op int, errno unix.Errno) error {
	what := "committing the whole transaction"
	if op >= 0 {
		what = tx.Ops[op].String()
		if errno == unix.ENOENT || errno == unix.EOPNOTSUPP {
			if f := feature(tx.Ops[op]); f != "" {
				what += " (does this kernel have " + f + "?)"
			}
		}
	}
	return fmt.Errorf("changing table %s %s: %s: %w", tx.Family, tx.Table, what, errno)
}

// feature names the kernel options a rule needs beyond the plain ones.
func feature(o Op) string {
	for _, e := range o.Rule {
		switch e.(type) {
		case *expr.Numgen:
			return "CONFIG_NFT_NUMGEN"
		case *expr.NAT:
			return "CONFIG_NFT_NAT"
		case *expr.Masq:
			return "CONFIG_NFT_MASQ"
		case *expr.Fib:
			return "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6"
		case *expr.Reject:
			return "CONFIG_NFT_REJECT, and Linux 5.9 or later to reject before routing"
		case *expr.Ct:
			return "CONFIG_NFT_CT"
		}
	}
	return ""
}

// encode appends the messages of one operation and returns where the last
// of them begins.
func (k *Netlink) encode(tx *Tx, i place) (int, error) {
	o, fam := tx.Ops[i.op], famByte(tx.Family)
	const add = unix.NLM_F_REQUEST | unix.NLM_F_CREATE
	var at int
	switch o.Verb {
	case AddTable, DeleteTable:
		typ := uint16(unix.NFT_MSG_NEWTABLE)
		if o.Verb == DeleteTable {
			typ = unix.NFT_MSG_DELTABLE
		}
		at = k.begin(msgType(typ), add, fam, i)
		k.str(unix.NFTA_TABLE_NAME, tx.Table)
	case AddChain:
		at = k.begin(msgType(unix.NFT_MSG_NEWCHAIN), add, fam, i)
		k.str(unix.NFTA_CHAIN_TABLE, tx.Table)
		k.str(unix.NFTA_CHAIN_NAME, o.Name)
		if o.Hook != nil {
			n := k.nest(unix.NFTA_CHAIN_HOOK)
			k.be32(unix.NFTA_HOOK_HOOKNUM, o.Hook.Num)
			k.be32(unix.NFTA_HOOK_PRIORITY, uint32(o.Hook.Priority))
			k.close(n)
			k.str(unix.NFTA_CHAIN_TYPE, o.Hook.kind())
		}
	case FlushChain:
		at = k.begin(msgType(unix.NFT_MSG_DELRULE), unix.NLM_F_REQUEST, fam, i)
		k.str(unix.NFTA_RULE_TABLE, tx.Table)
		k.str(unix.NFTA_RULE_CHAIN, o.Name)
	case AddRule:
		at = k.begin(msgType(unix.NFT_MSG_NEWRULE), add|unix.NLM_F_APPEND, fam, i)
		k.str(unix.NFTA_RULE_TABLE, tx.Table)
		k.str(unix.NFTA_RULE_CHAIN, o.Name)
		n := k.nest(unix.NFTA_RULE_EXPRESSIONS)
		for _, e := range o.Rule {
			b, err := expr.Marshal(fam, e)
			if err != nil {
				return 0, err
			}
			k.attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b...)
		}
		k.close(n)
	case AddSet:
		at = k.begin(msgType(unix.NFT_MSG_NEWSET), add, fam, i)
		k.set(tx.Table, o.Set, k.seq)
	case DeleteChain:
		at = k.begin(msgType(unix.NFT_MSG_DELCHAIN), unix.NLM_F_REQUEST, fam, i)
		k.str(unix.NFTA_CHAIN_TABLE, tx.Table)
		k.str(unix.NFTA_CHAIN_NAME, o.Name)
	case DeleteSet:
		at = k.begin(msgType(unix.NFT_MSG_DELSET), unix.NLM_F_REQUEST, fam, i)
		k.str(unix.NFTA_SET_TABLE, tx.Table)
		k.str(unix.NFTA_SET_NAME, o.Name)
	case AddRows, DeleteRows:
		return k.rows(tx, i), nil
	}
	k.end(at)
	return at, nil
}

func (k *Netlink) value(typ uint16, b []byte) {
	n := k.nest(typ)
	k.attr(unix.NFTA_DATA_VALUE, b...)
	k.close(n)
}

const (
	setElemKeyEnd  = 10 // NFTA_SET_ELEM_KEY_END
	setDescConcat  = 2  // NFTA_SET_DESC_CONCAT
	setFieldLen    = 1  // NFTA_SET_FIELD_LEN
	setFlagConcat  = 0x80
	affinityMemory = 1 << 20
)

func (k *Netlink) set(table string, s *Set, id uint32) {
	k.str(unix.NFTA_SET_TABLE, table)
	k.str(unix.NFTA_SET_NAME, s.Name)
	k.be32(unix.NFTA_SET_ID, id)
	var flags uint32
	if len(s.Value) > 0 || s.Chains {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(s.Key) > 1 && s.Interval {
		flags |= setFlagConcat
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	magic := func(ts []Type) (m uint32) {
		for _, t := range ts {
			m = m<<6 | t.magic
		}
		return m
	}
	k.be32(unix.NFTA_SET_FLAGS, flags)
	k.be32(unix.NFTA_SET_KEY_TYPE, magic(s.Key))
	k.be32(unix.NFTA_SET_KEY_LEN, uint32(Width(s.Key)))
	if len(s.Value) > 0 {
		k.be32(unix.NFTA_SET_DATA_TYPE, magic(s.Value))
		k.be32(unix.NFTA_SET_DATA_LEN, uint32(Width(s.Value)))
	}
	if s.Chains {
		k.be32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	}
	if u := s.userdata(); u != nil {
		k.attr(unix.NFTA_SET_USERDATA, u...)
	}
	if ranged := s.Interval && len(s.Key) > 1; s.Dynamic || ranged {
		d := k.nest(unix.NFTA_SET_DESC)
		if s.Dynamic {
			k.be32(unix.NFTA_SET_DESC_SIZE, affinityMemory)
		}
		if ranged {
			c := k.nest(setDescConcat)
			for _, t := range s.Key {
				e := k.nest(unix.NFTA_LIST_ELEM)
				k.be32(setFieldLen, uint32(t.len))
				k.close(e)
			}
			k.close(c)
		}
		k.close(d)
	}
}

// rows appends elements in messages of a bounded size.
func (k *Netlink) rows(tx *Tx, i place) int {
	o, fam := tx.Ops[i.op], famByte(tx.Family)
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_REQUEST|unix.NLM_F_CREATE)
	if o.Verb == DeleteRows {
		typ, flags = unix.NFT_MSG_DELSETELEM, unix.NLM_F_REQUEST
	}
	at := 0
	for rest := o.Rows; len(rest) > 0; {
		at = k.begin(msgType(typ), flags, fam, i)
		k.str(unix.NFTA_SET_ELEM_LIST_TABLE, tx.Table)
		k.str(unix.NFTA_SET_ELEM_LIST_SET, o.Name)
		l := k.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(rest) > 0 && len(k.buf)-l < chunk {
			k.row(o.Shape, rest[:o.stride()])
			rest = rest[o.stride():]
		}
		k.close(l)
		k.end(at)
	}
	return at
}

// row appends one element, or the two of an interval of one field.
func (k *Netlink) row(s row.Shape, r []byte) {
	e := k.nest(unix.NFTA_LIST_ELEM)
	k.value(unix.NFTA_SET_ELEM_KEY, r[:s.Key])
	switch v := r[s.Key:]; {
	case s.Single:
		if end, _ := netip.AddrFromSlice(v); end.Next().IsValid() { // to the last address needs no end
			k.close(e)
			e = k.nest(unix.NFTA_LIST_ELEM)
			k.value(unix.NFTA_SET_ELEM_KEY, end.Next().AsSlice())
			k.be32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		}
	case s.Interval:
		k.value(setElemKeyEnd, v)
	case s.Chains && len(v) > 0:
		d := k.nest(unix.NFTA_SET_ELEM_DATA)
		to := k.nest(unix.NFTA_DATA_VERDICT)
		k.be32(unix.NFTA_VERDICT_CODE, verdictGoto)
		k.str(unix.NFTA_VERDICT_CHAIN, chainOf(v))
		k.close(to)
		k.close(d)
	case len(v) > 0:
		k.value(unix.NFTA_SET_ELEM_DATA, v)
	}
	k.close(e)
}

// verdictGoto is NFT_GOTO, -4.
const verdictGoto = 1<<32 - 4
