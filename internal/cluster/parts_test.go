package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A part that ends is started again, later and later, and finds its metrics
// free; the others are not touched, and all end with the context.
func TestCrewStartsPartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := crew{log: slog.New(slog.DiscardHandler)}
		metrics := newRegistry()
		began := time.Now()
		var starts []time.Duration
		c.start(ctx, part{"failing", func(context.Context) error {
			starts = append(starts, time.Since(began))
			metrics.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "test_total", Help: "x"}))
			return errors.New("broken")
		}})
		c.start(ctx, part{"steady", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		time.Sleep(10 * time.Second)
		cancel()
		c.wait()
		if len(starts) < 4 || len(starts) > 6 {
			t.Fatalf("%d starts in 10 s: %v", len(starts), starts)
		}
		for i := 2; i < len(starts); i++ {
			if now, before := starts[i]-starts[i-1], starts[i-1]-starts[i-2]; now < before {
				t.Errorf("pauses must grow while a part keeps ending: %v", starts)
			}
		}
		got := c.snapshot()
		if got[0].Restarts != len(starts)-1 || got[0].LastError != "broken" || got[1].Restarts != 0 {
			t.Errorf("states: %+v", got)
		}
	})
}

func TestPrinter(t *testing.T) {
	events := []Event{
		{Stage: "store", State: "start"}, {Stage: "runtime", State: "start"},
		{Stage: "store", State: "done", At: 12 * time.Millisecond, Took: 10 * time.Millisecond, Detail: "fine"},
		{Stage: "runtime", State: "fail", At: 20 * time.Millisecond, Took: 20 * time.Millisecond, Detail: "no such file"},
	}
	for _, c := range []struct {
		terminal bool
		want     []string
		not      string
	}{
		{false, []string{"12 ms  ok    store", "fine\n", "20 ms  FAIL  runtime", "no such file\n"}, "\r"},
		{true, []string{"\r\x1b[K", "...   [store runtime]", "...   [runtime]"}, "never"},
	} {
		var out strings.Builder
		show := Printer(&out, c.terminal)
		for _, e := range events {
			show(e)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("terminal %v: no %q in\n%q", c.terminal, w, out.String())
			}
		}
		if strings.Contains(out.String(), c.not) {
			t.Errorf("terminal %v: %q in\n%q", c.terminal, c.not, out.String())
		}
	}
}

func TestSettingsAreForLife(t *testing.T) {
	kept := Settings{ClusterCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16", ClusterDomain: "cluster.local", NodeName: "a", Ports: PortsFrom(7000)}
	same := Settings{}
	if err := same.merge(kept); err != nil || same.ClusterCIDR != kept.ClusterCIDR || same.Ports != kept.Ports {
		t.Fatalf("a start without flags must use what is kept: %+v, %v", same, err)
	}
	other := Settings{ServiceCIDR: "10.9.0.0/16"}
	if err := other.merge(kept); err == nil || !strings.Contains(err.Error(), "--service-cidr 10.9.0.0/16") || !strings.Contains(err.Error(), "10.2.0.0/16") {
		t.Fatalf("a changed service range must be refused by name: %v", err)
	}
	moved := Settings{Ports: Ports{API: 9000}}
	if err := moved.merge(kept); err != nil || moved.Ports.API != 9000 || moved.Ports.Agent != 7001 {
		t.Fatalf("ports may move: %+v, %v", moved.Ports, err)
	}
}
