// Command vm runs commands on an emulated machine with Debian's kernel, systemd
// and cgroup v2, for what the machine at hand cannot show (docs/vm.md).
//
//	vm [flags] boot             start a machine and keep it until interrupted
//	vm [flags] exec COMMAND...  run a shell command on that machine
//	vm [flags] run COMMAND...   start a machine, run one command, end it
//	vm [flags] test [NAME...]   run the list of checks in checks.go
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	m := &vm{}
	flag.StringVar(&m.image, "image", "bin/vm", "directory of the built image")
	flag.StringVar(&m.host, "host", ".", "directory that the machine sees as /host")
	flag.StringVar(&m.dir, "dir", filepath.Join(os.TempDir(), "berth-vm"), "directory for the machine's socket and console log")
	flag.IntVar(&m.cpus, "smp", 2, "CPUs")
	flag.IntVar(&m.memoryMiB, "memory", 3072, "MiB of memory")
	flag.IntVar(&m.nodes, "nodes", 1, "NUMA nodes")
	flag.StringVar(&m.accel, "accel", "tcg,thread=multi,tb-size=1024", "accelerator: kvm where the machine has it")
	flag.StringVar(&m.options, "options", "", "kernel options")
	limit := flag.Duration("timeout", 3*time.Hour, "end the machine after this long")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	status, err := act(ctx, m, flag.Arg(0), flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(125)
	}
	os.Exit(status)
}

func act(ctx context.Context, m *vm, verb string, args []string) (int, error) {
	var command string
	if len(args) > 1 {
		command = strings.Join(args[1:], " ")
	}
	switch verb {
	case "boot":
		ended, err := m.start(ctx)
		if err != nil {
			return 0, err
		}
		return 0, <-ended
	case "exec":
		l, err := m.connect(ctx)
		if err != nil {
			return 0, err
		}
		defer l.conn.Close()
		return l.run(command, os.Stdout)
	case "run":
		return m.once(ctx, []step{{command: command}}, os.Stdout)
	case "test":
		return test(ctx, m, args[1:])
	}
	flag.Usage()
	return 0, errors.New("want boot, exec, run or test")
}

// step is a shell command; reboots says that it ends in a start of the machine.
type step struct {
	command string
	reboots bool
}

// once boots a machine, runs the steps until one fails, and ends it.
func (m *vm) once(ctx context.Context, steps []step, out io.Writer) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended, err := m.start(ctx)
	if err != nil {
		cancel(nil)
		return 0, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		// A machine that cannot start ends the wait for it.
		cancel(fmt.Errorf("the machine ended: %w", errors.Join(<-ended, errors.New("see "+m.console()))))
	}()
	defer func() {
		cancel(nil)
		<-over
	}()
	l, err := m.connect(ctx)
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	defer l.conn.Close()
	for _, s := range steps {
		if s.reboots {
			if _, err := fmt.Fprintln(l.conn, s.command); err != nil {
				return 0, err
			}
			if err := l.ready(); err != nil {
				return 0, err
			}
			continue
		}
		if status, err := l.run(s.command, out); err != nil || status != 0 {
			return status, err
		}
	}
	return 0, nil
}
