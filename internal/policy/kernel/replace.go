package kernel

import (
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/internal/policy/model"
)

// Replace puts exactly a Snapshot into force, whatever stood before. No
// packet sees less than the old tables or the new.
//
// A packet that is under way while a transaction takes effect can pass the new
// chain before it holds and the old one when it holds no more. So while one
// table is exchanged for another, a copy under another name stands beside it:
// what it forbids, nobody else can allow. Each is written while no packet enters
// it, and none is taken away that nothing stands in for: that of the two which
// packets enter stays until the other one is whole, also if a process died
// between.
func (w *Writer) Replace(snapshot *model.Changes) error {
	entered, err := w.entered(w.families)
	if err != nil {
		return err
	}
	if entered {
		if err := w.recreate(w.cover, snapshot); err != nil {
			return err
		}
	}
	if err := w.recreate(w.families, snapshot); err != nil {
		return err
	}
	covered, err := w.stand(w.cover)
	if err != nil || !covered {
		return err
	}
	return w.remove(w.cover)
}

// entered says whether packets come into any of these tables.
func (w *Writer) entered(families []*family) (bool, error) {
	conn, err := w.begin()
	if err != nil {
		return false, err
	}
	for _, f := range families {
		chains, err := conn.ListChainsOfTableFamily(f.table.Family)
		if err != nil {
			return false, fmt.Errorf("listing chains: %w", err)
		}
		if slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == f.table.Name && c.Hooknum != nil }) {
			return true, nil
		}
	}
	return false, nil
}

// stand says whether there is any of these tables.
func (w *Writer) stand(families []*family) (bool, error) {
	conn, err := w.begin()
	if err != nil {
		return false, err
	}
	for _, f := range families {
		tables, err := conn.ListTablesOfFamily(f.table.Family)
		if err != nil {
			return false, fmt.Errorf("listing tables: %w", err)
		}
		if slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == f.table.Name }) {
			return true, nil
		}
	}
	return false, nil
}

// recreate writes tables from nothing, in parts; the chains that packets enter
// come last. What stood is gone meanwhile.
func (w *Writer) recreate(families []*family, snapshot *model.Changes) error {
	conn, err := w.begin()
	if err != nil {
		return err
	}
	for _, f := range families {
		f.clear(conn)
		conn.AddTable(f.table)
		if err := f.frame(conn); err != nil {
			return w.fail(fmt.Errorf("preparing table %s: %w", f.table.Name, err))
		}
	}
	held := 0
	build := func(f *family, conn *nftables.Conn, c *model.Changes) error {
		return f.buildWith(conn, c, func(s *nftables.Set, rows []nftables.SetElement) error {
			if err := conn.SetAddElements(s, rows); err != nil {
				return err
			}
			if held += len(rows); held < partRows {
				return nil
			}
			held = 0
			return w.flush(conn)
		})
	}
	return w.commit(conn, families, snapshot, build, (*family).change, (*family).hook)
}
