// Package heap is a priority queue whose elements know where they stand, so
// that any of them can be moved or taken out in logarithmic time.
package heap

import "container/heap"

// Heap holds elements in the order of a function, the least first. Make it
// with New. It is not safe for concurrent use.
type Heap[T any] struct{ in inner[T] }

// Place is an element's place in one Heap. Its zero value is in none; an
// element that stands in several heaps has a Place for each.
type Place struct{ after int } // the index, and one

// In tells whether the element is in its heap.
func (p Place) In() bool { return p.after > 0 }

// New returns an empty heap. Less tells whether a goes before b; place returns
// where an element keeps its place in this heap, which is the heap's to write.
func New[T any](less func(a, b T) bool, place func(T) *Place) *Heap[T] {
	return &Heap[T]{inner[T]{less: less, place: place}}
}

// Len is how many elements there are.
func (h *Heap[T]) Len() int { return len(h.in.items) }

// First returns the least element without taking it out; the heap must not be
// empty.
func (h *Heap[T]) First() T { return h.in.items[0] }

// Pop takes out the least element; the heap must not be empty.
func (h *Heap[T]) Pop() T { return heap.Pop(&h.in).(T) }

// Put puts an element in, or where it belongs after what orders it changed.
func (h *Heap[T]) Put(x T) {
	if p := h.in.place(x); p.In() {
		heap.Fix(&h.in, p.after-1)
		return
	}
	heap.Push(&h.in, x)
}

// Remove takes an element out; one that is not in does not matter.
func (h *Heap[T]) Remove(x T) {
	if p := h.in.place(x); p.In() {
		heap.Remove(&h.in, p.after-1)
	}
}

// inner is what container/heap works on.
type inner[T any] struct {
	items []T
	less  func(a, b T) bool
	place func(T) *Place
}

func (h *inner[T]) Len() int           { return len(h.items) }
func (h *inner[T]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }

func (h *inner[T]) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.place(h.items[i]).after, h.place(h.items[j]).after = i+1, j+1
}

func (h *inner[T]) Push(x any) {
	h.items = append(h.items, x.(T))
	h.place(x.(T)).after = len(h.items)
}

func (h *inner[T]) Pop() any {
	last := len(h.items) - 1
	x := h.items[last]
	var none T
	h.items[last] = none // what is out may be collected
	h.items = h.items[:last]
	h.place(x).after = 0
	return x
}
