package health

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/journal"
)

// Board tells how nodes stand at this moment, while a controller runs. The zero
// value tells nothing.
type Board struct {
	now atomic.Pointer[func(string) (journal.Record, bool)]
	// numbers tells of all zones and of when one node was last heard.
	numbers atomic.Pointer[numbers]
}

// numbers answers from a running controller.
type numbers struct {
	zones func() []ZoneView
	heard func(node string) (time.Time, bool)
}

// Zones are the numbers of every zone; nil while no controller runs.
func (b *Board) Zones() []ZoneView {
	if n := b.numbers.Load(); n != nil {
		return n.zones()
	}
	return nil
}

// Heard is when a node was last heard, on this host's clock; ok is false when no
// controller runs or it has not heard the node.
func (b *Board) Heard(node string) (at time.Time, ok bool) {
	if n := b.numbers.Load(); n != nil {
		return n.heard(node)
	}
	return at, false
}

// Explain is how a node stands; ok is false when no controller runs or it does not
// know the node.
func (b *Board) Explain(node string) (r journal.Record, ok bool) {
	if f := b.now.Load(); f != nil {
		return (*f)(node)
	}
	return r, false
}

// Journal kinds and names of decisions that are about no single node.
const (
	zoneKind = "Zone"
	allZones = "(all)"
	noZone   = "(none)"
)

// zoneRef is the object of a decision that is about no single node.
func zoneRef(d Decision) journal.Ref {
	ref := journal.Ref{Kind: zoneKind, Name: d.Cause.Zone.Name}
	switch {
	case d.Kind != ZoneChanged:
		ref.Name = allZones
	case ref.Name == "":
		ref.Name = noZone
	}
	return ref
}

// recordsOf is everything that was decided about a node or about all nodes, in
// order, and at its end how the node stands now. query is that of a journal.
func recordsOf(query func(journal.Ref) []journal.Record, board *Board, node string) []journal.Record {
	out := query(journal.Ref{Kind: "Node", Name: node})
	if len(out) > 0 {
		for _, r := range query(journal.Ref{Kind: zoneKind, Name: allZones}) {
			if !r.Time.Before(out[0].Time) {
				out = append(out, r)
			}
		}
		slices.SortStableFunc(out, func(a, b journal.Record) int { return cmp.Compare(a.Time.UnixNano(), b.Time.UnixNano()) })
	}
	if now, ok := board.Explain(node); ok {
		out = append(out, now)
	}
	return out
}

// WhyHandler answers questions for journal records as JSON; the query's kind,
// namespace and name say about what.
func WhyHandler(query func(journal.Ref) []journal.Record, board *Board) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		ref := journal.Ref{Kind: q.Get("kind"), Namespace: q.Get("namespace"), Name: q.Get("name")}
		var records []journal.Record
		if ref.Kind == "Node" && ref.Name != "" {
			records = recordsOf(query, board, ref.Name)
		} else {
			records = query(ref)
		}
		w.Header().Set("Content-Type", "application/json")
		// A client that leaves before the answer is no concern.
		json.NewEncoder(w).Encode(records) //nolint:errcheck // see above
	})
}
