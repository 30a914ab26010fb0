package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
)

// dump asks for a list and hands the attributes of every answer to each.
func (k *Netlink) dump(typ uint16, fam byte, fill func(), each func(attrs []byte) bool) error {
	return k.ask(typ, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, fam, fill, each)
}

// ask sends one question and reads its answers up to the end.
func (k *Netlink) ask(typ, flags uint16, fam byte, fill func(), each func(attrs []byte) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf, k.at = k.buf[:0], k.at[:0]
	at := k.begin(msgType(typ), flags, fam, frame)
	fill()
	k.end(at)
	seq := k.seq
	if err := k.send(); err != nil {
		return err
	}
	more, buf := true, make([]byte, 256<<10)
	for {
		n, _, err := unix.Recvfrom(k.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading a list from the kernel: %w", err)
		}
		for m := buf[:n]; len(m) >= 16; {
			size := int(binary.NativeEndian.Uint32(m))
			if size < 16 || size > len(m) {
				break
			}
			msg := m[:size]
			m = m[min(len(m), (size+3)/4*4):]
			if binary.NativeEndian.Uint32(msg[8:]) != seq {
				continue
			}
			switch binary.NativeEndian.Uint16(msg[4:]) {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if e := -int32(binary.NativeEndian.Uint32(msg[16:])); e != 0 {
					return fmt.Errorf("reading a list from the kernel: %w", unix.Errno(e))
				}
				return nil
			}
			if more && len(msg) > 20 {
				more = each(msg[20:])
			}
			if flags&unix.NLM_F_DUMP == 0 {
				return nil
			}
		}
	}
}

// attrs walks attributes.
func attrs(b []byte, each func(typ uint16, data []byte)) {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return
		}
		each(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:size])
		b = b[min(len(b), (size+3)/4*4):]
	}
}

// names lists what belongs to a table, by the attributes that hold the
// table's name and its own.
func (k *Netlink) names(msg uint16, f row.Family, table string, tableAttr, nameAttr uint16) ([]string, error) {
	var names []string
	err := k.dump(msg, famByte(f), func() { k.str(tableAttr, table) }, func(b []byte) bool {
		var in, name string
		attrs(b, func(t uint16, d []byte) {
			switch t {
			case tableAttr:
				in = string(bytes.TrimRight(d, "\x00"))
			case nameAttr:
				name = string(bytes.TrimRight(d, "\x00"))
			}
		})
		if in == table {
			names = append(names, name)
		}
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing what table %s %s holds: %w", f, table, err)
	}
	return names, nil
}

// Tables lists the tables of a family.
func (k *Netlink) Tables(f row.Family) ([]string, error) {
	var names []string
	err := k.dump(unix.NFT_MSG_GETTABLE, famByte(f), func() {}, func(b []byte) bool {
		attrs(b, func(t uint16, d []byte) {
			if t == unix.NFTA_TABLE_NAME {
				names = append(names, chainOf(d))
			}
		})
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("listing the tables of %s: %w", f, err)
	}
	return names, nil
}

// Chains lists a table's chains.
func (k *Netlink) Chains(f row.Family, table string) ([]string, error) {
	return k.names(unix.NFT_MSG_GETCHAIN, f, table, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
}

// Sets lists a table's sets and maps.
func (k *Netlink) Sets(f row.Family, table string) ([]string, error) {
	return k.names(unix.NFT_MSG_GETSET, f, table, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
}

// Generation is a number that every change of any table of this network
// namespace makes one larger.
func (k *Netlink) Generation() (uint32, error) {
	var gen uint32
	err := k.ask(unix.NFT_MSG_GETGEN, unix.NLM_F_REQUEST, unix.NFPROTO_UNSPEC, func() {}, func(b []byte) bool {
		attrs(b, func(t uint16, d []byte) {
			if t == unix.NFTA_GEN_ID && len(d) == 4 {
				gen = binary.BigEndian.Uint32(d)
			}
		})
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("asking for the generation of the tables: %w", err)
	}
	return gen, nil
}

// Rules lists a table's rules.
func (k *Netlink) Rules(f row.Family, table string) (map[string][]string, error) {
	rules, fam := map[string][]string{}, famByte(f)
	err := k.dump(unix.NFT_MSG_GETRULE, fam, func() { k.str(unix.NFTA_RULE_TABLE, table) }, func(b []byte) bool {
		var in, chain string
		var says []string
		attrs(b, func(t uint16, d []byte) {
			switch t {
			case unix.NFTA_RULE_TABLE:
				in = string(bytes.TrimRight(d, "\x00"))
			case unix.NFTA_RULE_CHAIN:
				chain = string(bytes.TrimRight(d, "\x00"))
			case unix.NFTA_RULE_EXPRESSIONS:
				attrs(d, func(_ uint16, e []byte) { says = append(says, expressionText(fam, e)) })
			}
		})
		if in == table {
			rules[chain] = append(rules[chain], strings.Join(says, " "))
		}
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the rules of table %s %s: %w", f, table, err)
	}
	return rules, nil
}

// expressionText prints an expression as the kernel tells it.
func expressionText(fam byte, b []byte) string {
	var name string
	var data []byte
	attrs(b, func(t uint16, d []byte) {
		switch t {
		case unix.NFTA_EXPR_NAME:
			name = string(bytes.TrimRight(d, "\x00"))
		case unix.NFTA_EXPR_DATA:
			data = d
		}
	})
	makes := map[string]func() expr.Any{
		"payload": func() expr.Any { return &expr.Payload{} }, "meta": func() expr.Any { return &expr.Meta{} },
		"lookup": func() expr.Any { return &expr.Lookup{} }, "bitwise": func() expr.Any { return &expr.Bitwise{} },
		"cmp": func() expr.Any { return &expr.Cmp{} }, "numgen": func() expr.Any { return &expr.Numgen{} },
		"nat": func() expr.Any { return &expr.NAT{} }, "dynset": func() expr.Any { return &expr.Dynset{} },
		"fib": func() expr.Any { return &expr.Fib{} }, "ct": func() expr.Any { return &expr.Ct{} },
		"reject": func() expr.Any { return &expr.Reject{} }, "masq": func() expr.Any { return &expr.Masq{} },
		"range": func() expr.Any { return &expr.Range{} }, "immediate": func() expr.Any { return &expr.Immediate{} },
	}
	if name == "byteorder" {
		return exprText(readByteorder(data)) // the library cannot
	}
	make, known := makes[name]
	if !known {
		return "unknown " + name
	}
	e := make()
	// A verdict is an immediate value for the verdict's register.
	if i, ok := e.(*expr.Immediate); ok && expr.Unmarshal(fam, data, i) == nil && i.Register == unix.NFT_REG_VERDICT {
		e = &expr.Verdict{}
	}
	if err := expr.Unmarshal(fam, data, e); err != nil {
		return "unreadable " + name
	}
	return exprText(e)
}

func readByteorder(b []byte) *expr.Byteorder {
	e := &expr.Byteorder{}
	attrs(b, func(t uint16, d []byte) {
		if len(d) != 4 {
			return
		}
		switch n := binary.BigEndian.Uint32(d); t {
		case unix.NFTA_BYTEORDER_SREG:
			e.SourceRegister = n
		case unix.NFTA_BYTEORDER_DREG:
			e.DestRegister = n
		case unix.NFTA_BYTEORDER_OP:
			e.Op = expr.ByteorderOp(n)
		}
	})
	return e
}

// Rows lists the elements of a set.
func (k *Netlink) Rows(f row.Family, table, set string, row func(key, value []byte) bool) error {
	err := k.dump(unix.NFT_MSG_GETSETELEM, famByte(f), func() {
		k.str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		k.str(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, elements(row))
	if err != nil {
		return fmt.Errorf("listing set %s of table %s %s: %w", set, f, table, err)
	}
	return nil
}

// Row reads one element of a set; ok is false when it is not there.
func (k *Netlink) Row(f row.Family, table, set string, key []byte) (value []byte, ok bool, err error) {
	err = k.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_REQUEST, famByte(f), func() {
		k.str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		k.str(unix.NFTA_SET_ELEM_LIST_SET, set)
		l, e := k.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS), k.nest(unix.NFTA_LIST_ELEM)
		k.value(unix.NFTA_SET_ELEM_KEY, key)
		k.close(e)
		k.close(l)
	}, elements(func(_, v []byte) bool {
		value, ok = bytes.Clone(v), true
		return true
	}))
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("looking into set %s of table %s %s: %w", set, f, table, err)
	}
	return value, ok, nil
}

// elements hands the elements of every message to row.
func elements(row func(key, value []byte) bool) func([]byte) bool {
	value := func(d []byte) (v []byte) {
		attrs(d, func(t uint16, d []byte) {
			switch t {
			case unix.NFTA_DATA_VALUE:
				v = d
			}
		})
		return v
	}
	return func(b []byte) bool {
		more := true
		attrs(b, func(t uint16, list []byte) {
			if t != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return
			}
			attrs(list, func(_ uint16, elem []byte) {
				var key, val []byte
				attrs(elem, func(t uint16, d []byte) {
					switch t {
					case unix.NFTA_SET_ELEM_KEY:
						key = value(d)
					case unix.NFTA_SET_ELEM_DATA, setElemKeyEnd:
						val = value(d)
					}
				})
				more = more && row(key, val)
			})
		})
		return more
	}
}
