package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func env() Env {
	return Env{Name: "test", Log: slog.New(slog.DiscardHandler)}
}

// running starts a queue inside a bubble and stops it at the end of the test.
func running(t *testing.T, q *Queue, workers int, f Sync) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = env().Run(ctx, q, workers, f) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestOneKeyNeverRunsTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		var mu sync.Mutex
		active, runs := 0, 0
		running(t, q, 4, func(context.Context, string) (time.Duration, error) {
			mu.Lock()
			active++
			if active > 1 {
				t.Error("two at once")
			}
			mu.Unlock()
			time.Sleep(time.Second) // virtual
			mu.Lock()
			active--
			runs++
			mu.Unlock()
			return 0, nil
		})
		q.Add("a")
		synctest.Wait()
		for range 10 { // asked for again while it runs: once more, not ten times
			q.Add("a")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if runs != 2 {
			t.Errorf("ran %d times, want 2", runs)
		}
	})
}

func TestFailuresBackOffAndDeadlinesHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		begin := time.Now()
		var at []time.Duration
		running(t, q, 1, func(_ context.Context, key string) (time.Duration, error) {
			at = append(at, time.Since(begin))
			switch len(at) {
			case 1, 2, 3:
				return 0, errors.New("no luck")
			case 4:
				panic("worse")
			case 5:
				return time.Hour, nil
			}
			return 0, nil
		})
		q.Add("a")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if len(at) != 6 {
			t.Fatalf("ran at %v, want 6 times", at)
		}
		delay := usualBackoff.First
		for i := 1; i < 5; i++ {
			if gap := at[i] - at[i-1]; gap < delay || gap > delay+delay/2+1 {
				t.Errorf("gap %d is %s, want between %s and half more", i, gap, delay)
			}
			delay *= 2
		}
		if gap := at[5] - at[4]; gap != time.Hour {
			t.Errorf("came back after %s, want an hour", gap)
		}
	})
}

// Run ends with its context however soon that ends, and leaves nothing behind.
func TestRunEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for range 200 { // the end may come before, while and after the first syncs start
		ctx, cancel := context.WithCancel(context.Background())
		q := NewMeasuredQueue("ends", Backoff{First: time.Millisecond, Most: time.Second})
		tries := make(chan struct{}, 3)
		q.Add("a")
		go func() {
			<-tries
			<-tries
			cancel()
		}()
		if err := env().Run(ctx, q, 3, func(context.Context, string) (time.Duration, error) {
			select {
			case tries <- struct{}{}:
			default:
			}
			return 0, errors.New("again")
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEarlierDeadlineWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		begin := time.Now()
		var at []time.Duration
		running(t, q, 1, func(context.Context, string) (time.Duration, error) {
			at = append(at, time.Since(begin))
			return 0, nil
		})
		q.After("a", time.Minute)
		q.After("a", time.Second)
		q.After("a", time.Hour)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if len(at) != 1 || at[0] != time.Second {
			t.Errorf("ran at %v, want once after a second", at)
		}
	})
}
