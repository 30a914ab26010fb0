package snapshot

import (
	"slices"
	"strings"
	"time"
)

// Retention says which snapshots stay. Zero fields keep nothing by themselves;
// a Retention that is zero keeps everything.
type Retention struct {
	Keep    int           // the newest so many
	KeepFor time.Duration // those that are younger
}

// Prune returns which snapshots go, oldest first: those that are neither among
// the newest Keep nor younger than KeepFor. The newest always stays, and so do
// files that are damaged: to delete what cannot be understood is for people.
func (r Retention) Prune(all []Entry, now time.Time) (gone []Entry) {
	if r == (Retention{}) {
		return nil
	}
	whole := slices.DeleteFunc(slices.Clone(all), func(e Entry) bool { return e.Broken != "" })
	slices.SortFunc(whole, newestFirst)
	for i, e := range whole {
		young := r.KeepFor > 0 && now.Sub(e.Header.Time) < r.KeepFor
		if i >= max(r.Keep, 1) && !young {
			gone = append(gone, e)
		}
	}
	slices.Reverse(gone)
	return gone
}

func newestFirst(a, b Entry) int {
	if c := b.Header.Time.Compare(a.Header.Time); c != 0 {
		return c
	}
	return strings.Compare(a.File, b.File)
}
