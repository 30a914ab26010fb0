package network

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// A listing that was cut short by a change is asked for again; other errors are
// not.
func TestWholeListings(t *testing.T) {
	asked := 0
	got, err := whole(func() ([]int, error) {
		if asked++; asked < 3 {
			return []int{1}, fmt.Errorf("listing: %w", netlink.ErrDumpInterrupted)
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(got) != 2 || asked != 3 {
		t.Errorf("%v, %v after %d questions", got, err, asked)
	}
	asked = 0
	denied := errors.New("denied")
	if _, err := whole(func() ([]int, error) { asked++; return nil, denied }); !errors.Is(err, denied) || asked != 1 {
		t.Errorf("%v after %d questions", err, asked)
	}
}
