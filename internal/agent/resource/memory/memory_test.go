package memory

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

const huge v1.ResourceName = "hugepages-2Mi"

func host(nodes int, memory, pages uint64) *topology.Host {
	m := &topology.Host{}
	for i := range nodes {
		m.Nodes = append(m.Nodes, topology.Node{ID: i, Memory: memory, HugePages: map[int64]uint64{2 << 20: pages}})
	}
	return m
}

func container(name string, memory, pages int64, always bool) v1.Container {
	l := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	if pages > 0 {
		l[huge] = *resource.NewQuantity(pages, resource.BinarySI)
	}
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: l, Limits: l}}
	if always {
		policy := v1.ContainerRestartPolicyAlways
		c.RestartPolicy = &policy
	}
	return c
}

func allocate(m topology.Merger, s State, pod *v1.Pod, chosen topology.Hint) (State, error) {
	s = s.Clone()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := Allocate(m, s, pod, &list[i], chosen); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

func randomPod(rng *rand.Rand, name string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	size := func() (int64, int64) { return 1 + rng.Int64N(120), rng.Int64N(3) * rng.Int64N(20) }
	for i := range rng.IntN(3) {
		a, b := size()
		p.Spec.InitContainers = append(p.Spec.InitContainers, container(fmt.Sprint("i", i), a, b, rng.IntN(3) == 0))
	}
	for i := range 1 + rng.IntN(2) {
		a, b := size()
		p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprint("m", i), a, b, false))
	}
	return p
}

// TestBooksAreAlwaysInOrder runs random pods. The slow version of the books is
// a sum over all blocks: no group gives out more than it has, groups in use do
// not mix, and when all are gone nothing is booked.
func TestBooksAreAlwaysInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	admitted, wide := 0, 0
	for round := range 500 {
		m := host(1+rng.IntN(4), 200, 60)
		reserved := Reservation{0: {v1.ResourceMemory: 20}}
		initial := Initial(m, reserved)
		merger := topology.Merger{Host: m, Policy: topology.None}
		s := initial.Clone()
		live := map[string]bool{}
		for i := range 25 {
			if rng.IntN(3) == 0 && i > 0 {
				gone := fmt.Sprint("p", rng.IntN(i))
				if released := Release(s, func(uid string) bool { return uid != gone }); released != live[gone] {
					t.Fatalf("round %d: releasing %s: %v", round, gone, released)
				}
				delete(live, gone)
			} else {
				p := randomPod(rng, fmt.Sprint("p", i))
				chosen := topology.Hint{Mask: topology.Mask(rng.Uint64N(1 << len(m.Nodes)))}
				before := s.Clone()
				if after, err := allocate(merger, s, p, chosen); err == nil {
					s, live[p.Name] = after, true
					admitted++
				} else if fmt.Sprint(before.Owned) != fmt.Sprint(s.Owned) {
					t.Fatalf("round %d: a refusal changed the state", round)
				}
			}
			if err := Check(s, initial); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			wide += groups(t, s)
		}
		Release(s, func(string) bool { return false })
		for id, n := range s.Nodes {
			if n.NumberOfAssignments != 0 || len(n.Cells) != 1 {
				t.Fatalf("round %d: node %d is left with %+v", round, id, n)
			}
		}
		if err := Check(s, initial); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if admitted < 1000 || wide < 100 {
		t.Errorf("%d pods were admitted, %d groups were wide", admitted, wide)
	}
}

// groups checks the books against the blocks, and counts groups of several
// nodes.
func groups(t *testing.T, s State) (wide int) {
	t.Helper()
	given := map[topology.Mask]map[v1.ResourceName]uint64{}
	for _, containers := range s.Owned {
		for _, blocks := range containers {
			for _, b := range blocks {
				g := topology.Of(b.NUMAAffinity...)
				if given[g] == nil {
					given[g] = map[v1.ResourceName]uint64{}
				}
				given[g][b.Type] += b.Size
			}
		}
	}
	used := topology.Mask(0)
	for g, kinds := range given {
		if g&used != 0 {
			t.Fatalf("node groups overlap: %v", given)
		}
		used |= g
		if g.Count() > 1 {
			wide++
		}
		for kind, size := range kinds {
			var room uint64
			for _, id := range g.Nodes() {
				room += s.Nodes[id].MemoryMap[kind].Allocatable
			}
			if size > room {
				t.Fatalf("nodes %s gave %d of %s and have %d", g, size, kind, room)
			}
		}
	}
	return wide
}

// TestHintsCanBeKept: a container is served from exactly the hinted groups.
func TestHintsCanBeKept(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	kept := 0
	for round := range 1000 {
		m := host(1+rng.IntN(4), 200, 60)
		merger := topology.Merger{Host: m, Policy: topology.None}
		s := Initial(m, Reservation{})
		for i := range rng.IntN(4) {
			if after, err := allocate(merger, s, randomPod(rng, fmt.Sprint("p", i)), topology.Hint{}); err == nil {
				s = after
			}
		}
		p := randomPod(rng, "next")
		p.Spec.InitContainers = nil
		c := &p.Spec.Containers[0]
		hinted := map[topology.Mask]bool{}
		for _, h := range Hints(s, p, c)[string(v1.ResourceMemory)] {
			hinted[h.Mask] = true
		}
		topology.Subsets(m.NodeMask(), func(nodes topology.Mask) {
			after := s.Clone()
			err := Allocate(merger, after, p, c, topology.Hint{Mask: nodes})
			if there := err == nil && after.NodesOf("next", c.Name) == nodes; there != hinted[nodes] {
				t.Fatalf("round %d: nodes %s: hinted %v, got %v, %v", round, nodes, hinted[nodes], after.Owned["next"], err)
			} else if there {
				kept++
			}
		})
	}
	if kept < 1000 {
		t.Errorf("only %d hints were kept", kept)
	}
}

func TestReservationAddsUp(t *testing.T) {
	m := host(2, 1000, 0)
	whole := v1.ResourceList{v1.ResourceMemory: resource.MustParse("300")}
	for _, c := range []struct {
		r    Reservation
		want string
	}{
		{Reservation{0: {"memory": 100}, 1: {"memory": 200}}, ""},
		{Reservation{0: {"memory": 100}}, `the total amount "100" of type "memory" is not equal to the value "300"`},
		{Reservation{2: {"memory": 300}}, "no NUMA node 2"},
		{Reservation{0: {"memory": 300, huge: 2}}, `of type "hugepages-2Mi" is not equal`},
		{Reservation{0: {"memory": 300, "cpu": 2}}, "is not memory"},
	} {
		err := CheckReservation(m, c.r, whole)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.r, err)
		}
	}
}
