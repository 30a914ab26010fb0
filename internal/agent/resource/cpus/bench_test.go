package cpus

import "testing"

// BenchmarkTake picks 20 of 256 CPUs of a host with eight NUMA nodes.
func BenchmarkTake(b *testing.B) {
	m := host(2, 4, 2, 8, 2, true)
	free := m.All()
	for b.Loop() {
		if _, err := take(m, free, 20, options{}); err != nil {
			b.Fatal(err)
		}
	}
}
