package testpace

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	for in, want := range map[string]int{"": 1, "x": 1, "-3": 1, "0": 1, "1": 1, "20": 20} {
		if got := parse(in); got != want {
			t.Errorf("BERTH_TEST_SLOWNESS=%q: %d, want %d", in, got, want)
		}
	}
	was := Slowness
	defer func() { Slowness = was }()
	Slowness = 10
	if Patience(time.Second) != 10*time.Second || Tries(3) != 30 {
		t.Errorf("patience %v, tries %d", Patience(time.Second), Tries(3))
	}
	for _, c := range []struct{ n, least, want int }{{152, 8, 15}, {40, 8, 8}, {4, 8, 4}} {
		if got := Share(c.n, c.least); got != c.want {
			t.Errorf("Share(%d, %d) = %d, want %d", c.n, c.least, got, c.want)
		}
	}
}
