// Package testpace tells tests how slow the machine under them is, so that
// their waits are long enough on an emulated one.
package testpace

import (
	"os"
	"strconv"
	"time"
)

// Slowness is how many times slower than usual this machine is:
// BERTH_TEST_SLOWNESS, or 1.
var Slowness = parse(os.Getenv("BERTH_TEST_SLOWNESS"))

func parse(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// Patience is how long to wait here for what takes at most d on a usual machine.
func Patience(d time.Duration) time.Duration { return d * time.Duration(Slowness) }

// Tries is how often to look here for what takes at most n looks on a usual
// machine.
func Tries(n int) int { return n * Slowness }

// Share is how many of n to do at once, or of n rounds to do, here: at least
// least.
func Share(n, least int) int { return max(n/Slowness, min(n, least)) }
