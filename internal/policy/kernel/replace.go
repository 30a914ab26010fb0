package kernel

import (
	"slices"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/policy/model"
)

// Replace puts exactly a Snapshot into force, whatever stood before. No
// packet sees less than the old tables or the new.
//
// A packet that is under way while a transaction takes effect can pass the new
// chain before it holds and the old one when it holds no more. So while one
// table is exchanged for another, a copy under another name stands beside it:
// what it forbids, no one else can allow. Each is written while no packet enters
// it, and none is removed that nothing stands in for: that of the two which
// packets enter stays until the other one is whole, also if a process died
// between.
//
// A packet keeps the list of tables it found when it came: one that came before
// the copy meets the old table alone. So nothing is taken away until the packets
// under way have left (settle).
func (w *Writer) Replace(snapshot *model.Changes) error {
	entered, err := w.entered(w.families)
	if err != nil {
		return err
	}
	if entered {
		if err := w.recreate(w.cover, snapshot); err != nil {
			return err
		}
		if err := w.settle(); err != nil {
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
	if err := w.settle(); err != nil {
		return err
	}
	return w.remove(w.cover)
}

// entered says whether packets come into any of these tables.
func (w *Writer) entered(families []*family) (bool, error) {
	k, err := w.begin()
	if err != nil {
		return false, err
	}
	for _, f := range families {
		chains, err := k.Chains(f.Family, f.table)
		if err != nil {
			return false, err
		}
		for _, d := range directions {
			if slices.Contains(chains, d.String()) {
				return true, nil
			}
		}
	}
	return false, nil
}

// stand says whether there is any of these tables.
func (w *Writer) stand(families []*family) (bool, error) {
	k, err := w.begin()
	if err != nil {
		return false, err
	}
	for _, f := range families {
		tables, err := k.Tables(f.Family)
		if err != nil {
			return false, err
		}
		if slices.Contains(tables, f.table) {
			return true, nil
		}
	}
	return false, nil
}

// recreate writes tables from nothing, in parts; the chains that packets enter
// come last. What stood is gone meanwhile.
func (w *Writer) recreate(families []*family, snapshot *model.Changes) error {
	var hooks []*nft.Tx
	for _, f := range families {
		tx := nft.Replace(f.Family, f.table)
		f.frame(tx)
		f.build(tx, snapshot)
		f.change(tx, snapshot)
		for _, part := range tx.Parts(nft.PartRows) {
			if err := w.commit(snapshot, part); err != nil {
				return err
			}
		}
		tx = nft.NewTx(f.Family, f.table)
		f.hook(tx)
		hooks = append(hooks, tx)
	}
	return w.commit(snapshot, hooks...)
}
