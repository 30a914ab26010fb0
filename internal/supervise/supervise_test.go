package supervise

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPolicy(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		policy       Restart
		pause, lived time.Duration
		err          error
		want         decision
		nextPause    time.Duration
	}{
		"never, done":      {Never, 0, 0, nil, decision{do: done}, 0},
		"never, failed":    {Never, 0, 0, broken, decision{do: endGroup, err: broken}, 0},
		"on failure, done": {OnFailure, 0, 0, nil, decision{do: done}, 0},
		"on failure, failed": {OnFailure, 0, 0, broken, decision{do: again, after: 625 * time.Millisecond, err: broken},
			minPause},
		"always, returned": {Always, 0, 0, nil, decision{do: again, after: 625 * time.Millisecond, err: errEnded}, minPause},
		"always, failed again": {Always, minPause, time.Second, broken, decision{do: again, after: 1250 * time.Millisecond,
			err: broken}, time.Second},
		"the pause has a limit": {Always, maxPause, time.Second, broken, decision{do: again, after: 37500 * time.Millisecond,
			err: broken}, maxPause},
		"a long life begins with a short": {Always, maxPause, 2 * time.Minute, broken, decision{do: again, after: 625 * time.Millisecond,
			err: broken}, minPause},
	} {
		got, pause := c.policy.next(c.pause, c.lived, c.err, 0.5)
		if got != c.want || pause != c.nextPause {
			t.Errorf("%s: %+v, then %v; want %+v, then %v", name, got, pause, c.want, c.nextPause)
		}
	}
}

// diary notes what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// steady is a part that runs until it is asked to end.
func (d *diary) steady(name string, policy Restart) Part {
	return Part{Name: name, Restart: policy, Run: func(ctx context.Context) error {
		<-ctx.Done()
		d.note("end " + name)
		return ctx.Err()
	}}
}

// A part that ends is started again, later and later; the others are not
// touched, and all end with the context, the last one first.
func TestPartsStartAgainAndEndInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var d diary
		var starts []time.Duration
		began := time.Now()
		g := New(ctx, slog.New(slog.DiscardHandler), Reverse)
		g.Start(d.steady("first", Always), Part{"failing", func(context.Context) error {
			starts = append(starts, time.Since(began))
			return errors.New("broken")
		}, Always}, d.steady("third", Always))
		g.Start(d.steady("fourth", Never))
		time.Sleep(10 * time.Second)
		states := g.States()
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("a group that was asked to end failed: %v", err)
		}
		if len(starts) < 4 || len(starts) > 6 {
			t.Fatalf("%d starts in 10 s: %v", len(starts), starts)
		}
		for i := 2; i < len(starts); i++ {
			if now, before := starts[i]-starts[i-1], starts[i-1]-starts[i-2]; now < before {
				t.Errorf("pauses must grow while a part keeps ending: %v", starts)
			}
		}
		if states[1].Restarts != len(starts)-1 || states[1].LastError != "broken" || states[0].Restarts != 0 || states[3].Name != "fourth" {
			t.Errorf("states: %+v", states)
		}
		if want := []string{"end fourth", "end third", "end first"}; !reflect.DeepEqual(d.lines, want) {
			t.Errorf("they ended in the order %v, want %v", d.lines, want)
		}
		g.Start(Part{Name: "late", Run: func(context.Context) error { t.Error("started in a group that ended"); return nil }})
	})
}

// The failure of a part that is not started again ends the group, and is what
// it returns.
func TestFailureOfAPartEndsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		var d diary
		err := Run(t.Context(), slog.New(slog.DiscardHandler), d.steady("a", Always), d.steady("b", Never),
			Part{Name: "c", Run: func(context.Context) error { time.Sleep(time.Second); return broken }})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "running c") {
			t.Errorf("the group ended with %v", err)
		}
		if slices.Sort(d.lines); !slices.Equal(d.lines, []string{"end a", "end b"}) {
			t.Errorf("these ended: %v", d.lines)
		}
		// A part without a name passes its error on as it is.
		if err := Run(t.Context(), slog.New(slog.DiscardHandler),
			Part{Run: func(context.Context) error { return broken }}); err != broken { //nolint:errorlint // as it is
			t.Errorf("a part without a name: %v", err)
		}
		// What the caller gave as the cause of the end is the result.
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(broken)
		if err := Run(ctx, slog.New(slog.DiscardHandler), d.steady("c", Never)); !errors.Is(err, broken) {
			t.Errorf("the caller's cause: %v", err)
		}
	})
}

// A part that does not end keeps no other from being stopped where all stop at
// once, and where they stop in turn it keeps those before it.
func TestOrderOfTheEnd(t *testing.T) {
	for order, stopped := range map[Order]bool{AtOnce: true, Reverse: false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var d diary
			release := make(chan struct{})
			g := New(ctx, slog.New(slog.DiscardHandler), order)
			g.Start(d.steady("first", Always), Part{Name: "slow", Run: func(context.Context) error { <-release; return nil }})
			cancel()
			synctest.Wait()
			d.mu.Lock()
			if got := len(d.lines) == 1; got != stopped {
				t.Errorf("order %d: the first was stopped while the other went on: %v, want %v", order, got, stopped)
			}
			d.mu.Unlock()
			close(release)
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A list of which every part is done is done.
func TestRunEndsWhenEveryPartIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := Run(t.Context(), slog.New(slog.DiscardHandler), Part{Name: "once", Run: func(context.Context) error { return nil }},
			Part{Name: "third time", Restart: OnFailure, Run: func(context.Context) error {
				if tries++; tries < 3 {
					return errors.New("not yet")
				}
				return nil
			}})
		if err != nil || tries != 3 {
			t.Errorf("%d tries, %v", tries, err)
		}
	})
}
