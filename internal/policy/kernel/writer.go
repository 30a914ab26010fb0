// Package kernel carries the rows and chains of internal/policy/model into
// nftables, one table a family, so that no packet slips through a change.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
	"github.com/berth-dev/berth/internal/policy/model"
)

// Open connects to a kernel; nft.Open to that of the calling thread.
type Open func() (nft.Kernel, error)

// Host connects to the kernel of the calling thread's network namespace.
func Host() (nft.Kernel, error) { return nft.Open() }

// Writer owns the two tables of one name. It is not safe for concurrent use.
type Writer struct {
	name string
	open Open
	// kernel lasts: the kernel lets a socket that changed tables close only
	// after a grace period, some 10 ms.
	kernel   nft.Kernel
	families []*family
	// cover stands in for the tables while Replace writes them again.
	cover []*family
	// settle returns when every packet that is under way at the call has left.
	settle func() error
	// before, if set, is asked before every transaction of a change; its
	// error is returned in place of taking it.
	before func() error
}

// New returns a Writer. Nothing is written yet.
func New(table string, open Open) (*Writer, error) {
	w := &Writer{name: table, open: open, settle: nft.Settle}
	add := func(f row.Family) {
		w.families = append(w.families, &family{f, table})
		w.cover = append(w.cover, &family{f, table + "-cover"})
	}
	add(row.V4)
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		add(row.V6)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("asking whether this machine has IPv6: %w", err)
	}
	return w, nil
}

// begin starts a transaction, or reading.
func (w *Writer) begin() (nft.Kernel, error) {
	if w.kernel == nil {
		k, err := w.open()
		if err != nil {
			return nil, fmt.Errorf("opening nftables for network policies: %w", err)
		}
		w.kernel = k
	}
	return w.kernel, nil
}

// Close ends the connection to the kernel; the next use opens another. What
// was written stays in force.
func (w *Writer) Close() error {
	if w.kernel == nil {
		return nil
	}
	k := w.kernel
	w.kernel = nil
	if c, ok := k.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

// Apply makes changes. What is new is built in a transaction of its own, where
// nothing leads to it yet: a packet that is under way while it would take
// effect could be led to a chain that holds no rules for it. After an error
// only Replace helps.
func (w *Writer) Apply(c *model.Changes) error {
	apart := slices.ContainsFunc(c.Chains, func(ch model.Chain) bool { return ch.Fresh })
	var build, change []*nft.Tx
	for _, f := range w.families {
		tx := nft.NewTx(f.Family, f.table)
		f.build(tx, c)
		build = append(build, tx)
		if apart {
			tx = nft.NewTx(f.Family, f.table)
			change = append(change, tx)
		}
		f.change(tx, c)
	}
	if err := w.commit(c, build...); err != nil {
		return err
	}
	return w.commit(c, change...)
}

// commit takes transactions as one.
func (w *Writer) commit(c *model.Changes, txs ...*nft.Tx) error {
	if len(txs) == 0 {
		return nil
	}
	if err := w.flush(txs...); err != nil {
		return fmt.Errorf("changing table %s (%d sets, %d chains, %d rows, %d guards): %w", txs[0].Table,
			len(c.Sets)+len(c.DropSets), len(c.Chains)+len(c.DropChains), len(c.Add)+len(c.Del), len(c.Guard)+len(c.Unguard), err)
	}
	return nil
}

func (w *Writer) flush(txs ...*nft.Tx) error {
	k, err := w.begin()
	if err != nil {
		return err
	}
	if w.before != nil {
		if err := w.before(); err != nil {
			return err
		}
	}
	if err := k.Apply(txs...); err != nil {
		return errors.Join(err, w.Close()) // answers may still come
	}
	return nil
}

// build makes new sets, with their rows, and new chains.
func (f *family) build(tx *nft.Tx, c *model.Changes) {
	for _, s := range c.Sets {
		f.addSet(tx, s)
	}
	f.rows(tx, nft.AddRows, added(c, true))
	// Chains first, then rules: profiles jump to policies of any name.
	for _, ch := range c.Chains {
		if ch.Fresh {
			tx.Add(nft.Op{Verb: nft.AddChain, Name: ch.Name})
		}
	}
	for _, ch := range c.Chains {
		if ch.Fresh {
			f.fill(tx, ch)
		}
	}
}

// change leads pods to what was built, and drops what nothing leads to any
// more.
func (f *family) change(tx *nft.Tx, c *model.Changes) {
	f.guards(tx, nft.DeleteRows, c.Unguard)
	f.rows(tx, nft.DeleteRows, c.Del)
	for _, ch := range c.Chains {
		if !ch.Fresh {
			tx.Add(nft.Op{Verb: nft.FlushChain, Name: ch.Name})
			f.fill(tx, ch)
		}
	}
	f.rows(tx, nft.AddRows, added(c, false))
	f.guards(tx, nft.AddRows, c.Guard)
	for _, name := range c.DropChains {
		tx.Add(nft.Op{Verb: nft.FlushChain, Name: name})
	}
	for _, name := range c.DropChains {
		tx.Add(nft.Op{Verb: nft.DeleteChain, Name: name})
	}
	for _, s := range c.DropSets {
		tx.Add(nft.Op{Verb: nft.DeleteSet, Name: s.Name})
	}
}

func (f *family) fill(tx *nft.Tx, ch model.Chain) {
	for _, r := range ch.Rules {
		tx.Rule(ch.Name, f.rule(ch.Direction, r))
	}
}

// added are the new rows of new sets, or those of the others.
func added(c *model.Changes, fresh bool) []model.Row {
	is := make(map[string]bool, len(c.Sets))
	for _, s := range c.Sets {
		is[s.Name] = true
	}
	var out []model.Row
	for _, r := range c.Add {
		if is[r.Set] == fresh {
			out = append(out, r)
		}
	}
	return out
}

// rows writes the rows of this family, which are sorted by set.
func (f *family) rows(tx *nft.Tx, verb nft.Verb, rows []model.Row) {
	for len(rows) > 0 {
		name, kind := rows[0].Set, rows[0].Kind
		var keys []byte
		for len(rows) > 0 && rows[0].Set == name {
			if f.has(rows[0].Addr) {
				keys = put(keys, rows[0])
			}
			rows = rows[1:]
		}
		if len(keys) > 0 {
			tx.Add(nft.Op{Verb: verb, Name: name, Shape: f.shape(name, kind), Rows: keys})
		}
	}
}

func (f *family) guards(tx *nft.Tx, verb nft.Verb, guards []model.Guard) {
	for _, d := range directions {
		var rows []byte
		for _, g := range guards {
			if g.Direction != d || !f.has(g.Addr) {
				continue
			}
			if rows = append(rows, g.Addr.AsSlice()...); verb == nft.AddRows {
				rows = nft.PutChain(rows, g.Chain)
			}
		}
		if len(rows) > 0 {
			tx.Add(nft.Op{Verb: verb, Name: dispatch(d), Shape: f.dispatchShape(d), Rows: rows})
		}
	}
}

// Stands says whether the tables hold what a Snapshot says: the chains by
// name, the sets by name and size.
func (w *Writer) Stands(snapshot *model.Changes) (bool, error) {
	k, err := w.begin()
	if err != nil {
		return false, err
	}
	for _, f := range w.families {
		ok, err := f.stands(k, snapshot)
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (f *family) stands(k nft.Kernel, snapshot *model.Changes) (bool, error) {
	chains, err := k.Chains(f.Family, f.table)
	if err != nil {
		return false, err
	}
	missing := map[string]bool{model.Ingress.String(): true, model.Egress.String(): true}
	for _, c := range snapshot.Chains {
		missing[c.Name] = true
	}
	for _, c := range chains {
		delete(missing, c)
	}
	if len(missing) > 0 {
		return false, nil
	}
	want := map[string]int{dispatch(model.Ingress): 0, dispatch(model.Egress): 0}
	for _, s := range snapshot.Sets {
		if s.Kind == model.Peers || s.Kind == model.Named {
			want[s.Name] = 0
		}
	}
	for _, r := range snapshot.Add {
		if f.has(r.Addr) {
			want[r.Set]++
		}
	}
	for _, g := range snapshot.Guard {
		if f.has(g.Addr) {
			want[dispatch(g.Direction)]++
		}
	}
	for name, n := range want {
		held := 0
		err := k.Rows(f.Family, f.table, name, func(_, _ []byte) bool { held++; return true })
		if nft.IsNotExist(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if held != n {
			return false, nil
		}
	}
	return true, nil
}

// Remove deletes the tables, and nothing else. It is no error when there are
// none.
func (w *Writer) Remove() error { return w.remove(slices.Concat(w.families, w.cover)) }

func (w *Writer) remove(families []*family) error {
	var txs []*nft.Tx
	for _, f := range families {
		txs = append(txs, nft.Remove(f.Family, f.table))
	}
	if err := w.flush(txs...); err != nil {
		return fmt.Errorf("removing the tables %s: %w", w.name, err)
	}
	return nil
}
