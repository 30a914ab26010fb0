// Command agent measures `berth agent` as a process of its own beside an API
// server and a containerd: pod starts against the floor (the same CRI calls
// made directly), bursts, deletions, memory and processor time. It prints a
// table of figures with their bars and stops everything it started.
//
//	BERTH_BIN=bin go run ./test/bench/agent [-only start,burst,delete,rss,idle,probes,many] [-idle 120s]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/rig"
)

func main() {
	only := flag.String("only", "floor,start,burst,delete,rss,idle,probes,many", "parts to measure")
	idle := flag.Duration("idle", 120*time.Second, "how long to measure processor time")
	many := flag.Int("many", 500, "pods of the last part")
	flag.Parse()
	if err := run(strings.Split(*only, ","), *idle, *many); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// part is one measurement.
type part struct {
	name string
	run  func(context.Context) error
}

func run(only []string, idle time.Duration, many int) (err error) {
	ctx := context.Background()
	r, err := rig.New(os.Getenv("BERTH_BIN"), 20600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	if err := r.StartServer(); err != nil {
		return err
	}
	if err := r.StartRuntime(ctx, "10.201.0.0/21"); err != nil {
		return err
	}
	b := &bench{Rig: r, idleFor: idle, many: many}
	if b.cri, err = dialCRI(r.Runtime.Socket()); err != nil {
		return err
	}
	defer b.cri.conn.Close()
	if slices.Contains(only, "floor") || slices.Contains(only, "start") || slices.Contains(only, "burst") {
		if err := b.floor(ctx); err != nil {
			return err
		}
	}
	if b.agent, err = r.StartAgent("bench", fmt.Sprintf("maxPods: %d\n", many+20)); err != nil {
		return err
	}
	if err := r.WaitNode(ctx, "bench"); err != nil {
		return err
	}
	for _, p := range []part{{"rss", b.memory}, {"start", b.starts}, {"burst", b.bursts}, {"delete", b.deletions}, {"idle", b.idle}, {"probes", b.probes}, {"many", b.pack}} {
		if !slices.Contains(only, p.name) {
			continue
		}
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := b.empty(ctx); err != nil {
			return fmt.Errorf("clearing after %s: %w", p.name, err)
		}
	}
	return nil
}
