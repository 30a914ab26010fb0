package admit

import (
	"errors"
	"testing"
)

// TestArrivalsForget waits for accounts that never come: names come from users,
// so nothing may remain of them.
func TestArrivalsForget(t *testing.T) {
	var w arrivals
	one, two := w.await("ns/a"), w.await("ns/a")
	other := w.await("ns/b")
	w.leave("ns/a", one)
	w.notify("ns/a")
	select {
	case <-two.came:
	default:
		t.Error("who still waited was not told")
	}
	w.leave("ns/a", two)
	w.leave("ns/b", other)
	if len(w.waiting) != 0 {
		t.Errorf("%d names are remembered that nobody waits for", len(w.waiting))
	}
	again := w.await("ns/a")
	if again == two {
		t.Error("a new wait got an arrival that is past")
	}
	w.leave("ns/a", two) // late: it must not end the new wait
	w.notify("ns/a")
	select {
	case <-again.came:
	default:
		t.Error("the new wait was not told")
	}
}

// TestLazyTriesAgain makes the first attempt fail, as a store that is slow for
// a moment does.
func TestLazyTriesAgain(t *testing.T) {
	tries := 0
	get := onceGood(func() (int, error) {
		if tries++; tries == 1 {
			return 0, errors.New("not now")
		}
		return tries, nil
	})
	if _, err := get(); err == nil {
		t.Error("the first error was lost")
	}
	for range 2 {
		if got, err := get(); got != 2 || err != nil {
			t.Errorf("got %d, %v; want what the second try made", got, err)
		}
	}
}
