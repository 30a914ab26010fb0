package heap

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type item struct {
	value int
	place Place
}

// TestHeap compares random uses with a list that is sorted anew each time.
func TestHeap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := New(func(a, b *item) bool { return a.value < b.value }, func(x *item) *Place { return &x.place })
		var in, out []*item
		r.Repeat(map[string]func(*rapid.T){
			"put": func(r *rapid.T) {
				x := &item{value: rapid.IntRange(0, 20).Draw(r, "value")}
				h.Put(x)
				in = append(in, x)
			},
			"change": func(r *rapid.T) {
				if len(in) > 0 {
					x := rapid.SampledFrom(in).Draw(r, "which")
					x.value = rapid.IntRange(0, 20).Draw(r, "value")
					h.Put(x)
				}
			},
			"remove": func(r *rapid.T) {
				if len(in) > 0 {
					i := rapid.IntRange(0, len(in)-1).Draw(r, "which")
					h.Remove(in[i])
					out, in = append(out, in[i]), slices.Delete(in, i, i+1)
				}
			},
			"remove again": func(*rapid.T) {
				for _, x := range out {
					h.Remove(x)
				}
			},
			"pop": func(r *rapid.T) {
				if h.Len() > 0 {
					first := h.First()
					if got := h.Pop(); got != first {
						r.Fatalf("popped %v, first was %v", got, first)
					}
					out, in = append(out, first), slices.DeleteFunc(in, func(x *item) bool { return x == first })
				}
			},
			"": func(r *rapid.T) {
				if h.Len() != len(in) {
					r.Fatalf("%d elements, want %d", h.Len(), len(in))
				}
				for _, x := range in {
					if !x.place.In() || h.First().value > x.value {
						r.Fatalf("%+v is in, first is %+v", x, h.First())
					}
				}
				for _, x := range out {
					if x.place.In() {
						r.Fatalf("%+v is out and does not know", x)
					}
				}
			},
		})
	})
}
