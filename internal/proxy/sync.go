package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// writer keeps one family's table equal to its Model.
type writer struct {
	kernel nft.Kernel
	layout rules.Layout
	table  string
	model  *model.Model
	// classes are those whose set and chain exist.
	classes map[model.Class]bool
	// cidrs are the ranges Services take their addresses from; cidrsDirty
	// says that the kernel has not been told.
	cidrs      []netip.Prefix
	cidrsDirty bool
	sums       sums
	synced     bool
}

// result is what one sync did.
type result struct {
	added, deleted int
	adopted        bool
	changes        *model.Changes
}

// sync brings the kernel up to date with the Model: the difference when the
// table is known, else by adopting or replacing what stands.
func (w *writer) sync() (result, error) {
	if !w.synced {
		return w.first()
	}
	c := w.model.Commit()
	if c.Empty() && !w.cidrsDirty {
		return result{changes: c}, nil
	}
	return w.write(c)
}

// write applies c. If it fails the Model has moved on, and only a look at the
// whole table repairs that.
func (w *writer) write(c *model.Changes) (result, error) {
	// A packet under way while a transaction takes effect goes by the old
	// rules and the new rows: it must know the rows' classes.
	before, tx := nft.NewTx(w.layout.Family, w.table), nft.NewTx(w.layout.Family, w.table)
	if w.ahead(before, c); !before.Empty() {
		if err := w.apply(before); err != nil {
			return result{}, err
		}
	}
	w.append(tx, c)
	if err := w.apply(tx); err != nil {
		return result{}, err
	}
	return w.wrote(c), nil
}

// wrote takes in that the kernel holds what c asks for.
func (w *writer) wrote(c *model.Changes) result {
	w.synced, w.cidrsDirty = true, false
	w.sums.follow(w.layout.Family, c)
	del, add := c.Count(w.layout.Family)
	return result{added: add, deleted: del, changes: c}
}

// build makes the table again, whatever stands. If packets enter that, it is
// replaced in one transaction, which every packet sees whole or not at all.
func (w *writer) build(entered bool) (result, error) {
	tx, c := nft.Replace(w.layout.Family, w.table), w.model.Commit()
	w.layout.Build(tx)
	w.ahead(tx, c)
	w.append(tx, c)
	w.layout.Hook(tx)
	parts := []*nft.Tx{tx}
	if !entered {
		parts = tx.Parts(nft.PartRows)
	}
	for _, part := range parts {
		if err := w.apply(part); err != nil {
			return result{}, err
		}
	}
	return w.wrote(c), nil
}

func (w *writer) apply(tx *nft.Tx) error {
	err := w.kernel.Apply(tx)
	if err != nil {
		w.synced = false
	}
	return err
}

// ahead appends the classes that c needs and the kernel has not, and the
// timeouts of affinity that none had before.
func (w *writer) ahead(tx *nft.Tx, c *model.Changes) {
	for _, s := range c.Ordered() {
		d, class := c.Sets[s], s.Class
		if !classed(s.Table) || w.classes[class] || len(d.Add) == 0 {
			continue
		}
		if class.Timeout > 0 && !w.remembers(class.Timeout) {
			w.layout.AddTimeout(tx, class.Timeout)
		}
		w.layout.AddClass(tx, class)
		w.classes[class] = true
	}
}

// remembers says whether there is a class with this timeout.
func (w *writer) remembers(seconds int) bool {
	for c := range w.classes {
		if c.Timeout == seconds {
			return true
		}
	}
	return false
}

// setCIDRs says which ranges Services take their addresses from.
func (w *writer) setCIDRs(cidrs []netip.Prefix) {
	if !slices.Equal(w.cidrs, cidrs) {
		w.cidrs, w.cidrsDirty = cidrs, true
	}
}

// append orders a difference so that no row comes before what it replaces goes.
func (w *writer) append(tx *nft.Tx, c *model.Changes) {
	order := c.Ordered()
	for _, s := range order {
		if shape, d := s.Shape(w.layout.Family), c.Sets[s]; len(d.Del) > 0 {
			tx.Add(nft.Op{Verb: nft.DeleteRows, Name: shape.Name, Shape: shape, Rows: d.Del})
		}
	}
	for _, s := range order {
		if shape, d := s.Shape(w.layout.Family), c.Sets[s]; len(d.Add) > 0 {
			tx.Add(nft.Op{Verb: nft.AddRows, Name: shape.Name, Shape: shape, Rows: d.Add})
		}
	}
	if w.cidrsDirty {
		w.layout.DropCIDRs(tx, w.cidrs)
	}
}

func classed(t model.Table) bool { return t == model.VIPs || t == model.NodePorts }

// first makes the kernel hold what the Model wants, whatever is there: a
// table of this layout is adopted row by row, without touching those that
// are right; anything else is replaced.
func (w *writer) first() (result, error) {
	chains, err := w.kernel.Chains(w.layout.Family, w.table)
	if err != nil {
		return result{}, err
	}
	held, err := w.read(chains)
	if err != nil {
		return result{}, err
	}
	w.model.Reset()
	w.classes, w.sums, w.cidrsDirty = map[model.Class]bool{}, sums{}, true
	if held == nil {
		return w.build(rules.Hooked(chains))
	}
	c := w.adopt(held)
	whole := maps.Clone(w.sums)
	res, err := w.write(c)
	w.sums, res.adopted = whole, true
	return res, err
}

// adopt makes the Model go on from what the kernel holds, and returns what
// is to be changed there.
func (w *writer) adopt(held *contents) *model.Changes {
	for _, t := range model.SeedTables {
		for k, v := range held.rows[model.Set{Table: t}] {
			w.model.Seed(t, []byte(k), []byte(v))
		}
	}
	c := w.model.Commit()
	w.classes, w.sums = map[model.Class]bool{}, sums{}
	for s := range held.rows {
		if classed(s.Table) {
			w.classes[s.Class] = true
		}
	}
	w.sums.follow(w.layout.Family, c)
	held.diff(w.layout.Family, c)
	return c
}

// contents is what a table holds.
type contents struct {
	rows  map[model.Set]map[string]string
	rules map[string][]string
}

// read returns what our table, which has these chains, holds, or nil when it is
// not of our layout or its rules are not all there.
func (w *writer) read(chains []string) (*contents, error) {
	f := w.layout.Family
	if !w.layout.Matches(chains) {
		return nil, nil
	}
	c := &contents{rows: map[model.Set]map[string]string{}}
	var err error
	if c.rules, err = w.kernel.Rules(f, w.table); err != nil {
		return nil, err
	}
	known, err := w.sets()
	if err != nil {
		return nil, err
	}
	for _, s := range known {
		shape := s.Shape(f)
		rows := map[string]string{}
		if err := w.kernel.Rows(f, w.table, shape.Name, func(k, v []byte) bool {
			rows[string(k)] = string(v)
			return true
		}); err != nil {
			return nil, err
		}
		c.rows[s] = rows
	}
	if !w.complete(c, false) {
		return nil, nil
	}
	return c, nil
}

// sets lists the table's sets of ours, those of classes included.
func (w *writer) sets() ([]model.Set, error) {
	names, err := w.kernel.Sets(w.layout.Family, w.table)
	if err != nil {
		return nil, err
	}
	var out []model.Set
	for _, name := range names {
		if class, ok := model.ClassByName(name); ok {
			t := model.VIPs
			if class.NodePort {
				t = model.NodePorts
			}
			out = append(out, model.Set{Table: t, Class: class})
			continue
		}
		for t := model.Table(0); int(t) < model.NumTables; t++ {
			if s := (model.Set{Table: t}); !classed(t) && s.Shape(w.layout.Family).Name == name {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// complete says whether every chain has the rules it should have; cidrs, that
// the one that drops what goes to no one is looked at too.
func (w *writer) complete(c *contents, cidrs bool) bool {
	var classes []model.Class
	for s := range c.rows {
		if classed(s.Table) {
			classes = append(classes, s.Class)
		}
	}
	want := w.layout.Rules(classes)
	if cidrs {
		chain, drops := w.layout.CIDRRules(w.cidrs)
		want[chain] = drops
	}
	for chain, wanted := range want {
		held := c.rules[chain]
		if rules.Unordered(chain) {
			slices.Sort(wanted)
			held = slices.Sorted(slices.Values(held))
		}
		if !slices.Equal(held, wanted) {
			return false
		}
	}
	return true
}

// diff turns the whole of a Model in ch into the difference from what is held.
func (c *contents) diff(f model.Family, ch *model.Changes) {
	for s := range c.rows {
		if ch.Sets[s] == nil {
			ch.Sets[s] = &model.Delta{}
		}
	}
	for set, d := range ch.Sets {
		s, have := set.Shape(f), c.rows[set]
		var add, del, was []byte
		remove := func(k, v string) {
			if del = append(del, k...); s.Interval {
				del = append(del, v...)
			} else {
				was = append(was, v...)
			}
		}
		for rest := d.Add; len(rest) > 0; rest = rest[s.Stride():] {
			k, v := string(rest[:s.Key]), string(rest[s.Key:s.Stride()])
			held, ok := have[k]
			delete(have, k)
			if ok && held == v {
				continue
			}
			if ok {
				remove(k, held)
			}
			add = append(add, rest[:s.Stride()]...)
		}
		for k, v := range have {
			remove(k, v)
		}
		d.Add, d.Del, d.Was = add, del, was
	}
}

// Cleanup removes the tables of an instance in both families, and nothing
// else. It is no error when there are none.
func Cleanup(instance string) error {
	if instance == "" {
		return errors.New("cleaning up the proxy's tables: the instance has no name")
	}
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	return deleteTables(k, instance)
}

func deleteTables(k nft.Kernel, name string) error {
	var errs []error
	for _, f := range []model.Family{model.V4, model.V6} {
		if err := k.Apply(nft.Remove(f, name)); err != nil {
			errs = append(errs, fmt.Errorf("cleaning up: %w", err))
		}
	}
	return errors.Join(errs...)
}
