package cpus

import "testing"

// BenchmarkTake picks 20 of 256 processors of a machine with eight NUMA nodes.
func BenchmarkTake(b *testing.B) {
	m := machine(2, 4, 2, 8, 2, true)
	free := m.All()
	for b.Loop() {
		if _, err := Take(m, free, 20, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
