package proxy

import (
	"errors"
	"fmt"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

// writer keeps one family's table equal to its Model.
type writer struct {
	kernel nft.Kernel
	layout nft.Layout
	table  string
	model  *model.Model
	// chains are those that exist, so that a class is built once.
	chains map[string]bool
	synced bool
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
	if c.Empty() {
		return result{changes: c}, nil
	}
	tx := nft.NewTx(w.layout.Family, w.table)
	w.append(tx, c)
	if err := w.kernel.Apply(tx); err != nil {
		// The Model has moved on; only a whole look repairs that.
		w.synced = false
		return result{}, err
	}
	del, add := c.Count(w.layout.Family)
	return result{added: add, deleted: del, changes: c}, nil
}

func (w *writer) append(tx *nft.Tx, c *model.Changes) {
	for _, id := range c.Classes {
		if name := id.Class.Name(); !w.chains[name] {
			w.layout.AddClass(tx, id)
			w.chains[name] = true
		}
	}
	for _, verb := range []nft.Verb{nft.DeleteRows, nft.AddRows} {
		rows := c.Del
		if verb == nft.AddRows {
			rows = c.Add
		}
		for t := range rows {
			if s := model.Table(t).Shape(w.layout.Family); len(rows[t]) > 0 {
				tx.Add(nft.Op{Verb: verb, Name: s.Name, Shape: s, Rows: rows[t]})
			}
		}
	}
}

// first makes the kernel hold what the Model wants, whatever is there: a
// table of this layout is adopted row by row, without touching those that
// are right; anything else is replaced, in the same transaction.
func (w *writer) first() (result, error) {
	held, err := w.read()
	if err != nil {
		return result{}, err
	}
	fresh := held == nil
	if held == nil {
		held = &contents{}
	}
	w.model.Reset()
	held.endpoints(w.layout.Family, w.model.Seed)
	c := w.model.Commit()
	tx := nft.NewTx(w.layout.Family, w.table)
	w.chains = map[string]bool{}
	if fresh {
		tx.Add(nft.Op{Verb: nft.AddTable})
		tx.Add(nft.Op{Verb: nft.DeleteTable})
		tx.Add(nft.Op{Verb: nft.AddTable})
		w.layout.Build(tx)
	} else {
		for _, id := range c.Classes {
			if held.classes[id.ID] == id.Class.Name() {
				w.chains[id.Class.Name()] = true
			}
		}
		held.diff(w.layout.Family, c)
	}
	w.append(tx, c)
	if err := w.kernel.Apply(tx); err != nil {
		return result{}, err
	}
	w.synced = true
	del, add := c.Count(w.layout.Family)
	return result{added: add, deleted: del, adopted: !fresh, changes: c}, nil
}

// contents is what a table holds.
type contents struct {
	classes map[uint32]string
	rows    [model.NumTables]map[string]string
}

// read returns what our table holds, or nil when there is no table of our
// layout.
func (w *writer) read() (*contents, error) {
	chains, err := w.kernel.Chains(w.layout.Family, w.table)
	if err != nil {
		return nil, err
	}
	if !w.layout.Matches(chains) {
		return nil, nil
	}
	c := &contents{}
	if c.classes, err = nft.Classes(w.kernel, w.layout.Family, w.table); err != nil {
		return nil, err
	}
	for t := range c.rows {
		c.rows[t] = map[string]string{}
		err := w.kernel.Rows(w.layout.Family, w.table, model.Table(t).Shape(w.layout.Family).Name, func(k, v []byte) bool {
			c.rows[t][string(k)] = string(v)
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *contents) endpoints(f model.Family, seed func(k, v []byte)) {
	for k, v := range c.rows[model.Endpoints] {
		if s := model.Endpoints.Shape(f); len(k) == s.Key && len(v) == s.Value {
			seed([]byte(k), []byte(v))
		}
	}
}

// diff turns the rows of a whole Model in ch.Add into the difference from
// what is held.
func (c *contents) diff(f model.Family, ch *model.Changes) {
	for t := range c.rows {
		s := model.Table(t).Shape(f)
		var add, del []byte
		remove := func(k, v string) {
			del = append(del, k...)
			if s.Interval {
				del = append(del, v...)
			}
		}
		for rest := ch.Add[t]; len(rest) > 0; rest = rest[s.Stride():] {
			k, v := string(rest[:s.Key]), string(rest[s.Key:s.Stride()])
			have, ok := c.rows[t][k]
			delete(c.rows[t], k)
			if ok && have == v {
				continue
			}
			if ok {
				remove(k, have)
			}
			add = append(add, rest[:s.Stride()]...)
		}
		for k, v := range c.rows[t] {
			remove(k, v)
		}
		ch.Add[t], ch.Del[t] = add, del
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
	var errs []error
	for _, f := range []model.Family{model.V4, model.V6} {
		tx := nft.NewTx(f, instance)
		// Adding first makes the deletion succeed on what is not there.
		tx.Add(nft.Op{Verb: nft.AddTable})
		tx.Add(nft.Op{Verb: nft.DeleteTable})
		if err := k.Apply(tx); err != nil {
			errs = append(errs, fmt.Errorf("cleaning up: %w", err))
		}
	}
	return errors.Join(errs...)
}
