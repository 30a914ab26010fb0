package health_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// No goroutine outlives the tests. Benchmarks are let off: the API server that
// they start has goroutines that end with the process only.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}
