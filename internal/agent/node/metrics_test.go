package node

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The phases of a new node's start add up; a node that was there before has
// none.
func TestPhasesOfAStart(t *testing.T) {
	m, err := newMetrics(nil, "n1")
	if err != nil {
		t.Fatal(err)
	}
	at := func(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
	m.show(startup{booted: at(0), began: at(20), asked: at(21), ready: at(30)})
	if got := testutil.ToFloat64(m.startup); got != 0 {
		t.Errorf("a node that was registered before took %v s to start", got)
	}
	m.show(startup{booted: at(0), began: at(20), asked: at(21), registered: at(23), ready: at(30)})
	for i, want := range []float64{20, 1, 2, 7, 30} {
		if got := testutil.ToFloat64([]prometheus.Collector{m.preAgent, m.preRegistration, m.registration, m.postRegistration,
			m.startup}[i]); got != want {
			t.Errorf("phase %d is %v s, want %v", i, got, want)
		}
	}
	now := time.Now()
	if boot := bootTime(now); !boot.Before(now) {
		t.Errorf("the machine started at %v, now is %v", boot, now)
	}
}
