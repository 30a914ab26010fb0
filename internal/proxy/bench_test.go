package proxy

import (
	"fmt"
	"net/netip"
	"testing"

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
		m.SetSlice(slice(name, ips(i, endpoints)...))
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

// BenchmarkColdSync is from full caches to the kernel being done.
func BenchmarkColdSync(b *testing.B) {
	for _, size := range [][2]int{{1000, 10}, {5000, 10}, {5000, 50}, {45000, 1}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				b.StopTimer()
				w, _, do := benchWriter(b)
				fill(w.model, size[0], size[1])
				b.StartTimer()
				do(func() error { _, err := w.sync(); return err })
			}
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
