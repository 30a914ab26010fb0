package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// summary asks for what the agent measures of a full node: the summary, and
// what metrics-server and Prometheus scrape. Whoever asks waits: the bar is for
// every answer, not for the middle one. With BENCH_PROFILE the agent's
// CPU profile meanwhile goes to that file.
func (b *bench) summary(ctx context.Context) error {
	if _, _, err := b.create(ctx, "shown-", b.probed, false); err != nil {
		return err
	}
	time.Sleep(15 * time.Second) // past the burst
	if path := os.Getenv("BENCH_PROFILE"); path != "" {
		done := make(chan error, 1)
		go func() { done <- b.profile(ctx, path) }()
		defer func() {
			if err := <-done; err != nil {
				fmt.Fprintln(os.Stderr, "bench: profiling:", err)
			}
		}()
	}
	for _, path := range []string{"/stats/summary", "/metrics/resource", "/metrics/cadvisor"} {
		if err := b.answers(ctx, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// answers notes how long the answers at the path took.
func (b *bench) answers(ctx context.Context, path string) error {
	const n = 200
	var took []time.Duration
	before, err := b.counters(ctx)
	if err != nil {
		return err
	}
	idle, _ := usageOf(b.agent.Process.Pid)
	var size int64
	for range n {
		began := time.Now()
		body, err := b.ask(ctx, path)
		if err != nil {
			return err
		}
		size, err = io.Copy(io.Discard, body)
		if err := errors.Join(err, body.Close()); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	busy, _ := usageOf(b.agent.Process.Pid)
	after, err := b.counters(ctx)
	if err != nil {
		return err
	}
	usual, spent := quantile(took, 0.5), (after.allocated-before.allocated)/n/1e6
	bar, verdict := "", none
	if path == "/stats/summary" {
		bar, verdict = "20 ms, 5 MB", met(usual <= 20*time.Millisecond && spent <= 5)
	}
	b.note("summary", fmt.Sprintf("%s of %d pods (%d kB): median, p95, p99; CPU time; allocated", path, b.probed, size/1000), bar,
		fmt.Sprintf("%s, %s, %s; %.1f ms; %.1f MB", ms(usual), ms(quantile(took, 0.95)), ms(quantile(took, 0.99)),
			(busy.ticks-idle.ticks)*10/n, spent), verdict)
	return nil
}

func (b *bench) profile(ctx context.Context, path string) error {
	body, err := b.ask(ctx, "/debug/pprof/profile?seconds=8")
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return errors.Join(err, body.Close())
	}
	_, err = io.Copy(file, body)
	return errors.Join(err, file.Close(), body.Close())
}
