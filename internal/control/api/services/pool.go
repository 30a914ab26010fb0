package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// errTaken says that another owner has the item, errFull that no item is left.
var (
	errTaken = errors.New("already allocated")
	errFull  = errors.New("range is full")
)

// owner is the service that an address or port belongs to.
type owner struct{ Namespace, Name string }

func (o owner) String() string { return o.Namespace + "/" + o.Name }

// ledger is the durable record of who has what. One item is one object whose
// name is the item, so that etcd itself lets only one of many concurrent claims
// win, on any number of servers, across any crash.
type ledger[T comparable] interface {
	// Claim records the item for the owner, or fails with errTaken. With dryRun
	// it only looks.
	Claim(ctx context.Context, item T, who owner, dryRun bool) error
	// Release forgets the item if the owner has it; an item that another party
	// has, or no one, is left as it is.
	Release(ctx context.Context, item T, who owner) error
	// Taken lists all items with their owners, consistently.
	Taken(ctx context.Context) (map[T]entry, error)
}

// pool hands out items of one space. Its memory of what is taken is only a hint
// that spares useless claims: the ledger decides.
type pool[T comparable] struct {
	book ledger[T]
	rand func(n uint64) uint64 // uniform in [0, n)

	mu   sync.Mutex
	hint map[T]struct{}
	full bool // hint was loaded from the ledger once
}

func newPool[T comparable](book ledger[T]) *pool[T] {
	return &pool[T]{book: book, rand: rand.Uint64N, hint: map[T]struct{}{}}
}

// space is a numbered range of items. Static requests may name any of them;
// dynamic ones come from offset upwards while there is room, so that low items
// stay free for those who want to choose.
type space[T any] struct {
	size, offset uint64
	at           func(i uint64) T
}

// find returns the first free index at or after start, in the band [offset,
// size) that wraps, and then in [0, offset). start is relative to the band. It
// reports false if nothing is free.
func find(size, offset, start uint64, free func(uint64) bool) (uint64, bool) {
	if upper := size - offset; upper > 0 {
		for i := range upper {
			if n := offset + (start+i)%upper; free(n) {
				return n, true
			}
		}
	}
	for n := range offset {
		if free(n) {
			return n, true
		}
	}
	return 0, false
}

// exact claims one item that the user chose.
func (p *pool[T]) exact(ctx context.Context, item T, who owner, dryRun bool) error {
	if err := p.book.Claim(ctx, item, who, dryRun); err != nil {
		return err
	}
	if !dryRun {
		p.markTaken(item)
	}
	return nil
}

// next claims any free item of the space. The hint may be stale in both
// directions: a claim that fails marks the item and the search goes on; a hint
// that shows nothing free is reloaded once before the space is called full.
func (p *pool[T]) next(ctx context.Context, s space[T], who owner, dryRun bool) (T, error) {
	var none T
	if s.size == 0 {
		return none, errFull
	}
	if err := p.load(ctx, false); err != nil {
		return none, err
	}
	start := p.rand(max(s.size-s.offset, 1))
	for reloaded := false; ; {
		i, ok := find(s.size, s.offset, start, func(i uint64) bool { return p.free(s.at(i)) })
		if !ok {
			if reloaded {
				return none, errFull
			}
			if err := p.load(ctx, true); err != nil {
				return none, err
			}
			reloaded = true
			continue
		}
		item := s.at(i)
		switch err := p.book.Claim(ctx, item, who, dryRun); {
		case err == nil:
			if !dryRun {
				p.markTaken(item)
			}
			return item, nil
		case errors.Is(err, errTaken):
			p.markTaken(item)
		default:
			return none, err
		}
	}
}

// release gives the item back. The hint forgets it even if the ledger fails: a
// wrong hint costs one claim.
func (p *pool[T]) release(ctx context.Context, item T, who owner) error {
	p.mu.Lock()
	delete(p.hint, item)
	p.mu.Unlock()
	if err := p.book.Release(ctx, item, who); err != nil {
		return fmt.Errorf("releasing %v of service %s: %w", item, who, err)
	}
	return nil
}

func (p *pool[T]) free(item T) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, taken := p.hint[item]
	return !taken
}

// markTaken records in the hint that the item is in use.
func (p *pool[T]) markTaken(item T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hint[item] = struct{}{}
}

// load fills the hint from the ledger, the first time or when forced.
func (p *pool[T]) load(ctx context.Context, force bool) error {
	p.mu.Lock()
	loaded := p.full
	p.mu.Unlock()
	if loaded && !force {
		return nil
	}
	taken, err := p.book.Taken(ctx)
	if err != nil {
		return err
	}
	hint := make(map[T]struct{}, len(taken))
	for item := range taken {
		hint[item] = struct{}{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hint, p.full = hint, true
	return nil
}
