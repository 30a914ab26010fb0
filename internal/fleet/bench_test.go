package fleet

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/memory"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// BenchmarkRenewal reports the CPU time of one lease renewal, of both
// sides together: the hollow node's, the API server's with its store, and the
// node health controller's that watches. It is CPU time, so that a busy
// machine disturbs it little.
func BenchmarkRenewal(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(memory.GCPercent))
	env := apitest.StartEnv(b)
	client := kubernetes.NewForConfigOrDie(env.Config)
	ctx, cancel := context.WithCancel(context.Background())
	shared := informers.NewSharedInformerFactory(client, 0)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
		shared.Shutdown()
	}()
	wg.Go(func() {
		_ = health.Run(ctx, health.Config{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler),
			Settings: health.Defaults()})
	})
	cfg := testConfig(env.Config)
	cfg.Nodes, cfg.Pods, cfg.LeaseSeconds = 512, 0, 3600
	f, err := newFleet(cfg)
	if err != nil {
		b.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.run(running) }()
	// The first beat of each node is the fleet's, the others are an hour away.
	for done := 0; done < cfg.Nodes; time.Sleep(10 * time.Millisecond) {
		f.stats.mu.Lock()
		done = f.stats.renewals
		f.stats.mu.Unlock()
	}
	next := atomic.Int64{}
	before := cpuTime(b)
	b.ResetTimer()
	var beating sync.WaitGroup
	for w := range leaseWorkers {
		beating.Go(func() {
			for i := w; next.Add(1) <= int64(b.N); i += leaseWorkers {
				if _, ok := f.nodes[i%cfg.Nodes/leaseWorkers*leaseWorkers+w].agent.RenewLease(ctx); !ok {
					b.Error("a node lost its Node")
				}
			}
		})
	}
	beating.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/renewal")
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
