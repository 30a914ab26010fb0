package proxy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

func fill(m *model.Model, services, endpoints int) {
	for i := range services {
		s := benchService(i)
		m.SetService(s)
		ep := slice(s.Name, ips(i, endpoints)...)
		for e := range ep.Endpoints {
			ep.Endpoints[e].NodeName = ptr.To("elsewhere")
		}
		m.SetSlice(ep)
	}
}

func benchService(i int) *corev1.Service {
	s := svc(fmt.Sprint("s", i), fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255), 80, nil)
	s.Spec.Ports = s.Spec.Ports[:1]
	return s
}

func ips(service, n int) []string {
	var out []string
	for e := range n {
		k := service*64 + e
		out = append(out, netip.AddrFrom4([4]byte{11 + byte(k>>24), byte(k >> 16), byte(k >> 8), byte(k)}).String())
	}
	return out
}

func benchWriter(b *testing.B) (*writer, *nft.Netlink, func(func() error)) {
	t := &testing.T{}
	ns := netnstest.New(t)
	var k *nft.Netlink
	do := func(f func() error) {
		b.Helper()
		if err := netnstest.In(ns, f); err != nil {
			b.Fatal(err)
		}
	}
	do(func() (err error) { k, err = nft.Open(); return err })
	b.Cleanup(func() { k.Close(); ns.Close() })
	l := rules.Layout{Family: model.V4, MarkBit: 1 << 14}
	return &writer{kernel: k, layout: l, table: "berth-bench", model: model.New(model.Config{Family: model.V4, NodeName: nodeName})}, k, do
}

// cpuTime is what this process has used, outside and in the kernel: a
// busy machine changes it less than what the clock says.
func cpuTime(b *testing.B) (user, sys time.Duration) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
}

// BenchmarkColdSync is from full caches to the kernel being done.
func BenchmarkColdSync(b *testing.B) {
	for _, size := range [][2]int{{1000, 10}, {5000, 10}, {5000, 50}, {45000, 1}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			b.ReportAllocs()
			var user, sys time.Duration
			for range b.N {
				b.StopTimer()
				w, _, do := benchWriter(b)
				fill(w.model, size[0], size[1])
				runtime.GC()
				u, s := cpuTime(b)
				b.StartTimer()
				do(func() error { _, err := w.sync(); return err })
				b.StopTimer()
				u2, s2 := cpuTime(b)
				user, sys = user+u2-u, sys+s2-s
				b.StartTimer()
			}
			b.ReportMetric(user.Seconds()*1e3/float64(b.N), "user-ms/op")
			b.ReportMetric(sys.Seconds()*1e3/float64(b.N), "kernel-ms/op")
		})
	}
}

// BenchmarkAdopt is a restart beside an unchanged table, from full caches to
// being sure that nothing is to be written.
func BenchmarkAdopt(b *testing.B) {
	for _, size := range [][2]int{{1000, 10}, {10000, 10}, {5000, 50}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			b.ReportAllocs()
			w, k, do := benchWriter(b)
			fill(w.model, size[0], size[1])
			do(func() error { _, err := w.sync(); return err })
			for range b.N {
				b.StopTimer()
				again := &writer{kernel: k, layout: w.layout, table: w.table,
					model: model.New(model.Config{Family: model.V4, NodeName: nodeName})}
				fill(again.model, size[0], size[1])
				runtime.GC()
				b.StartTimer()
				do(func() error {
					res, err := again.sync()
					if err == nil && (!res.adopted || res.added+res.deleted > 0) {
						err = fmt.Errorf("adopted %t, %d rows added, %d deleted", res.adopted, res.added, res.deleted)
					}
					return err
				})
			}
		})
	}
}

// BenchmarkOneChange scales one Service up or down by one endpoint, which
// changes its class too.
func BenchmarkOneChange(b *testing.B) { oneChange(b, 2, nil) }

// BenchmarkOneStickyChange is the same where all Services have affinity; the
// endpoint that goes is the first, so that the last one takes its place.
func BenchmarkOneStickyChange(b *testing.B) {
	for _, endpoints := range []int{2, 50} {
		b.Run(fmt.Sprint(endpoints), func(b *testing.B) {
			oneChange(b, endpoints, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
		})
	}
}

func oneChange(b *testing.B, endpoints int, edit func(*corev1.Service)) {
	for _, services := range []int{1000, 5000, 45000} {
		if services*endpoints > 250000 {
			continue
		}
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			w, k, do := benchWriter(b)
			fill(w.model, services, endpoints)
			if edit != nil {
				for i := range services {
					s := benchService(i)
					edit(s)
					w.model.SetService(s)
				}
			}
			step := func(i int) {
				w.model.SetSlice(slice("s7", ips(7, endpoints+1)[i%2:]...))
				if _, err := w.sync(); err != nil {
					b.Fatal(err)
				}
			}
			began := time.Now()
			do(func() error { _, err := w.sync(); return err })
			cold := time.Since(began)
			do(func() error { step(1); step(0); return nil })
			b.ReportAllocs()
			b.ResetTimer()
			before := k.Messages
			for i := range b.N {
				step(i + 1)
			}
			b.ReportMetric(float64(k.Messages-before)/float64(b.N), "messages/op")
			b.ReportMetric(float64(cold.Milliseconds()), "cold-ms")
		})
	}
}
