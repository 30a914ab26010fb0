package image

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A pull is counted under the size of its image, in ranges that dashboards know.
func TestPullsBySize(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 10<<20 + 1: "10MB-100MB",
		400 << 20: "100MB-500MB", 3 << 30: "1GB-5GB", 100<<30 + 1: "GT100GB"} {
		if got := sizeRange(bytes); got != want {
			t.Errorf("%d bytes are %q, want %q", bytes, got, want)
		}
	}
	m := newMetrics(nil)
	m.pulled(2*time.Second, 5)
	m.pulled(3*time.Second, 6)
	m.pulled(time.Second, 2<<30)
	if n := testutil.CollectAndCount(m.sized); n != 2 {
		t.Errorf("%d ranges were counted, want 2", n)
	}
}
