package kit

import (
	"fmt"
	"os"
	"testing"
)

// OnlyInAll leaves a test to `make test-all`. Without BERTH_TESTS, or with
// BERTH_TESTS=all, every test runs; `make test` sets BERTH_TESTS=short. A test
// that is left out is written to the file that BERTH_LEFT_OUT names, which the
// Makefile prints at the end.
func OnlyInAll(t testing.TB, why string) {
	t.Helper()
	switch tier := os.Getenv("BERTH_TESTS"); tier {
	case "", "all":
		return
	case "short":
	default:
		t.Fatalf("BERTH_TESTS is %q; it may be all, short or empty, which means all", tier)
	}
	if file := os.Getenv("BERTH_LEFT_OUT"); file != "" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		Must(t, err)
		_, err = fmt.Fprintf(f, "%s: %s\n", t.Name(), why)
		Must(t, err)
		Must(t, f.Close())
	}
	t.Skipf("not run in this tier: %s", why)
}
