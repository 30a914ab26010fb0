// Package testtimeout scales the timeouts and rounds of tests to the speed of
// the host, so that they are long enough on an emulated one.
package testtimeout

import (
	"os"
	"strconv"
	"time"
)

// Multiplier is how many times slower than usual this host is:
// BERTH_TEST_SLOWNESS, or 1.
var Multiplier = parse(os.Getenv("BERTH_TEST_SLOWNESS"))

func parse(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// Scale returns the timeout here for what takes at most d on a usual host.
func Scale(d time.Duration) time.Duration { return d * time.Duration(Multiplier) }

// Attempts returns how often to try here what succeeds within n attempts on a
// usual host.
func Attempts(n int) int { return n * Multiplier }

// Rounds returns how many of n rounds (or of n things at once) to do here: at
// least minimum.
func Rounds(n, minimum int) int { return max(n/Multiplier, min(n, minimum)) }
