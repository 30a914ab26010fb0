package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// process is what one process holds.
type process struct {
	rss, anon   float64 // MiB
	descriptors int
}

// sample is what the parts hold at one moment.
type sample struct {
	at                     time.Duration
	agent, server, runtime process
	// goroutines and allocated heap (MiB, garbage included) of the agent.
	goroutines int
	heap       float64
}

const header = "minute   agent MiB (anonymous, heap)  goroutines  files   server MiB  files   containerd MiB  files   pods replaced"

func (m sample) line(replaced int) string {
	return fmt.Sprintf("%6.1f   %9.1f (%9.1f, %4.1f)  %10d  %5d   %10.1f  %5d   %14.1f  %5d   %13d", m.at.Minutes(), m.agent.rss,
		m.agent.anon, m.heap,
		m.goroutines, m.agent.descriptors, m.server.rss, m.server.descriptors, m.runtime.rss, m.runtime.descriptors, replaced)
}

// curve is all samples in order.
type curve []sample

// verdict prints growth and says whether it was too much.
func (c curve) verdict(length time.Duration) error {
	warm, wide := 10*time.Minute, span
	if length < time.Hour {
		warm = length / 6
	}
	if length < 4*span { // else not less: program pages go and come back in that time
		wide = length / 12
	}
	var first, last, after curve
	for _, m := range c {
		if m.at >= warm {
			after = append(after, m)
		}
		switch {
		case m.at > length-wide:
			last = append(last, m)
		case m.at >= warm && m.at < warm+wide:
			first = append(first, m)
		}
	}
	if len(first) == 0 || len(last) == 0 {
		return errors.New("too short to tell growth")
	}
	row := func(name, unit string, of func(sample) float64) float64 {
		from, to := first.mean(of), last.mean(of)
		slope, off := after.trend(of)
		fmt.Printf("%-22s %7.1f -> %7.1f %-5s %+5.1f %%   trend %+6.1f %s/h ± %.1f\n", name, from, to, unit, 100*(to-from)/from, slope,
			unit, off)
		return 100 * (to - from) / from
	}
	fmt.Printf("means of %s after a warm-up of %s and of the last %s:\n", wide, warm, wide)
	growth := row("agent, resident", "MiB", func(m sample) float64 { return m.agent.rss })
	row("agent, anonymous", "MiB", func(m sample) float64 { return m.agent.anon })
	row("agent, allocated heap", "MiB", func(m sample) float64 { return m.heap })
	row("agent, goroutines", "", func(m sample) float64 { return float64(m.goroutines) })
	row("agent, descriptors", "", func(m sample) float64 { return float64(m.agent.descriptors) })
	row("server, resident", "MiB", func(m sample) float64 { return m.server.rss })
	// What the store's file maps counts as resident and not as anonymous.
	row("server, anonymous", "MiB", func(m sample) float64 { return m.server.anon })
	row("server, descriptors", "", func(m sample) float64 { return float64(m.server.descriptors) })
	row("containerd, resident", "MiB", func(m sample) float64 { return m.runtime.rss })
	row("containerd, descriptors", "", func(m sample) float64 { return float64(m.runtime.descriptors) })
	if growth > bar {
		return fmt.Errorf("the agent's memory grew by %.1f %%, at most %.0f %% are allowed", growth, bar)
	}
	fmt.Printf("the agent's memory grew by %.1f %% (bar %.0f %%): kept\n", growth, bar)
	return nil
}

func (c curve) mean(of func(sample) float64) float64 {
	sum := 0.0
	for _, m := range c {
		sum += of(m)
	}
	return sum / float64(len(c))
}

// trend is the straight line that fits all readings best: how much more there
// is an hour later, and the standard error of that. A few readings before and
// after a collection of garbage move the means of two ends; they hardly move it.
func (c curve) trend(of func(sample) float64) (slope, off float64) {
	if len(c) < 3 {
		return 0, math.Inf(1)
	}
	hours := func(m sample) float64 { return m.at.Hours() }
	x, y := c.mean(hours), c.mean(of)
	var xx, xy, rest float64
	for _, m := range c {
		xx += (hours(m) - x) * (hours(m) - x)
		xy += (hours(m) - x) * (of(m) - y)
	}
	slope = xy / xx
	for _, m := range c {
		e := of(m) - y - slope*(hours(m)-x)
		rest += e * e
	}
	return slope, math.Sqrt(rest / float64(len(c)-2) / xx)
}

func (s *soak) measure(ctx context.Context, at time.Duration) (sample, error) {
	got := sample{at: at}
	for file, into := range map[string]*process{filepath.Join(s.ServerDir(), "lock"): &got.server,
		filepath.Join(s.Dir, "rt/run/containerd.pid"): &got.runtime} {
		text, err := os.ReadFile(file)
		if err != nil {
			return got, err
		}
		if *into, err = holds(strings.TrimSpace(string(text))); err != nil {
			return got, err
		}
	}
	var err error
	if got.agent, err = holds(strconv.Itoa(s.agent.Process.Pid)); err != nil {
		return got, err
	}
	body, err := s.get(ctx, "/metrics")
	if err != nil {
		return got, err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "go_goroutines":
			got.goroutines = int(v)
		case name == "go_memstats_heap_alloc_bytes":
			got.heap = v / (1 << 20)
		}
	}
	return got, lines.Err()
}

// holds reads what a process holds.
func holds(pid string) (process, error) {
	var p process
	proc := filepath.Join("/proc", pid)
	open, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return p, err
	}
	p.descriptors = len(open)
	text, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(text)) {
		for name, into := range map[string]*float64{"VmRSS:": &p.rss, "RssAnon:": &p.anon} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				if err != nil {
					return p, err
				}
				*into = kib / 1024
			}
		}
	}
	return p, nil
}
