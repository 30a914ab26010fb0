package proxy

import (
	"hash/maphash"
	"maps"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

// sums hold, for every set, the sum of the hashes of the keys that should be
// in it: equal whatever the order, and cheap to keep as rows come and go.
type sums map[string]uint64

var sumSeed = maphash.MakeSeed()

func (s sums) follow(f model.Family, c *model.Changes) {
	for set, d := range c.Sets {
		shape := set.Shape(f)
		for rest := d.Del; len(rest) > 0; rest = rest[shape.DelStride():] {
			s[shape.Name] -= maphash.Bytes(sumSeed, rest[:shape.Key])
		}
		for rest := d.Add; len(rest) > 0; rest = rest[shape.Stride():] {
			s[shape.Name] += maphash.Bytes(sumSeed, rest[:shape.Key])
		}
	}
}

// image is what a table should look like at some moment, for a comparison
// that needs no lock.
type image struct {
	w    writer
	sums sums
}

// image copies what a check needs to know of the writer.
func (w *writer) image() image {
	return image{writer{kernel: w.kernel, layout: w.layout, table: w.table}, maps.Clone(w.sums)}
}

// intact reads the table, a row at a time, and says whether every set has
// the keys and every chain the number of rules it should have.
func (i image) intact(k nft.Kernel) (bool, error) {
	w := i.w
	w.kernel = k
	chains, err := k.Chains(w.layout.Family, w.table)
	if err != nil || !w.layout.Matches(chains) {
		return false, err
	}
	sets, err := w.sets()
	if err != nil {
		return false, err
	}
	held, c := sums{}, &contents{rows: map[model.Set]map[string]string{}}
	for _, s := range sets {
		c.rows[s] = nil
		shape := s.Shape(w.layout.Family)
		err := k.Rows(w.layout.Family, w.table, shape.Name, func(key, _ []byte) bool {
			held[shape.Name] += maphash.Bytes(sumSeed, key)
			return true
		})
		if err != nil {
			return false, err
		}
	}
	for name, sum := range i.sums {
		if held[name] != sum {
			return false, nil
		}
	}
	for name, sum := range held {
		if i.sums[name] != sum {
			return false, nil
		}
	}
	if c.rules, err = k.Rules(w.layout.Family, w.table); err != nil {
		return false, err
	}
	return w.complete(c), nil
}

// others tells from two counters whether anybody but us changed a table: the
// kernel's, of all changes, and our own.
type others struct{ all, ours uint32 }

// changed compares with the last call. The first one says yes.
func (o *others) changed(all, ours uint32) bool {
	was := *o
	*o = others{all, ours}
	return all-was.all != ours-was.ours
}
