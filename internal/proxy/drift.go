package proxy

import (
	"context"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// sums hold, for every set, the sum of the hashes of the rows that should be
// in it: equal whatever the order, and cheap to keep as rows come and go.
type sums map[string]uint64

var sumSeed = maphash.MakeSeed()

func (s sums) follow(f model.Family, c *model.Changes) {
	for set, d := range c.Sets {
		shape := set.Shape(f)
		was := d.Was
		for rest := d.Del; len(rest) > 0; rest = rest[shape.DelStride():] {
			value := rest[shape.Key:shape.DelStride()]
			if shape.Value > 0 {
				value, was = was[:shape.Value], was[shape.Value:]
			}
			s[shape.Name] -= sum(rest[:shape.Key], value)
		}
		for rest := d.Add; len(rest) > 0; rest = rest[shape.Stride():] {
			s[shape.Name] += sum(rest[:shape.Key], rest[shape.Key:shape.Stride()])
		}
	}
}

// sum hashes one row.
func sum(key, value []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	_, _ = h.Write(key)
	_, _ = h.Write(value)
	return h.Sum64()
}

// image is what a table should look like at some moment, for a comparison
// that needs no lock.
type image struct {
	w    writer
	sums sums
}

// image copies what a check needs to know of the writer.
func (w *writer) image() image {
	return image{writer{kernel: w.kernel, layout: w.layout, table: w.table, cidrs: w.cidrs}, maps.Clone(w.sums)}
}

// intact reads the table, a row at a time, and says whether every set has
// the rows and every chain the rules it should have.
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
		err := k.Rows(w.layout.Family, w.table, shape.Name, func(key, v []byte) bool {
			held[shape.Name] += sum(key, v)
			return true
		})
		if err != nil {
			return false, err
		}
	}
	if c.rules, err = k.Rules(w.layout.Family, w.table); err != nil {
		return false, err
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
	return w.complete(c, true), nil
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

// watchDrift looks, slowly and beside the loop, whether the tables are still
// what was written, if anybody changed any table since the last look.
func (r *runner) watchDrift(ctx context.Context) {
	k, err := nft.Open()
	if err != nil {
		r.cfg.Log.Error("changes of the rules by others will go unnoticed", "err", err)
		return
	}
	defer k.Close()
	period := r.cfg.syncPeriod()
	next := time.NewTimer(period)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		if err := r.checkDrift(ctx, k); err != nil {
			r.cfg.Log.Warn("checking the service rules", "err", err)
		}
		next.Reset(period + rand.N(period/2))
	}
}

// checkDrift does one look. What it finds while the loop writes tells
// nothing, and is left to the next look.
func (r *runner) checkDrift(ctx context.Context, k *nft.Netlink) error {
	images, ours, ok := r.images(ctx)
	if !ok {
		return nil
	}
	gen, err := k.Generation()
	if err != nil {
		return err
	}
	if !r.others.changed(gen, ours) {
		return nil // all changes since the last look were our own
	}
	for _, i := range images {
		r.metrics.checks.Inc()
		intact, err := i.intact(k)
		if err != nil {
			return err
		}
		after, err := k.Generation()
		if err != nil {
			return err
		}
		if intact || after != gen {
			continue
		}
		r.metrics.repairs.Inc()
		r.cfg.Log.Warn("somebody changed the service rules, putting them right", "family", i.w.layout.Family, "table", i.w.table)
		r.mu.Lock()
		r.recheck = true
		r.mu.Unlock()
		r.trigger()
	}
	return nil
}

// images asks the loop what should be in the kernel.
func (r *runner) images(ctx context.Context) (out []image, applied uint32, ok bool) {
	done := make(chan struct{})
	r.ask(func() {
		for _, w := range r.families {
			if w.synced {
				out = append(out, w.image())
			}
		}
		applied = r.kernel.Applied
		close(done)
	})
	select {
	case <-done:
		return out, applied, true
	case <-ctx.Done():
		return nil, 0, false
	}
}
