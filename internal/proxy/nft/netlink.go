package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/model"
)

var (
	errExist    error = unix.EEXIST
	errNotExist error = unix.ENOENT
)

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
	at []int
	// Messages counts netlink messages sent, for benchmarks and metrics.
	Messages int
	// Applied counts transactions that changed something.
	Applied uint32
}

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

// Close ends the connection; what was applied stays.
func (k *Netlink) Close() error { return unix.Close(k.fd) }

func (k *Netlink) begin(typ uint16, flags uint16, fam byte, op int) int {
	at := len(k.buf)
	k.buf = append(k.buf, make([]byte, 20)...)
	h := k.buf[at:]
	binary.NativeEndian.PutUint16(h[4:], typ)
	binary.NativeEndian.PutUint16(h[6:], flags)
	k.seq++
	binary.NativeEndian.PutUint32(h[8:], k.seq)
	h[16] = fam
	k.at = append(k.at, op)
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

func famByte(f model.Family) byte {
	if f == model.V6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Apply sends tx as one batch: the kernel takes all of it or none.
func (k *Netlink) Apply(tx *Tx) error {
	if tx.err != nil {
		return tx.err
	}
	if len(tx.Ops) == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	first, lastSeq, err := k.batch(tx)
	if err != nil {
		return err
	}
	k.Messages += len(k.at)
	err = k.send()
	if err == nil {
		err = k.answer(tx, first, lastSeq)
	}
	if err == nil {
		k.Applied++
	}
	if cap(k.buf) > 1<<20 {
		k.buf = nil // the first sync's buffer is not needed again
	}
	return err
}

// batch encodes tx into the buffer, and returns the numbers of its first
// message and of the last one within its frame.
func (k *Netlink) batch(tx *Tx) (first, last uint32, err error) {
	k.buf, k.at = k.buf[:0], k.at[:0]
	first = k.seq + 1
	k.frame(unix.NFNL_MSG_BATCH_BEGIN)
	at := 0
	for i := range tx.Ops {
		if at, err = k.encode(tx, i); err != nil {
			return 0, 0, fmt.Errorf("encoding %q: %w", tx.Ops[i], err)
		}
	}
	// Only the last message asks for an answer; mistakes answer unasked.
	flags := k.buf[at+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	last = binary.NativeEndian.Uint32(k.buf[at+8:])
	k.frame(unix.NFNL_MSG_BATCH_END)
	return first, last, nil
}

func (k *Netlink) frame(typ uint16) {
	at := k.begin(typ, unix.NLM_F_REQUEST, 0, -1)
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
func (k *Netlink) answer(tx *Tx, first, last uint32) error {
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
			return errors.Join(failed, fmt.Errorf("waiting for the kernel to take %d operations: %w", len(tx.Ops), err))
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
				failed = opError(tx, k.at[seq-first], unix.Errno(errno))
			}
			if seq == last || k.at[seq-first] < 0 {
				return failed
			}
		}
	}
}

func opError(tx *Tx, op int, errno unix.Errno) error {
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
func (k *Netlink) encode(tx *Tx, i int) (int, error) {
	o, fam := tx.Ops[i], famByte(tx.Family)
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
			k.str(unix.NFTA_CHAIN_TYPE, "nat")
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
		k.set(tx.Table, o.Set, uint32(i+1))
	case DeleteChain:
		at = k.begin(msgType(unix.NFT_MSG_DELCHAIN), unix.NLM_F_REQUEST, fam, i)
		k.str(unix.NFTA_CHAIN_TABLE, tx.Table)
		k.str(unix.NFTA_CHAIN_NAME, o.Name)
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
	if len(s.Value) > 0 {
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
	k.be32(unix.NFTA_SET_KEY_LEN, uint32(width(s.Key)))
	if len(s.Value) > 0 {
		k.be32(unix.NFTA_SET_DATA_TYPE, magic(s.Value))
		k.be32(unix.NFTA_SET_DATA_LEN, uint32(width(s.Value)))
	}
	if u := s.userdata(); u != nil {
		k.attr(unix.NFTA_SET_USERDATA, u...)
	}
	if s.Dynamic || s.Interval {
		d := k.nest(unix.NFTA_SET_DESC)
		if s.Dynamic {
			k.be32(unix.NFTA_SET_DESC_SIZE, affinityMemory)
		}
		if s.Interval {
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
func (k *Netlink) rows(tx *Tx, i int) int {
	o, fam := tx.Ops[i], famByte(tx.Family)
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
			row := rest[:o.stride()]
			rest = rest[len(row):]
			e := k.nest(unix.NFTA_LIST_ELEM)
			k.value(unix.NFTA_SET_ELEM_KEY, row[:o.Shape.Key])
			switch v := row[o.Shape.Key:]; {
			case o.Shape.Interval:
				k.value(setElemKeyEnd, v)
			case len(v) > 0:
				k.value(unix.NFTA_SET_ELEM_DATA, v)
			}
			k.close(e)
		}
		k.close(l)
		k.end(at)
	}
	return at
}
