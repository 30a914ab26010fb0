package nft

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft/row"
)

// Fake is a kernel in memory. It takes the same transactions as the real one,
// refuses what that refuses, and evaluates packets with Connect.
type Fake struct {
	tables map[tableKey]*fakeTable
	// Fail, if set, is asked before each transaction; its error is returned
	// in place of applying it.
	Fail func(*Tx) error
}

type tableKey struct {
	family row.Family
	name   string
}

type fakeTable struct {
	sets   map[string]*fakeSet
	chains map[string]*fakeChain
}

type fakeSet struct {
	*Set
	rows map[string]string
	// until is when an element of a dynamic set ends, in seconds.
	until map[string]float64
}

type fakeChain struct {
	hook  *Hook
	rules []Op
	// says are the rules in words.
	says []string
}

// NewFake returns a kernel without tables.
func NewFake() *Fake { return &Fake{tables: map[tableKey]*fakeTable{}} }

func (t *fakeTable) clone() *fakeTable {
	n := &fakeTable{map[string]*fakeSet{}, map[string]*fakeChain{}}
	for name, s := range t.sets {
		n.sets[name] = &fakeSet{s.Set, maps.Clone(s.rows), maps.Clone(s.until)}
	}
	for name, c := range t.chains {
		n.chains[name] = &fakeChain{c.hook, slices.Clone(c.rules), slices.Clone(c.says)}
	}
	return n
}

// Apply does all of the transactions or none of them.
func (k *Fake) Apply(txs ...*Tx) error {
	for _, tx := range txs {
		if tx.err != nil {
			return tx.err
		}
		if k.Fail != nil {
			if err := k.Fail(tx); err != nil {
				return err
			}
		}
	}
	done := map[tableKey]*fakeTable{}
	for _, tx := range txs {
		key := tableKey{tx.Family, tx.Table}
		work, begun := done[key]
		if have := k.tables[key]; have != nil && !begun {
			work = have.clone()
		}
		var err error
		if done[key], err = work.take(tx); err != nil {
			return err
		}
	}
	for key, work := range done {
		if work == nil {
			delete(k.tables, key)
		} else {
			k.tables[key] = work
		}
	}
	return nil
}

// take does a transaction on a table, which is nil while there is none.
func (work *fakeTable) take(tx *Tx) (*fakeTable, error) {
	for i, o := range tx.Ops {
		switch o.Verb {
		case AddTable:
			if work == nil {
				work = &fakeTable{map[string]*fakeSet{}, map[string]*fakeChain{}}
			}
			continue
		case DeleteTable:
			if work == nil {
				return nil, OpError(tx, i, unix.ENOENT)
			}
			work = nil
			continue
		}
		if work == nil {
			return nil, OpError(tx, i, unix.ENOENT)
		}
		if errno := work.do(o); errno != 0 {
			return nil, OpError(tx, i, errno)
		}
	}
	return work, nil
}

func (t *fakeTable) do(o Op) unix.Errno {
	switch o.Verb {
	case AddSet:
		if t.sets[o.Name] == nil {
			t.sets[o.Name] = &fakeSet{o.Set, map[string]string{}, map[string]float64{}}
		}
		return 0
	case AddRows, DeleteRows:
		return t.rows(o)
	case DeleteSet:
		if t.sets[o.Name] == nil {
			return unix.ENOENT
		}
		delete(t.sets, o.Name)
		return 0
	case AddChain:
		if t.chains[o.Name] == nil {
			t.chains[o.Name] = &fakeChain{hook: o.Hook}
		}
		return 0
	}
	c := t.chains[o.Name]
	if c == nil {
		return unix.ENOENT
	}
	switch o.Verb {
	case FlushChain:
		c.rules, c.says = nil, nil
	case AddRule:
		c.rules, c.says = append(c.rules, o), append(c.says, o.Says())
	case DeleteChain:
		if len(c.rules) > 0 || t.leadsTo(o.Name) {
			return unix.EBUSY
		}
		delete(t.chains, o.Name)
	}
	return 0
}

// leadsTo says whether a row of a map to chains names this one.
func (t *fakeTable) leadsTo(chain string) bool {
	for _, s := range t.sets {
		if !s.Chains {
			continue
		}
		for _, v := range s.rows {
			if chainOf([]byte(v)) == chain {
				return true
			}
		}
	}
	return false
}

func (t *fakeTable) rows(o Op) unix.Errno {
	s := t.sets[o.Name]
	if s == nil {
		return unix.ENOENT
	}
	for rest := o.Rows; len(rest) > 0; rest = rest[o.stride():] {
		key := string(rest[:o.Shape.Key])
		have, there := s.rows[key]
		if o.Verb == DeleteRows {
			if !there {
				return unix.ENOENT
			}
			delete(s.rows, key)
			continue
		}
		value := rest[o.Shape.Key:o.stride()]
		if there && have != string(value) {
			return unix.EEXIST
		}
		if s.Chains && t.chains[chainOf(value)] == nil {
			return unix.ENOENT
		}
		s.rows[key] = string(value)
	}
	return 0
}

// Tables lists the tables of a family.
func (k *Fake) Tables(f row.Family) ([]string, error) {
	var names []string
	for key := range k.tables {
		if key.family == f {
			names = append(names, key.name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Chains lists a table's chains.
func (k *Fake) Chains(f row.Family, table string) ([]string, error) {
	if t := k.tables[tableKey{f, table}]; t != nil {
		return slices.Sorted(maps.Keys(t.chains)), nil
	}
	return nil, nil
}

// Sets lists a table's sets.
func (k *Fake) Sets(f row.Family, table string) ([]string, error) {
	if t := k.tables[tableKey{f, table}]; t != nil {
		return slices.Sorted(maps.Keys(t.sets)), nil
	}
	return nil, nil
}

// Rules lists a table's rules.
func (k *Fake) Rules(f row.Family, table string) (map[string][]string, error) {
	out := map[string][]string{}
	if t := k.tables[tableKey{f, table}]; t != nil {
		for name, c := range t.chains {
			if len(c.says) > 0 {
				out[name] = c.says
			}
		}
	}
	return out, nil
}

// Rows lists a set.
func (k *Fake) Rows(f row.Family, table, set string, row func(key, value []byte) bool) error {
	t := k.tables[tableKey{f, table}]
	if t == nil || t.sets[set] == nil {
		return errors.Join(errNotExist)
	}
	for _, key := range slices.Sorted(maps.Keys(t.sets[set].rows)) {
		if !row([]byte(key), []byte(t.sets[set].rows[key])) {
			return nil
		}
	}
	return nil
}

// find looks a key up as the kernel does, now seconds after some start.
func (s *fakeSet) find(key []byte, now float64) (string, bool) {
	if s.Dynamic && s.until[string(key)] <= now {
		return "", false
	}
	if !s.Interval {
		v, ok := s.rows[string(key)]
		return v, ok
	}
	for low, high := range s.rows {
		if s.within([]byte(low), key, []byte(high)) {
			return "", true
		}
	}
	return "", false
}

// within compares field by field, as the kernel does with intervals of
// concatenations.
func (s *fakeSet) within(low, key, high []byte) bool {
	at := 0
	for _, t := range s.Key {
		if f := key[at : at+t.len]; bytes.Compare(f, low[at:at+t.len]) < 0 || bytes.Compare(f, high[at:at+t.len]) > 0 {
			return false
		}
		at += (t.len + 3) / 4 * 4
	}
	return true
}
