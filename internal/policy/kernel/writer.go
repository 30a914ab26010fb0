// Package kernel carries the rows and chains of internal/policy/model into
// nftables: one table a family, changed in one transaction.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"

	"github.com/berth-dev/berth/internal/policy/model"
)

const (
	// chunk is how many elements go into one message: an attribute holds
	// 64 KiB, the largest element takes less than 60 bytes.
	chunk = 1000
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
	w := &Writer{name: table, opts: append([]nftables.ConnOption{nftables.AsLasting(), buffers}, opts...), families: []*family{
		{table: &nftables.Table{Family: nftables.TableFamilyIPv4, Name: table}, addr: nftables.TypeIPAddr},
	}}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		w.families = append(w.families, &family{v6: true, table: &nftables.Table{Family: nftables.TableFamilyIPv6, Name: table}, addr: nftables.TypeIP6Addr})
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

// Replace puts exactly a Snapshot into force, whatever stood before. No
// packet sees less than the old tables or the new.
func (w *Writer) Replace(snapshot *model.Changes) error {
	conn, err := w.begin()
	if err != nil {
		return err
	}
	for _, f := range w.families {
		f.recreate(conn)
		if err := f.frame(conn); err != nil {
			return w.fail(fmt.Errorf("preparing table %s: %w", w.name, err))
		}
	}
	return w.apply(conn, snapshot)
}

// recreate empties the table's name. Adding first makes the deletion succeed
// on what is not there.
func (f *family) recreate(c *nftables.Conn) {
	c.AddTable(f.table)
	c.DelTable(f.table)
	c.AddTable(f.table)
}

// Apply makes changes, all or none.
func (w *Writer) Apply(c *model.Changes) error {
	conn, err := w.begin()
	if err != nil {
		return err
	}
	return w.apply(conn, c)
}

func (w *Writer) apply(conn *nftables.Conn, c *model.Changes) error {
	for _, f := range w.families {
		if err := f.apply(conn, c); err != nil {
			return w.fail(fmt.Errorf("preparing the change of table %s: %w", w.name, err))
		}
	}
	if err := conn.Flush(); err != nil {
		return w.fail(fmt.Errorf("changing table %s (%d sets, %d chains, %d rows, %d guards): %w", w.name,
			len(c.Sets)+len(c.DropSets), len(c.Chains)+len(c.DropChains), len(c.Add)+len(c.Del), len(c.Guard)+len(c.Unguard), err))
	}
	return nil
}

func (f *family) apply(conn *nftables.Conn, c *model.Changes) error {
	if err := f.guards(c.Unguard, conn.SetDeleteElements); err != nil {
		return err
	}
	if err := f.rows(c.Del, conn.SetDeleteElements); err != nil {
		return err
	}
	for _, s := range c.Sets {
		if err := f.addSet(conn, s); err != nil {
			return err
		}
	}
	// Chains first, then rules: profiles jump to policies of any name.
	for _, ch := range c.Chains {
		chain := &nftables.Chain{Table: f.table, Name: ch.Name}
		if ch.Fresh {
			conn.AddChain(chain)
		} else {
			conn.FlushChain(chain)
		}
	}
	for _, ch := range c.Chains {
		for _, r := range ch.Rules {
			conn.AddRule(&nftables.Rule{Table: f.table, Chain: &nftables.Chain{Name: ch.Name}, Exprs: f.rule(ch.Direction, r)})
		}
	}
	if err := f.rows(c.Add, conn.SetAddElements); err != nil {
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
func (w *Writer) Remove() error {
	conn, err := w.begin()
	if err != nil {
		return err
	}
	for _, f := range w.families {
		conn.AddTable(f.table)
		conn.DelTable(f.table)
	}
	if err := conn.Flush(); err != nil {
		return w.fail(fmt.Errorf("removing the tables %s: %w", w.name, err))
	}
	return nil
}
