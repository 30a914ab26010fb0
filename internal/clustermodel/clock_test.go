package clustermodel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Tasks come in the order of their times, and those of one time in the order in
// which they were scheduled, whatever the heap does; against a sorted list.
func TestTasksComeInOrder(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var c Clock
		type task struct {
			at  time.Duration
			seq int
		}
		var want, got []task
		seq := 0
		add := func() {
			when := time.Duration(r.IntN(50)) * time.Second
			due := task{max(when, c.Now), seq}
			seq++
			want = append(want, due)
			c.At(when, func() {
				if c.Now != due.at || c.Time() != Epoch.Add(due.at) {
					t.Fatalf("seed %d: a task of %s runs at %s", seed, due.at, c.Now)
				}
				got = append(got, due)
			})
		}
		for range r.IntN(60) {
			add()
		}
		for {
			task, ok := c.Next(time.Hour)
			if !ok {
				break
			}
			task.Do()
			if seq < 100 && r.IntN(2) == 0 {
				add()
			}
		}
		slices.SortStableFunc(want, func(a, b task) int {
			if a.at != b.at {
				return int(a.at - b.at)
			}
			return a.seq - b.seq
		})
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}

// Run does what is due by its end and not what is due later, and stops when told.
func TestRun(t *testing.T) {
	var c Clock
	n := 0
	for i := range 5 {
		c.After(time.Duration(i)*time.Second, func() { n++ })
	}
	c.Run(2*time.Second, func() bool { return true })
	if n != 3 || c.Now != 2*time.Second {
		t.Errorf("%d tasks by %s, want 3 by 2s", n, c.Now)
	}
	c.Run(time.Hour, func() bool { return n < 4 })
	if n != 4 {
		t.Errorf("%d tasks, want it to stop at 4", n)
	}
}

// beating is a Task without a closure.
type beating struct{ n int }

func (b *beating) Do() { b.n++ }

// Heartbeats are the most frequent tasks: they cost no allocation.
func TestHeartbeatsDoNotAllocate(t *testing.T) {
	var c Clock
	b := &beating{}
	c.Schedule(0, b)
	if n := testing.AllocsPerRun(1000, func() {
		task, _ := c.Next(time.Hour * 1e6)
		task.Do()
		c.Schedule(c.Now+time.Second, b)
	}); n > 0 {
		t.Errorf("%v allocations a heartbeat", n)
	}
}
