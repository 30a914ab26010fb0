package journal

import (
	"context"
	"testing"
)

// TestFollow: a follower gets what is appended after it came, in order, and is
// forgotten when it leaves; one that is too slow is told so.
func TestFollow(t *testing.T) {
	r, err := Open(t.TempDir(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, stop := context.WithCancel(t.Context())
	got := make(chan Record)
	done := make(chan bool)
	go func() {
		done <- r.Follow(ctx, func(rec Record) error { got <- rec; return nil })
	}()
	for waiting := true; waiting; {
		r.mu.Lock()
		waiting = len(r.followers) == 0
		r.mu.Unlock()
	}
	r.Append(Record{Decision: "one"})
	r.Append(Record{Decision: "two"})
	if a, b := <-got, <-got; a.Decision != "one" || b.Decision != "two" {
		t.Errorf("followed %v, %v", a, b)
	}
	stop()
	if !<-done || len(r.followers) != 0 {
		t.Errorf("a follower that left is still told: %d", len(r.followers))
	}
	slow := make(chan Record)
	r.followers[slow] = true
	r.Append(Record{Decision: "three"})
	if _, open := <-slow; open || len(r.followers) != 0 {
		t.Error("a follower that is too slow was not told so")
	}
}
