package api_test

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// BenchmarkStart reports milliseconds to a writable etcd and to a server that
// answers, and the resident memory of a fresh process then (run it with
// -benchtime 1x: later rounds share the process with the leavings of earlier
// ones).
func BenchmarkStart(b *testing.B) {
	var toEtcd, toReady, cpu float64
	for range b.N {
		before := cpuTime(b)
		env := apitest.StartEnv(b)
		cpu += float64((cpuTime(b) - before).Microseconds()) / 1000
		toEtcd += float64(env.ToEtcd.Microseconds()) / 1000
		toReady += float64(env.ToReady.Microseconds()) / 1000
		b.StopTimer()
		rss := residentMiB(b)
		runtime.GC()
		debug.FreeOSMemory()
		b.ReportMetric(float64(rss), "MiB-RSS")
		b.ReportMetric(float64(residentMiB(b)), "MiB-RSS-after-gc")
		env.Stop()
		b.StartTimer()
	}
	b.ReportMetric(toEtcd/float64(b.N), "ms-to-etcd")
	b.ReportMetric(toReady/float64(b.N), "ms-to-ready")
	b.ReportMetric(cpu/float64(b.N), "ms-CPU")
}

// BenchmarkIdle reports the CPU time, in percent of one core, that a
// server no one talks to takes over ten seconds.
func BenchmarkIdle(b *testing.B) {
	const window = 10 * time.Second
	for range b.N {
		b.StopTimer()
		env := apitest.StartEnv(b)
		time.Sleep(2 * time.Second) // let the start settle
		before := cpuTime(b)
		b.StartTimer()
		time.Sleep(window)
		b.StopTimer()
		b.ReportMetric(100*(cpuTime(b)-before).Seconds()/window.Seconds(), "%-of-core")
		env.Stop()
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
