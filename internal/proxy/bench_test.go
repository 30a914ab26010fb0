package proxy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/netnstest"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/nft"
)

func fill(m *model.Model, services, endpoints int) {
	for i := range services {
		name := fmt.Sprint("s", i)
		s := svc(name, fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255), 80, nil)
		s.Spec.Ports = s.Spec.Ports[:1]
		m.SetService(s)
		ep := slice(name, ips(i, endpoints)...)
		for e := range ep.Endpoints {
			ep.Endpoints[e].NodeName = ptr.To("elsewhere")
		}
		m.SetSlice(ep)
	}
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
	l := nft.Layout{Family: model.V4, MarkBit: 1 << 14}
	return &writer{kernel: k, layout: l, table: "berth-bench", model: model.New(model.Config{Family: model.V4, NodeName: nodeName})}, k, do
}

// processorTime is what this process has used, outside and in the kernel: a
// busy machine changes it less than what the clock says.
func processorTime(b *testing.B) (user, sys time.Duration) {
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
				u, s := processorTime(b)
				b.StartTimer()
				do(func() error { _, err := w.sync(); return err })
				b.StopTimer()
				u2, s2 := processorTime(b)
				user, sys = user+u2-u, sys+s2-s
				b.StartTimer()
			}
			b.ReportMetric(user.Seconds()*1e3/float64(b.N), "user-ms/op")
			b.ReportMetric(sys.Seconds()*1e3/float64(b.N), "kernel-ms/op")
		})
	}
}

// BenchmarkOneChange scales one Service up or down by one endpoint, which
// changes its class too.
func BenchmarkOneChange(b *testing.B) {
	for _, services := range []int{1000, 5000, 45000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			w, k, do := benchWriter(b)
			fill(w.model, services, 2)
			step := func(i int) {
				w.model.SetSlice(slice("s7", ips(7, 2+i%2)...))
				if _, err := w.sync(); err != nil {
					b.Fatal(err)
				}
			}
			do(func() error { _, err := w.sync(); step(1); step(0); return err })
			b.ReportAllocs()
			b.ResetTimer()
			before := k.Messages
			for i := range b.N {
				step(i + 1)
			}
			b.ReportMetric(float64(k.Messages-before)/float64(b.N), "messages/op")
		})
	}
}
