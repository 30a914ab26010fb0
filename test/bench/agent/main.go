// Command agent measures `berth agent` as a process of its own beside an API
// server and a containerd: every bar of the node agent, with its target and
// how the figure stands to it. It stops everything it started.
//
// The floor of pod starts is the calls that an agent made for the same pod,
// recorded on their way to the runtime and made again directly, for fresh pods
// whose directories, files and cgroups are there already, beside the same API
// server and the same, then idle, agent. Floor and agent take turns.
//
//	BERTH_BIN=bin go run ./test/bench/agent [-only start,burst,...] [-idle 120s] [-rounds 3] [-many 500] [-hang 45s]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/rig"
)

// anyDisk lets a machine be measured whose disk is nearly full.
const anyDisk = "evictionHard: {memory.available: 100Mi}\n"

const every = "ready,rss,start,burst,delete,idle,probes,summary,many,heartbeat,pressure"

func main() {
	only := flag.String("only", every, "parts to measure")
	idle := flag.Duration("idle", 120*time.Second, "how long to measure CPU time")
	many := flag.Int("many", 500, "pods of the last part")
	probed := flag.Int("probed", 110, "pods of the parts probes and summary")
	rounds := flag.Int("rounds", 3, "how often floor and agent take turns with many pods at once")
	hang := flag.Duration("hang", 45*time.Second, "how long the runtime hangs")
	ports := flag.Int("ports", 20600, "first of 20 free ports")
	flag.Parse()
	if err := run(strings.Split(*only, ","), &bench{idleFor: *idle, many: *many, probed: *probed, rounds: *rounds, hangFor: *hang},
		*ports); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// part is one measurement.
type part struct {
	name string
	run  func(context.Context) error
}

func run(only []string, b *bench, ports int) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if b.Rig, err = rig.New(os.Getenv("BERTH_BIN"), ports); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.StartServer(); err != nil {
		return err
	}
	if err := b.StartRuntime(ctx, "10.201.0.0/21"); err != nil {
		return err
	}
	if b.floor, err = dialFloor(b.Runtime.Socket(), filepath.Join(b.Dir, "floor")); err != nil {
		return err
	}
	defer b.floor.conn.Close()
	if err := b.learn(ctx); err != nil {
		return fmt.Errorf("recording what an agent asks of the runtime: %w", err)
	}
	if b.agent, err = b.StartAgent(nodeName, fmt.Sprintf("maxPods: %d\n", b.many+20)+anyDisk); err != nil {
		return err
	}
	if err := b.awaitHealth(ctx); err != nil {
		return err
	}
	for _, p := range []part{{"ready", b.ready}, {"rss", b.memory}, {"start", b.starts}, {"burst", b.bursts}, {"delete", b.deletions},
		{"idle", b.idle}, {"probes", b.probes}, {"summary", b.summary}, {"many", b.pack}, {"heartbeat", b.hang}, {"pressure", b.pressure}} {
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
	fmt.Printf("%d bars missed\n", b.missed)
	return nil
}
