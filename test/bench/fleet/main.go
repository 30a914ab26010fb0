// Command fleet asks whether a control plane of its own carries a fleet of
// hollow nodes on this machine: it starts `berth server` with the embedded
// store, `berth fleet` beside it, watches every lease itself, and prints how
// many nodes stayed alive, how many leases lapsed, renewals a second, memory per
// node, and the CPU time of both processes. It ends with PASS or FAIL
// and stops everything it started.
//
//	BERTH_BIN=bin go run ./test/bench/fleet [-nodes 5000] [-lease 40] [-for 10m]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/test/rig"
)

// settings are what the command line says.
type settings struct {
	nodes, lease, zones, ports int
	rate                       float64
	measure, patience          time.Duration
	kib                        float64
}

func main() {
	var s settings
	flag.IntVar(&s.nodes, "nodes", 5000, "hollow nodes")
	flag.IntVar(&s.lease, "lease", 40, "seconds that a lease lasts; it is renewed four times as often")
	flag.IntVar(&s.zones, "zones", 5, "zones of the nodes")
	flag.Float64Var(&s.rate, "rate", 100, "nodes that register in a second")
	flag.DurationVar(&s.measure, "for", 10*time.Minute, "how long to measure, from when all nodes are Ready")
	flag.DurationVar(&s.patience, "patience", 10*time.Minute, "how long the nodes may take to become Ready")
	flag.Float64Var(&s.kib, "kib", 40, "most memory of the fleet process for each node, in KiB")
	flag.IntVar(&s.ports, "ports", 20500, "first of 20 free ports")
	flag.Parse()
	pass, err := run(os.Getenv("BERTH_BIN"), s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if !pass {
		os.Exit(1)
	}
}

func run(bin string, s settings) (pass bool, err error) {
	r, err := rig.New(bin, s.ports)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.StartServer(); err != nil {
		return false, err
	}
	server, err := os.ReadFile(filepath.Join(r.ServerDir(), "lock"))
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := newObserver(time.Duration(s.lease) * time.Second)
	watching := make(chan error, 1)
	defer func() {
		cancel()
		if werr := <-watching; err == nil {
			err = werr
		}
	}()
	go func() { watching <- o.watch(ctx, r.Admin) }()
	f, err := startFleet(r, s)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	return measure(s, f, o, strings.TrimSpace(string(server)), watching)
}

// measure waits until all nodes are Ready, watches them for the given time, and
// prints the verdict.
func measure(s settings, f *fleet, o *observer, server string, watching chan error) (bool, error) {
	began := time.Now()
	var before, after [2]time.Duration // CPU time: server, fleet
	take := func(into *[2]time.Duration) (err error) {
		if into[0], err = cpuTime(server); err != nil {
			return err
		}
		into[1], err = cpuTime(strconv.Itoa(f.cmd.Process.Pid))
		return err
	}
	patience := time.After(s.patience)
	for ready := 0; ready < s.nodes; {
		select {
		case line, ok := <-f.lines:
			if !ok {
				return false, errors.New("the fleet ended by itself")
			}
			ready = line.ready
		case err := <-watching:
			watching <- err
			return false, err
		case <-patience:
			return false, fmt.Errorf("%d of %d nodes are Ready after %s", ready, s.nodes, s.patience)
		}
	}
	fmt.Printf("all %d nodes Ready after %s; measuring for %s\n", s.nodes, time.Since(began).Round(time.Second), s.measure)
	if err := take(&before); err != nil {
		return false, err
	}
	o.begin(time.Now())
	began = time.Now()
	least, kib := s.nodes, 0.0
	over := time.After(s.measure)
	for measuring := true; measuring; {
		select {
		case line, ok := <-f.lines:
			if !ok {
				return false, errors.New("the fleet ended by itself")
			}
			least, kib = min(least, line.ready), max(kib, line.kib)
		case err := <-watching:
			watching <- err
			return false, err
		case <-over:
			measuring = false
		}
	}
	if err := take(&after); err != nil {
		return false, err
	}
	took := time.Since(began).Seconds()
	seen, renewals, lapses, longest := o.end(time.Now())
	each := func(i int) string {
		cpu := (after[i] - before[i]).Seconds()
		return fmt.Sprintf("%.2f cores, %.0f µs a renewal", cpu/took, cpu/float64(max(renewals, 1))*1e6)
	}
	pass := seen == s.nodes && least == s.nodes && lapses == 0 && kib <= s.kib
	due := float64(s.nodes) / (float64(s.lease) / 4)
	fmt.Printf("alive      %d of %d at the least (leases of %d)\n", least, s.nodes, seen)
	fmt.Printf("lapses     %d (longest silence %.1f s, leases last %d s)\n", lapses, longest.Seconds(), s.lease)
	fmt.Printf("renewals   %.0f a second (%.0f are due)\n", float64(renewals)/took, due)
	fmt.Printf("memory     %.1f KiB a node in the fleet process (at most %g)\n", kib, s.kib)
	fmt.Printf("server     %s\nfleet      %s\n", each(0), each(1))
	fmt.Println(map[bool]string{true: "PASS", false: "FAIL"}[pass])
	return pass, nil
}

// fleet is a `berth fleet` process.
type fleet struct {
	cmd   *exec.Cmd
	lines chan line
	wg    sync.WaitGroup
}

// line is what a line of progress says.
type line struct {
	ready int
	kib   float64
}

var progress = regexp.MustCompile(`(\d+) of \d+ nodes Ready, .* = ([0-9.]+) KiB a node`)

func startFleet(r *rig.Rig, s settings) (*fleet, error) {
	f := &fleet{lines: make(chan line, 1024)}
	f.cmd = exec.Command(filepath.Join(r.Bin, "berth"), "fleet", "--kubeconfig", filepath.Join(r.ServerDir(), "admin.kubeconfig"),
		"--cleanup=false",
		"--nodes", strconv.Itoa(s.nodes), "--zones", strconv.Itoa(s.zones), "--lease-duration", strconv.Itoa(s.lease), "--register-rate",
		fmt.Sprint(s.rate))
	f.cmd.Stderr = os.Stderr
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	f.wg.Go(func() {
		defer close(f.lines)
		scan := bufio.NewScanner(out)
		for scan.Scan() {
			fmt.Println(scan.Text())
			if m := progress.FindStringSubmatch(scan.Text()); m != nil {
				var l line
				l.ready, _ = strconv.Atoi(m[1])
				l.kib, _ = strconv.ParseFloat(m[2], 64)
				f.lines <- l
			}
		}
		_, _ = io.Copy(io.Discard, out)
	})
	return f, nil
}

// stop interrupts the fleet and waits for its end.
func (f *fleet) stop() error {
	if err := f.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	f.wg.Wait()
	_ = f.cmd.Wait() // interrupted
	return nil
}

// cpuTime is what a process took so far.
func cpuTime(pid string) (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	const tick = 10 * time.Millisecond // of the kernel's accounting
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}
