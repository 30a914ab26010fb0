package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
)

// stats counts what the fleet did.
type stats struct {
	began     time.Time
	podErrors atomic.Int64

	mu       sync.Mutex
	renewals int
	// took holds the times of the renewals since the last report, in turn.
	took []time.Duration
	// slowest is the worst time of all.
	slowest time.Duration
	ready   int
	most    int
	// lapses counts nodes that the API called not ready though they were
	// neither stopped nor cut off; allAt is when the last node became ready.
	lapses int
	allAt  time.Duration
}

func (s *stats) renewal(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewals++
	s.took = append(s.took, took)
	s.slowest = max(s.slowest, took)
}

// readyChanged counts a node that became ready or not ready.
func (s *stats) readyChanged(ready, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ready {
		s.ready--
		if !silent {
			s.lapses++
		}
		return
	}
	s.ready++
	if s.ready > s.most {
		s.most, s.allAt = s.ready, time.Since(s.began)
	}
}

// interval takes the renewals since the last call.
func (s *stats) interval() (ready, renewals int, p50, p99 time.Duration) {
	s.mu.Lock()
	took := s.took
	s.took = make([]time.Duration, 0, len(took))
	ready = s.ready
	s.mu.Unlock()
	slices.Sort(took)
	if n := len(took); n > 0 {
		p50, p99 = took[n/2], took[n*99/100]
	}
	return ready, len(took), p50, p99
}

func (f *fleet) say(format string, args ...any) {
	fmt.Fprintf(f.cfg.Out, "%8s  %s\n", time.Since(f.stats.began).Round(100*time.Millisecond), fmt.Sprintf(format, args...))
}

// progress prints a line now and then.
func (f *fleet) progress(ctx context.Context) {
	t := time.NewTicker(f.cfg.ProgressEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		ready, renewals, p50, p99 := f.stats.interval()
		running, pods := f.pods()
		f.say("%d of %d nodes Ready, %d of %d pods running; %.0f renewals/s, p50 %s, p99 %s; %s", ready, len(f.nodes), running, pods,
			float64(renewals)/f.cfg.ProgressEvery.Seconds(), p50.Round(100*time.Microsecond), p99.Round(100*time.Microsecond), f.memory())
	}
}

func (f *fleet) pods() (running, all int) {
	for _, h := range f.nodes {
		for _, p := range h.podList() {
			p.mu.Lock()
			if p.newest.Status.Phase == v1.PodRunning {
				running++
			}
			p.mu.Unlock()
			all++
		}
	}
	return running, all
}

// memory is what this process holds, divided by the nodes.
func (f *fleet) memory() string {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text := fmt.Sprintf("heap %.1f KiB a node", float64(m.HeapAlloc)/1024/float64(len(f.nodes)))
	if rss, ok := residentKiB(); ok {
		text += fmt.Sprintf(", resident %d MiB = %.1f KiB a node", rss/1024, float64(rss)/float64(len(f.nodes)))
	}
	return text
}

// residentKiB is the process's resident memory, where the system tells.
func residentKiB() (int64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()) / 1024, err == nil
}

func (f *fleet) summary() {
	s := &f.stats
	s.mu.Lock()
	renewals, slowest, most, allAt, lapses := s.renewals, s.slowest, s.most, s.allAt, s.lapses
	s.mu.Unlock()
	f.say("at most %d of %d nodes Ready, after %s; %d lapses; %d renewals, the slowest took %s; %d failed pod writes; %s",
		most, len(f.nodes), allAt.Round(100*time.Millisecond), lapses, renewals, slowest.Round(time.Millisecond), s.podErrors.Load(),
		f.memory())
}
