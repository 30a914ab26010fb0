// Command soak keeps a node busy with pods that come and go and prints, once a
// minute, what the processes of its parts hold: memory, goroutines and
// descriptors. The agent, the API server and the container runtime are a
// process each. It ends with an error if the agent's memory grew by more than
// the bar.
//
// Half of the pods stand still, half are replaced in turn. They are those of
// `make bench-agent` and what else a node sees: probes, volumes of every kind
// that the agent keeps up to date, a container that ends again and again. As on
// a node that is looked after, somebody asks for its summary and its metrics.
//
// Growth counts from the mean of the readings in the five minutes after the
// warm-up (10 minutes of churn, in which caches fill, or a sixth of a shorter
// run) to the mean of the last five, or less in a run below twenty; the trend
// is that of all readings after the warm-up.
//
//	BERTH_BIN=bin go run ./test/bench/soak [-for 1h] [-pods 50] [-churn 2s] [-profiles DIR]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/rig"
)

const (
	// bar is the most that the agent's resident memory may grow, in percent.
	bar = 5.0
	// span is what a mean is taken over at the beginning and the end.
	span = 5 * time.Minute
	// scrape is how often somebody asks for the summary and the metrics.
	scrape = 15 * time.Second
)

type soak struct {
	*rig.Rig
	agent    *rig.Agent
	http     *http.Client
	pods     int
	profiles string
	replaced int
	scrapes  int
}

func main() {
	length := flag.Duration("for", time.Hour, "how long to run")
	pods := flag.Int("pods", 50, "pods at any time")
	churn := flag.Duration("churn", 2*time.Second, "time between one pod replaced and the next")
	every := flag.Duration("every", time.Minute, "time between lines")
	ports := flag.Int("ports", 20500, "first of 20 free ports")
	profiles := flag.String("profiles", "", "directory for the agent's heap profiles, one every five lines")
	flag.Parse()
	// A soak that is given up clears away too.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &soak{pods: *pods, profiles: *profiles}, *length, *churn, *every, *ports); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s *soak, length, churn, every time.Duration, ports int) (err error) {
	if s.Rig, err = rig.New(os.Getenv("BERTH_BIN"), ports); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	replace, line, look := time.NewTicker(churn), time.NewTicker(every), time.NewTicker(scrape)
	defer replace.Stop()
	defer line.Stop()
	defer look.Stop()
	began := time.Now()
	fmt.Printf("began %s: %d pods, one replaced every %s\n", began.Format(time.TimeOnly), s.pods, churn)
	fmt.Println(header)
	var got curve
	for n := 0; ; {
		select {
		case <-ctx.Done():
			fmt.Printf("ended %s\n", time.Now().Format(time.TimeOnly))
			return got.verdict(length)
		case <-replace.C:
			if err := s.replace(ctx, n%(s.pods/2)); err != nil && ctx.Err() == nil {
				return err
			}
			n++
		case <-look.C:
			if err := s.scrape(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		case <-line.C:
			m, err := s.measure(ctx, time.Since(began))
			if err != nil {
				if ctx.Err() != nil {
					continue
				}
				return err
			}
			got = append(got, m)
			fmt.Println(m.line(s.replaced))
			if s.profiles != "" && len(got)%5 == 0 {
				if err := s.profile(ctx, fmt.Sprintf("%03.0f.pb.gz", m.at.Minutes())); err != nil {
					return err
				}
			}
		}
	}
}
