package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// TestPacer: a process that collects all the time may hold more, within
// bounds, and no longer when it is calm.
func TestPacer(t *testing.T) {
	now := time.Unix(1000, 0)
	p := pacer{last: now}
	after := func(d time.Duration, live uint64) int {
		now = now.Add(d)
		return p.cycle(now, live)
	}
	const live = 60 << 20
	for i := range busyCycles - 1 {
		if got := after(100*time.Millisecond, live); got != GCPercent {
			t.Fatalf("collection %d: %d %%, want %d", i, got, GCPercent)
		}
	}
	if got := after(100*time.Millisecond, live); got != busyMax {
		t.Errorf("busy: %d %%, want %d", got, busyMax)
	}
	if got := after(time.Second, live); got != busyMax {
		t.Errorf("busy with fewer collections, as it should be: %d %%, want %d", got, busyMax)
	}
	if got := after(time.Second, 128<<20); got != 150 {
		t.Errorf("busy with 128 MiB: %d %%, want 150", got)
	}
	if got := after(time.Second, 2<<30); got != GCPercent {
		t.Errorf("busy with 2 GiB: %d %%, want %d", got, GCPercent)
	}
	if got := after(calmCycle, live); got != GCPercent {
		t.Errorf("calm: %d %%, want %d", got, GCPercent)
	}
	// Now and then a quick one makes nobody busy.
	for range 3 * busyCycles {
		after(100*time.Millisecond, live)
		if got := after(time.Second, live); got != GCPercent {
			t.Fatalf("now and then: %d %%, want %d", got, GCPercent)
		}
	}
}

// TestTuneGC: the collector's own cycles drive it, and it ends with its context.
func TestTuneGC(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(GCPercent))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); tuneGC(ctx) }()
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	for sample[0].Value.Kind() == metrics.KindBad || sample[0].Value.Uint64() <= GCPercent {
		runtime.GC()
		metrics.Read(sample)
	}
	cancel()
	<-done
}
