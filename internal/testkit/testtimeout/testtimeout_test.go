package testtimeout

import (
	"testing"
	"time"
)

func TestMultiplier(t *testing.T) {
	for in, want := range map[string]int{"": 1, "x": 1, "-3": 1, "0": 1, "1": 1, "20": 20} {
		if got := parse(in); got != want {
			t.Errorf("BERTH_TEST_SLOWNESS=%q: %d, want %d", in, got, want)
		}
	}
	was := Multiplier
	defer func() { Multiplier = was }()
	Multiplier = 10
	if Scale(time.Second) != 10*time.Second || Attempts(3) != 30 {
		t.Errorf("timeout %v, attempts %d", Scale(time.Second), Attempts(3))
	}
	for _, c := range []struct{ n, minimum, want int }{{152, 8, 15}, {40, 8, 8}, {4, 8, 4}} {
		if got := Rounds(c.n, c.minimum); got != c.want {
			t.Errorf("Rounds(%d, %d) = %d, want %d", c.n, c.minimum, got, c.want)
		}
	}
}
