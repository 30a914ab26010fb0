// Package nft carries rows and rules into the kernel's nftables for everybody
// here who has some (the proxy, network policies, the pod network): a typed
// transaction that keeps its first error and prints as text, the one writer of
// it over netlink, reading back what stands, and a kernel in memory that takes
// the same transactions and evaluates packets.
package nft

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
)

// Verb is what an Op does.
type Verb uint8

// The verbs. AddTable and AddChain succeed on what exists already.
const (
	AddTable Verb = iota
	DeleteTable
	AddChain
	FlushChain
	AddRule
	AddSet
	AddRows
	DeleteRows
	DeleteChain
	DeleteSet
)

var verbs = [...]string{"add table", "delete table", "add chain", "flush chain", "add rule", "add set", "add rows", "delete rows",
	"delete chain", "delete set"}

func (v Verb) String() string { return verbs[v] }

// Hook ties a chain to the packet path.
type Hook struct {
	Num      uint32
	Priority int32
	// Type is "nat" or "filter"; empty is "nat".
	Type string
}

func (h *Hook) kind() string {
	if h.Type == "" {
		return "nat"
	}
	return h.Type
}

// Set declares a set or map.
type Set struct {
	Name string
	// Key and Value are the kernel-independent types nft prints rows with.
	Key, Value []Type
	Interval   bool
	// Dynamic sets are filled by packets; their elements time out.
	Dynamic bool
	// Chains says that it is a map to chains to go to; it has no Value then.
	Chains bool
}

// Width is what fields take in a row, in bytes.
func Width(ts []Type) (padded int) {
	for _, t := range ts {
		padded += (t.len + 3) / 4 * 4
	}
	return padded
}

// Op is one step of a transaction.
type Op struct {
	Verb  Verb
	Name  string
	Hook  *Hook
	Rule  []expr.Any
	Set   *Set
	Shape row.Shape
	Rows  []byte
}

// String names the operation, for errors and dumps.
func (o Op) String() string {
	switch o.Verb {
	case AddRows, DeleteRows:
		return fmt.Sprintf("%s: %d in %s", o.Verb, o.count(), o.Name)
	case AddRule:
		return fmt.Sprintf("%s to chain %s: %s", o.Verb, o.Name, ruleText(o.Rule))
	}
	return fmt.Sprintf("%s %s", o.Verb, o.Name)
}

// Says prints what a rule does, no matter who made it: two rules with one text do
// the same.
func (o Op) Says() string { return ruleText(o.Rule) }

func (o Op) stride() int {
	if o.Verb == DeleteRows {
		return o.Shape.DelStride()
	}
	return o.Shape.Stride()
}

func (o Op) count() int { return len(o.Rows) / max(1, o.stride()) }

// Tx is a transaction on one table of one family. It keeps the first mistake
// made while it is gathered; Apply then returns that and does nothing.
type Tx struct {
	Family row.Family
	Table  string
	Ops    []Op
	err    error
}

// PartRows is how many rows a table that no packet enters yet should get at
// once (see Parts). The kernel's sets and maps grow beside the transactions, and
// slowly during one: a map of 250,000 rows takes twice as long in one piece.
const PartRows = 4096

// NewTx starts an empty transaction on a table.
func NewTx(f row.Family, table string) *Tx { return &Tx{Family: f, Table: table} }

// Add appends an operation.
func (t *Tx) Add(o Op) {
	if t.err == nil && (o.Verb == AddRows || o.Verb == DeleteRows) && len(o.Rows)%o.stride() != 0 {
		t.err = fmt.Errorf("gathering %q: %d bytes are no whole number of rows of %d", o.String(), len(o.Rows), o.stride())
	}
	t.Ops = append(t.Ops, o)
}

// Parts cuts a transaction whose order bears it into several, of about so many
// rows each. They do one after the other what the whole would do at once.
func (t *Tx) Parts(rows int) []*Tx {
	part := &Tx{Family: t.Family, Table: t.Table, err: t.err}
	parts, held := []*Tx{part}, 0
	for _, o := range t.Ops {
		for {
			if held >= rows {
				part, held = NewTx(t.Family, t.Table), 0
				parts = append(parts, part)
			}
			now := o
			if n := (rows - held) * o.stride(); len(o.Rows) > n {
				now.Rows, o.Rows = o.Rows[:n], o.Rows[n:]
			} else {
				o.Rows = nil
			}
			part.Ops, held = append(part.Ops, now), held+now.count()
			if len(o.Rows) == 0 {
				break
			}
		}
	}
	return parts
}

// Err is the first mistake.
func (t *Tx) Err() error { return t.err }

// Empty says that nothing would be done.
func (t *Tx) Empty() bool { return len(t.Ops) == 0 && t.err == nil }

// Rules are what the transaction adds, by chain, in words.
func (t *Tx) Rules() map[string][]string {
	out := map[string][]string{}
	for _, o := range t.Ops {
		if o.Verb == AddRule {
			out[o.Name] = append(out[o.Name], o.Says())
		}
	}
	return out
}

// Text prints the transaction, one operation a line, rows in hexadecimal.
func (t *Tx) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s\n", t.Family, t.Table)
	for _, o := range t.Ops {
		fmt.Fprintf(&b, "%s\n", o)
		for i := 0; i+o.stride() <= len(o.Rows) && o.stride() > 0; i += o.stride() {
			r := o.Rows[i : i+o.stride()]
			fmt.Fprintf(&b, "  %x", r[:o.Shape.Key])
			if len(r) > o.Shape.Key {
				b.WriteString(" : " + valueText(o.Shape, r[o.Shape.Key:]))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// valueText prints the value of a row, or the end of an interval.
func valueText(s row.Shape, value []byte) string {
	if s.Chains {
		return "goto " + chainOf(value)
	}
	return fmt.Sprintf("%x", value)
}

// chainOf reads the name of a chain from a row.
func chainOf(value []byte) string { return string(bytes.TrimRight(value, "\x00")) }

// PutChain appends the name of a chain to a row.
func PutChain(b []byte, name string) []byte {
	return append(append(b, name...), make([]byte, row.ChainLen-len(name))...)
}

// Kernel applies transactions and reads back what stands. *Netlink is the
// real one, *Fake evaluates packets in memory.
type Kernel interface {
	// Apply does all of the transactions, in their order, or nothing.
	Apply(txs ...*Tx) error
	// Tables lists the names of the tables of a family.
	Tables(f row.Family) ([]string, error)
	// Chains lists the names of a table's chains; none when it is absent.
	Chains(f row.Family, table string) ([]string, error)
	// Rows calls row for every element of a set, until it returns false.
	// value is empty for sets, and the interval's end for intervals.
	Rows(f row.Family, table, set string, row func(key, value []byte) bool) error
	// Sets lists the names of a table's sets and maps.
	Sets(f row.Family, table string) ([]string, error)
	// Rules lists the rules of every chain of a table that has any, in the
	// words of Tx.Rules.
	Rules(f row.Family, table string) (map[string][]string, error)
}

// IsUnable says that the kernel does not know what a transaction on a new table asks for.
func IsUnable(err error) bool {
	for _, e := range []error{unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ENOENT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// IsNotExist tells the error that a caller may want to know.
func IsNotExist(err error) bool { return errors.Is(err, errNotExist) }
