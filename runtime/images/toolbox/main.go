// Command toolbox is the one program in berth's example and test images: a
// POSIX shell and the few tools that examples and tests call, under one name
// each (toolbox NAME ARGS, or a link called NAME).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// tool runs with its own arguments (without its name) and streams.
type tool func(ctx context.Context, io streams, args []string) error

type streams struct {
	in       io.Reader
	out, err io.Writer
	dir      string
	env      []string
}

// exit carries an exit status through error returns.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	name := filepath.Base(os.Args[0])
	args := os.Args[1:]
	if name == "toolbox" {
		if len(args) == 0 {
			usage()
			os.Exit(2)
		}
		name, args = args[0], args[1:]
	}
	dir, _ := os.Getwd()
	os.Exit(status(name, call(context.Background(), name, streams{os.Stdin, os.Stdout, os.Stderr, dir, os.Environ()}, args)))
}

func status(name string, err error) int {
	var e exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return int(e)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
}

func call(ctx context.Context, name string, s streams, args []string) error {
	if name == "sh" {
		return shell(ctx, s, args)
	}
	t, ok := tools[name]
	if !ok {
		return fmt.Errorf("no such tool: %w", exit(127))
	}
	return t(ctx, s, args)
}

func usage() {
	names := []string{"sh"}
	for n := range tools {
		names = append(names, n)
	}
	sort.Strings(names)
	fmt.Fprintln(os.Stderr, "usage: toolbox NAME [ARGS]; names:", strings.Join(names, " "))
}

// shell runs `sh -c SCRIPT [NAME ARGS]`, `sh FILE [ARGS]` or reads standard
// input. Tools run inside this process, anything else is executed.
func shell(ctx context.Context, s streams, args []string) error {
	var src io.Reader = s.in
	name := "sh"
	if len(args) > 0 && args[0] == "-c" {
		if len(args) < 2 {
			return errors.New("-c needs a script")
		}
		src = strings.NewReader(args[1])
		args = args[2:]
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	} else if len(args) > 0 {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		src, name, args = f, args[0], args[1:]
	}
	handler := func(next interp.ExecHandlerFunc) interp.ExecHandlerFunc {
		return func(ctx context.Context, words []string) error {
			hc := interp.HandlerCtx(ctx)
			if _, ok := tools[words[0]]; !ok && words[0] != "sh" {
				return next(ctx, words)
			}
			env := os.Environ()
			err := call(ctx, words[0], streams{hc.Stdin, hc.Stdout, hc.Stderr, hc.Dir, env}, words[1:])
			if err == nil {
				return nil
			}
			return interp.ExitStatus(uint8(status(words[0], err)))
		}
	}
	r, err := interp.New(interp.StdIO(s.in, s.out, s.err), interp.Dir(s.dir), interp.ExecHandlers(handler),
		interp.Params(append([]string{"--"}, args...)...))
	if err != nil {
		return err
	}
	// A shell as PID 1 must end on SIGTERM even while a tool waits.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	parser := syntax.NewParser()
	var runErr error
	if src != s.in {
		file, err := parser.Parse(src, name)
		if err != nil {
			return err
		}
		runErr = r.Run(ctx, file)
	} else {
		for stmt, err := range parser.StmtsSeq(src) {
			if err != nil {
				fmt.Fprintln(s.err, "sh:", err)
				return exit(2)
			}
			if runErr = r.Run(ctx, stmt); r.Exited() {
				break
			}
		}
	}
	var st interp.ExitStatus
	if errors.As(runErr, &st) {
		return exit(int(st))
	}
	if runErr != nil && ctx.Err() != nil {
		return exit(143)
	}
	return runErr
}
