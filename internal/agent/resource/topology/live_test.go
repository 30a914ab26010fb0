//go:build vm

package topology

import "testing"

// TestTwoNodes reads the test machine (docs/vm.md): four CPUs and 3 GiB
// on two NUMA nodes.
func TestTwoNodes(t *testing.T) {
	m, err := Read("/")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Nodes) != 2 || m.All().Size() != 4 {
		t.Fatalf("found %s", m.describe())
	}
	for i, want := range []string{"0-1", "2-3"} {
		n := m.Nodes[i]
		if got := m.In(Of(n.ID)).String(); n.ID != i || got != want {
			t.Errorf("node %d has processors %s, want %s", n.ID, got, want)
		}
	}
	if near, far := m.Distance(Of(0)), m.Distance(Of(0, 1)); near >= far {
		t.Errorf("one node is %v apart, two are %v", near, far)
	}
	t.Log(m.describe())
}
