// Package kernel carries the rows and chains of internal/policy/model into
// nftables, one table a family, so that no packet slips through a change.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"

	"github.com/berth-dev/berth/internal/policy/model"
)

const (
	// chunk is how many elements go into one message: an attribute holds
	// 64 KiB, the largest element takes less than 60 bytes.
	chunk = 1000
	// partRows is how many rows a table that no packet enters yet gets at
	// once. The kernel's sets grow beside transactions, and slowly in one.
	partRows = 4 * chunk
	// room is for the largest batch and its acknowledgements.
	room = 64 << 20
)

// Writer owns the two tables of one name. It is not safe for concurrent use.
type Writer struct {
	name string
	opts []nftables.ConnOption
	// conn lasts: the kernel lets a socket that changed tables close only
	// after a grace period, some 10 ms.
	conn     *nftables.Conn
	families []*family
	// cover stands in for the tables while Replace writes them anew.
	cover []*family
	// before, if set, is asked before every transaction of a change; its
	// error is returned in place of taking it.
	before func() error
}

// family is a table of one address family.
type family struct {
	v6    bool
	table *nftables.Table
	addr  nftables.SetDatatype
}

// New returns a Writer for the network namespace of the threads that call it,
// or of the one that opts name. Nothing is written yet.
func New(table string, opts ...nftables.ConnOption) (*Writer, error) {
	buffers := nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(room), c.SetWriteBuffer(room))
	})
	w := &Writer{name: table, opts: append([]nftables.ConnOption{nftables.AsLasting(), buffers}, opts...)}
	add := func(v6 bool, of nftables.TableFamily, addr nftables.SetDatatype) {
		w.families = append(w.families, &family{v6: v6, table: &nftables.Table{Family: of, Name: table}, addr: addr})
		w.cover = append(w.cover, &family{v6: v6, table: &nftables.Table{Family: of, Name: table + "-cover"}, addr: addr})
	}
	add(false, nftables.TableFamilyIPv4, nftables.TypeIPAddr)
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		add(true, nftables.TableFamilyIPv6, nftables.TypeIP6Addr)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("asking whether this machine has IPv6: %w", err)
	}
	return w, nil
}

// begin starts a transaction, or reading.
func (w *Writer) begin() (*nftables.Conn, error) {
	if w.conn == nil {
		conn, err := nftables.New(w.opts...)
		if err != nil {
			return nil, fmt.Errorf("opening nftables for network policies: %w", err)
		}
		w.conn = conn
	}
	return w.conn, nil
}

// Close ends the connection to the kernel; the next use opens another. What
// was written stays in force.
func (w *Writer) Close() error {
	if w.conn == nil {
		return nil
	}
	err := w.conn.CloseLasting()
	w.conn = nil
	return err
}

// fail forgets what a transaction has gathered so far.
func (w *Writer) fail(err error) error { return errors.Join(err, w.Close()) }

// clear deletes the table. Adding it first makes that succeed when there is
// none.
func (f *family) clear(c *nftables.Conn) {
	c.AddTable(f.table)
	c.DelTable(f.table)
}

// Apply makes changes. What is new is built in a transaction of its own, where
// nothing leads to it yet: a packet that is under way while it would take
// effect could be led to a chain that holds no rules for it. After an error
// only Replace helps.
func (w *Writer) Apply(c *model.Changes) error {
	conn, err := w.begin()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(c.Chains, func(ch model.Chain) bool { return ch.Fresh }) {
		if err := w.commit(conn, w.families, c, (*family).build); err != nil {
			return err
		}
		return w.commit(conn, w.families, c, (*family).change)
	}
	return w.commit(conn, w.families, c, (*family).build, (*family).change)
}

// step gathers a part of changes.
type step func(*family, *nftables.Conn, *model.Changes) error

// commit takes steps in one transaction.
func (w *Writer) commit(conn *nftables.Conn, families []*family, c *model.Changes, steps ...step) error {
	for _, take := range steps {
		for _, f := range families {
			if err := take(f, conn, c); err != nil {
				return w.fail(fmt.Errorf("preparing the change of table %s: %w", f.table.Name, err))
			}
		}
	}
	if err := w.flush(conn); err != nil {
		return w.fail(fmt.Errorf("changing table %s (%d sets, %d chains, %d rows, %d guards): %w", families[0].table.Name,
			len(c.Sets)+len(c.DropSets), len(c.Chains)+len(c.DropChains), len(c.Add)+len(c.Del), len(c.Guard)+len(c.Unguard), err))
	}
	return nil
}

func (w *Writer) flush(conn *nftables.Conn) error {
	if w.before != nil {
		if err := w.before(); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// build makes new sets, with their rows, and new chains.
func (f *family) build(conn *nftables.Conn, c *model.Changes) error {
	return f.buildWith(conn, c, conn.SetAddElements)
}

// buildWith is build; rows are written by to.
func (f *family) buildWith(conn *nftables.Conn, c *model.Changes, to write) error {
	for _, s := range c.Sets {
		if err := f.addSet(conn, s); err != nil {
			return err
		}
	}
	if err := f.rows(added(c, true), to); err != nil {
		return err
	}
	// Chains first, then rules: profiles jump to policies of any name.
	for _, ch := range c.Chains {
		if ch.Fresh {
			conn.AddChain(&nftables.Chain{Table: f.table, Name: ch.Name})
		}
	}
	for _, ch := range c.Chains {
		if ch.Fresh {
			f.fill(conn, ch)
		}
	}
	return nil
}

// change leads pods to what was built, and drops what nothing leads to any
// more.
func (f *family) change(conn *nftables.Conn, c *model.Changes) error {
	if err := f.guards(c.Unguard, conn.SetDeleteElements); err != nil {
		return err
	}
	if err := f.rows(c.Del, conn.SetDeleteElements); err != nil {
		return err
	}
	for _, ch := range c.Chains {
		if !ch.Fresh {
			conn.FlushChain(&nftables.Chain{Table: f.table, Name: ch.Name})
			f.fill(conn, ch)
		}
	}
	if err := f.rows(added(c, false), conn.SetAddElements); err != nil {
		return err
	}
	if err := f.guards(c.Guard, conn.SetAddElements); err != nil {
		return err
	}
	for _, name := range c.DropChains {
		conn.FlushChain(&nftables.Chain{Table: f.table, Name: name})
	}
	for _, name := range c.DropChains {
		conn.DelChain(&nftables.Chain{Table: f.table, Name: name})
	}
	for _, s := range c.DropSets {
		conn.DelSet(f.set(s.Name, s.Kind))
	}
	return nil
}

func (f *family) fill(conn *nftables.Conn, ch model.Chain) {
	for _, r := range ch.Rules {
		conn.AddRule(&nftables.Rule{Table: f.table, Chain: &nftables.Chain{Name: ch.Name}, Exprs: f.rule(ch.Direction, r)})
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

type write func(*nftables.Set, []nftables.SetElement) error

// rows writes the rows of this family, which are sorted by set.
func (f *family) rows(rows []model.Row, to write) error {
	for len(rows) > 0 {
		n := 0
		var elements []nftables.SetElement
		for n < len(rows) && rows[n].Set == rows[0].Set && len(elements) < chunk {
			if rows[n].Addr.Is6() == f.v6 {
				elements = append(elements, element(rows[n]))
			}
			n++
		}
		if len(elements) > 0 {
			if err := to(f.set(rows[0].Set, rows[0].Kind), elements); err != nil {
				return err
			}
		}
		rows = rows[n:]
	}
	return nil
}

func (f *family) guards(guards []model.Guard, to write) error {
	elements := map[model.Direction][]nftables.SetElement{}
	for _, g := range guards {
		if g.Addr.Is6() == f.v6 {
			elements[g.Direction] = append(elements[g.Direction], nftables.SetElement{
				Key: g.Addr.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: g.Chain}})
		}
	}
	for d, all := range elements {
		for len(all) > 0 {
			n := min(len(all), chunk)
			if err := to(f.dispatch(d), all[:n]); err != nil {
				return err
			}
			all = all[n:]
		}
	}
	return nil
}

// Stands says whether the tables hold what a Snapshot says: the chains by
// name, the sets by name and size.
func (w *Writer) Stands(snapshot *model.Changes) (bool, error) {
	conn, err := w.begin()
	if err != nil {
		return false, err
	}
	for _, f := range w.families {
		ok, err := f.stands(conn, snapshot)
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (f *family) stands(conn *nftables.Conn, snapshot *model.Changes) (bool, error) {
	chains, err := conn.ListChainsOfTableFamily(f.table.Family)
	if err != nil {
		return false, fmt.Errorf("listing chains: %w", err)
	}
	missing := map[string]bool{model.Ingress.String(): true, model.Egress.String(): true}
	for _, c := range snapshot.Chains {
		missing[c.Name] = true
	}
	for _, c := range chains {
		if c.Table.Name == f.table.Name {
			delete(missing, c.Name)
		}
	}
	if len(missing) > 0 {
		return false, nil
	}
	want := map[string]int{f.dispatch(model.Ingress).Name: 0, f.dispatch(model.Egress).Name: 0}
	kinds := map[string]model.Kind{model.SelfSet: model.Selves}
	for _, s := range snapshot.Sets {
		kinds[s.Name] = s.Kind
		if s.Kind == model.Peers || s.Kind == model.Named {
			want[s.Name] = 0
		}
	}
	for _, r := range snapshot.Add {
		if r.Addr.Is6() == f.v6 {
			want[r.Set]++
		}
	}
	for _, g := range snapshot.Guard {
		if g.Addr.Is6() == f.v6 {
			want[f.dispatch(g.Direction).Name]++
		}
	}
	for name, n := range want {
		rows, err := conn.GetSetElements(f.set(name, kinds[name]))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("listing set %s of table %s: %w", name, f.table.Name, err)
		}
		if len(rows) != n {
			return false, nil
		}
	}
	return true, nil
}

// Remove deletes the tables, and nothing else. It is no error when there are
// none.
func (w *Writer) Remove() error { return w.remove(slices.Concat(w.families, w.cover)) }

func (w *Writer) remove(families []*family) error {
	conn, err := w.begin()
	if err != nil {
		return err
	}
	for _, f := range families {
		f.clear(conn)
	}
	if err := w.flush(conn); err != nil {
		return w.fail(fmt.Errorf("removing the tables %s: %w", w.name, err))
	}
	return nil
}
