package kernel

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/policy/model"
)

const namespaces = 100

// crowd is a model of size pods, 100 of them local, in 100 namespaces with
// three policies each.
func crowd(size int) *model.Model {
	m := model.New()
	for i := range namespaces {
		ns := fmt.Sprintf("ns-%d", i)
		m.SetNamespace(ns, map[string]string{"ns": ns})
		for j := range 3 {
			m.SetPolicy(policy(ns, fmt.Sprintf("p%d", j), networkingv1.NetworkPolicySpec{PolicyTypes: both,
				Ingress: from(peers{{PodSelector: pods(fmt.Sprint(j))},
					{NamespaceSelector: spaces(fmt.Sprintf("ns-%d", (i+j)%namespaces))}}, tcp80),
				Egress: to(peers{{NamespaceSelector: &everybody, PodSelector: pods(fmt.Sprint(j))}})}))
		}
	}
	for i := range size {
		m.SetPod(one(i, 0))
	}
	return m
}

// one is the pod of a number; generations have different addresses.
func one(i, generation int) model.Pod {
	return model.Pod{Key: model.Key{Namespace: fmt.Sprintf("ns-%d", i%namespaces), Name: fmt.Sprint(i)},
		Labels: map[string]string{"pod": fmt.Sprint(i % 5)},
		Local:  i < 100, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(generation), byte(i >> 8), byte(i)})}}
}

// BenchmarkStart takes everything from the caches into the kernel.
func BenchmarkStart(b *testing.B) {
	for _, size := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			n, rows := newNode(b), 0
			for b.Loop() {
				m := crowd(size)
				m.Commit()
				c := m.Snapshot()
				rows = len(c.Add) + len(c.Guard)
				n.must(n.w.Replace(c))
			}
			b.ReportMetric(float64(rows), "rows")
		})
	}
}

// BenchmarkRestart is a start where tables are in force, which a copy stands in
// for while they are written again.
func BenchmarkRestart(b *testing.B) {
	for _, size := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			n := newNode(b)
			m := crowd(size)
			m.Commit()
			c := m.Snapshot()
			n.must(n.w.Replace(c))
			var kernel int64
			for b.Loop() {
				before := kernelTime(b)
				n.must(n.w.Replace(c))
				kernel += kernelTime(b) - before
			}
			b.ReportMetric(float64(kernel)/1e6/float64(b.N), "kernel-ms/op")
		})
	}
}

// BenchmarkStartLarge is a start where one policy allows every pod, so that one
// set holds them all: the kernel's part of it, in CPU time.
func BenchmarkStartLarge(b *testing.B) {
	for _, size := range []int{10000, 50000, 200000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := model.New()
			m.SetNamespace("ns-0", nil)
			m.SetPolicy(policy("ns-0", "p", networkingv1.NetworkPolicySpec{Ingress: from(peers{{NamespaceSelector: &everybody}})}))
			for i := range size {
				p := one(i, i>>16)
				p.Key.Namespace = "ns-0"
				m.SetPod(p)
			}
			m.Commit()
			c := m.Snapshot()
			var kernel int64
			for range b.N {
				n := newNode(b)
				before := kernelTime(b)
				n.must(n.w.Replace(c))
				kernel += kernelTime(b) - before
			}
			b.ReportMetric(float64(kernel)/1e6/float64(b.N), "kernel-ms/op")
			b.ReportMetric(float64(len(c.Add)), "rows")
		})
	}
}

// kernelTime is what this process has used in the kernel, in nanoseconds.
func kernelTime(b *testing.B) int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Stime.Nano()
}

// BenchmarkOnePod replaces one pod of a namespace that a policy allows, with
// clusters of growing size: the cost must not grow with them.
func BenchmarkOnePod(b *testing.B) {
	for _, size := range []int{100, 1000, 10000, 50000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			n := newNode(b)
			n.model = crowd(size)
			n.model.Commit()
			n.must(n.w.Replace(n.model.Snapshot()))
			rows, at := 0, 0
			b.ResetTimer()
			for b.Loop() {
				at++
				n.model.SetPod(one(size-1, at%2))
				c := n.model.Commit()
				rows += len(c.Add) + len(c.Del) + len(c.Guard) + len(c.Unguard)
				n.must(n.w.Apply(c))
			}
			b.ReportMetric(float64(rows)/float64(b.N), "rows/change")
		})
	}
}
