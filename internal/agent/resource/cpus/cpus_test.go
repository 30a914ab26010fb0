package cpus

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// host makes a regular machine; siblings are numbered side by side or in
// halves.
func host(sockets, nodes, caches, cores, threads int, halves bool) *topology.Host {
	m := &topology.Host{}
	total := sockets * nodes * caches * cores
	for core := range total {
		cache := core / cores
		node := cache / caches
		for thread := range threads {
			id := core*threads + thread
			if halves {
				id = core + thread*total
			}
			m.CPUs = append(m.CPUs, topology.CPU{ID: id, Core: core, Cache: cache, NUMA: node, Socket: node / nodes})
		}
	}
	slices.SortFunc(m.CPUs, func(a, b topology.CPU) int { return a.ID - b.ID })
	for i := range sockets * nodes {
		m.Nodes = append(m.Nodes, topology.Node{ID: i})
	}
	return m
}

func randomHost(rng *rand.Rand, most int) *topology.Host {
	for {
		a, b, c, d, e := 1+rng.IntN(2), 1+rng.IntN(2), 1+rng.IntN(2), 1+rng.IntN(3), 1+rng.IntN(2)
		if a*b*c*d*e <= most {
			return host(a, b, c, d, e, rng.IntN(2) == 0)
		}
	}
}

func randomSet(rng *rand.Rand, of cpuset.CPUSet) cpuset.CPUSet {
	var ids []int
	for _, id := range of.List() {
		if rng.IntN(4) > 0 {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...)
}

// subsets calls f for every subset of a size.
func subsets(ids []int, size int, f func([]int)) {
	var next func(from int, have []int)
	next = func(from int, have []int) {
		if len(have) == size {
			f(have)
			return
		}
		for i := from; i < len(ids); i++ {
			next(i+1, append(have[:len(have):len(have)], ids[i]))
		}
	}
	next(0, nil)
}

// price is what a good choice keeps low, most important first.
func price(m *topology.Host, o options, free, set cpuset.CPUSet) []int {
	count := func(unit func(topology.CPU) int) int { return units(m, set, unit) }
	nodes := count(func(c topology.CPU) int { return c.NUMA })
	sockets := count(func(c topology.CPU) int { return c.Socket })
	caches := 0
	if o.AlignCache {
		caches = count(func(c topology.CPU) int { return c.Cache })
	}
	cores := -wholeCores(m, set)
	if o.SpreadCores {
		cores = -count(func(c topology.CPU) int { return c.Core })
	}
	if o.AlignCache {
		cores = 0 // fewer caches come before whole cores
	}
	return []int{nodes, sockets, caches, cores}
}

// TestTakeIsAsGoodAsTryingEverything compares with every possible choice on
// small machines.
func TestTakeIsAsGoodAsTryingEverything(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 1500 {
		m := randomHost(rng, 12)
		free := randomSet(rng, m.All())
		o := []options{{}, {}, {SpreadCores: true}, {AlignCache: true}}[rng.IntN(4)]
		n := rng.IntN(free.Size() + 2)
		got, err := take(m, free, n, o)
		if n > free.Size() {
			if err == nil || err.Error() != fmt.Sprintf("not enough cpus available to satisfy request: requested=%d, available=%d", n,
				free.Size()) {
				t.Fatalf("round %d: took %s, %v", round, got, err)
			}
			continue
		}
		if err != nil || got.Size() != n || !got.IsSubsetOf(free) {
			t.Fatalf("round %d: %d of %s: got %s, %v", round, n, free, got, err)
		}
		have := price(m, o, free, got)
		subsets(free.List(), n, func(ids []int) {
			if other := cpuset.New(ids...); slices.Compare(price(m, o, free, other), have) < 0 {
				t.Fatalf("round %d, %+v: %d of %s: took %s at %v, %s costs %v", round, o, n, free, got, have, other,
					price(m, o, free, other))
			}
		})
		again, _ := take(m, free, n, o)
		if !again.Equals(got) {
			t.Fatalf("round %d: once %s, once %s", round, got, again)
		}
	}
}

// TestSpreadIsEven: with distribute-cpus-across-numa the nodes used differ by
// at most one unit, and no smaller set of nodes could have shared evenly.
func TestSpreadIsEven(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	spread := 0
	for round := range 3000 {
		m := randomHost(rng, 24)
		free := randomSet(rng, m.All())
		if free.IsEmpty() {
			continue
		}
		o := options{SpreadNUMA: true, FullCores: rng.IntN(2) == 0}
		unit := 1
		if o.FullCores {
			free, unit = fullCores(m, free), m.ThreadsPerCore()
		}
		n := unit * rng.IntN(free.Size()/unit+1)
		got, err := take(m, free, n, o)
		if err != nil || got.Size() != n || !got.IsSubsetOf(free) {
			t.Fatalf("round %d: %d of %s: got %s, %v", round, n, free, got, err)
		}
		even := func(k int) bool { // could k nodes share evenly?
			possible := false
			topology.Subsets(m.NodeMask(), func(nodes topology.Mask) {
				each, over, ok := n/unit/k, n/unit%k, nodes.Count() == k && n/unit >= k
				for _, id := range nodes.Nodes() {
					room := free.Intersection(m.In(topology.Of(id))).Size() / unit
					ok = ok && room >= each
					if room > each {
						over--
					}
				}
				possible = possible || ok && over <= 0
			})
			return possible
		}
		used := m.NodesOf(got).Nodes()
		for k := 1; k < len(used); k++ {
			if even(k) {
				t.Fatalf("round %d: %d of %s: %s uses %v, %d nodes would do", round, n, free, got, used, k)
			}
		}
		if len(used) > 1 && even(len(used)) {
			spread++
			least, most := n, 0
			for _, id := range used {
				share := got.Intersection(m.In(topology.Of(id))).Size()
				least, most = min(least, share), max(most, share)
			}
			if most-least > unit {
				t.Fatalf("round %d: %d of %s: %s gives %d to one node and %d to another", round, n, free, got, least, most)
			}
		}
	}
	if spread < 100 {
		t.Errorf("only %d rounds spread anything", spread)
	}
}

func container(name string, milli int64, always bool) v1.Container {
	q := v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI),
		v1.ResourceMemory: resource.MustParse("1Mi")}
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: q, Limits: q}}
	if always {
		policy := v1.ContainerRestartPolicyAlways
		c.RestartPolicy = &policy
	}
	return c
}

func pod(name string, inits []v1.Container, mains ...v1.Container) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{InitContainers: inits,
		Containers: mains}}
}

// allocate serves all containers of a pod.
func allocate(p *Static, s State, pod *v1.Pod, nodes topology.Mask) (State, error) {
	s = s.Clone()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			var err error
			if s, err = p.Allocate(s, pod, &list[i], nodes); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// TestBooksAreAlwaysInOrder runs random pods and checks that no one who runs
// at the same time shares CPUs, and that none get lost.
func TestBooksAreAlwaysInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	options := []options{{}, {FullCores: true}, {StrictReserved: true}, {AlignSocket: true}, {SpreadCores: true}, {AlignCache: true},
		{SpreadNUMA: true, FullCores: true}}
	admitted := 0
	for round := range 400 {
		m := randomHost(rng, 32)
		p := &Static{Host: m, Options: options[rng.IntN(len(options))]}
		var err error
		if p.Reserved, err = Reserve(m, "", 1+rng.Int64N(1000)); err != nil {
			t.Fatal(err)
		}
		s := p.Initial()
		live := map[string]*v1.Pod{}
		for i := range 30 {
			if len(live) > 0 && rng.IntN(3) == 0 {
				gone := fmt.Sprint("p", rng.IntN(i))
				var released bool
				s, released = p.Release(s, func(uid string) bool { return uid != gone })
				if _, was := live[gone]; released != (was && podCount(live[gone]) > 0) {
					t.Fatalf("round %d: releasing %s: %v", round, gone, released)
				}
				delete(live, gone)
			} else {
				q := randomPod(rng, fmt.Sprint("p", i))
				before := s.Clone()
				after, err := allocate(p, s, q, topology.Mask(rng.Uint64N(1<<len(m.Nodes))))
				if err == nil {
					s, live[q.Name] = after, q
					admitted++
				} else if !before.Shared.Equals(s.Shared) {
					t.Fatalf("round %d: a refusal changed the state", round)
				}
			}
			if err := p.Check(s); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			checkBooks(t, p, s, live)
		}
	}
	if admitted < 1000 {
		t.Errorf("only %d pods were admitted", admitted)
	}
}

func randomPod(rng *rand.Rand, name string) *v1.Pod {
	var inits, mains []v1.Container
	for i := range rng.IntN(3) {
		inits = append(inits, container(fmt.Sprint("i", i), 500*rng.Int64N(7)+500, rng.IntN(3) == 0))
	}
	for i := range 1 + rng.IntN(2) {
		mains = append(mains, container(fmt.Sprint("m", i), 500*rng.Int64N(7)+500, false))
	}
	return pod(name, inits, mains...)
}

func checkBooks(t *testing.T, p *Static, s State, live map[string]*v1.Pod) {
	t.Helper()
	owner := map[int]string{}
	for uid, q := range live {
		beside := cpuset.New() // CPUs of containers that run to the end
		for _, list := range [][]v1.Container{q.Spec.InitContainers, q.Spec.Containers} {
			for i := range list {
				c := &list[i]
				set := s.Owned[uid][c.Name]
				if set.Size() != Count(q, c) {
					t.Fatalf("%s/%s has %s and asked for %d", uid, c.Name, set, Count(q, c))
				}
				if !set.Intersection(beside).IsEmpty() {
					t.Fatalf("%s/%s shares %s with a neighbour", uid, c.Name, set)
				}
				if !set.Intersection(p.Reserved).IsEmpty() {
					t.Fatalf("%s/%s has reserved ones: %s", uid, c.Name, set)
				}
				if p.Options.FullCores && fullCores(p.Host, set).Size() != set.Size() {
					t.Fatalf("%s/%s has half a core: %s", uid, c.Name, set)
				}
				if sidecar(c) || !strings.HasPrefix(c.Name, "i") {
					beside = beside.Union(set)
				}
				for _, id := range set.List() {
					if other, taken := owner[id]; taken && other != uid {
						t.Fatalf("processor %d is %s's and %s's", id, other, uid)
					}
					owner[id] = uid
				}
			}
		}
		if all := len(keysOf(owner, uid)); all > podCount(q) {
			t.Fatalf("%s has %d processors and needs %d at one time", uid, all, podCount(q))
		}
	}
}

func keysOf(owner map[int]string, uid string) (out []int) {
	for id, o := range owner {
		if o == uid {
			out = append(out, id)
		}
	}
	return out
}

// TestHintsCanBeKept: a container that is given from hinted nodes gets all its
// CPUs there, and nodes that are not hinted do not have them.
func TestHintsCanBeKept(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	kept := 0
	for round := range 2000 {
		m := randomHost(rng, 24)
		p := &Static{Host: m, Reserved: cpuset.New(0), Options: options{FullCores: rng.IntN(3) == 0}}
		s := p.Initial()
		if first, err := allocate(p, s, randomPod(rng, "first"), 0); err == nil {
			s = first
		}
		q := pod("second", nil, container("c", 1000*(1+rng.Int64N(4)), false))
		hinted := map[topology.Mask]bool{}
		for _, h := range p.Hints(s, q, &q.Spec.Containers[0])["cpu"] {
			hinted[h.Mask] = true
		}
		topology.Subsets(m.NodeMask(), func(nodes topology.Mask) {
			after, err := allocate(p, s, q, nodes)
			inside := err == nil && m.NodesOf(after.Owned["second"]["c"])&^nodes == 0
			if n := Count(q, &q.Spec.Containers[0]); p.Options.FullCores && n%m.ThreadsPerCore() != 0 {
				return // refused whatever the hints
			}
			if inside != hinted[nodes] {
				t.Fatalf("round %d: nodes %s: hinted %v, got %v %v", round, nodes, hinted[nodes], after.Owned["second"], err)
			}
			if inside {
				kept++
			}
		})
	}
	if kept < 1000 {
		t.Errorf("only %d hints were kept", kept)
	}
}

func TestStateFromDiskIsChecked(t *testing.T) {
	m := host(1, 1, 1, 4, 1, false)
	p := &Static{Host: m, Reserved: cpuset.New(0)}
	owned := func(set string) map[string]map[string]cpuset.CPUSet {
		parsed, err := cpuset.Parse(set)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]map[string]cpuset.CPUSet{"p": {"c": parsed}}
	}
	for _, c := range []struct {
		shared, own string
		strict      bool
		want        string
	}{
		{"0-2", "3", false, ""}, {"1-2", "3", true, ""},
		{"1-2", "3", false, "not all reserved cpus"}, {"0-2", "3", true, "strictly reserved"},
		{"0-3", "3", false, "overlaps"}, {"0-1", "3", false, "doesn't match"},
	} {
		p.Options.StrictReserved = c.strict
		shared, _ := cpuset.Parse(c.shared)
		err := p.Check(State{Shared: shared, Owned: owned(c.own)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestWhoOwnsCPUs(t *testing.T) {
	whole, half := container("c", 2000, false), container("c", 1500, false)
	burstable := container("c", 2000, false)
	burstable.Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3"), v1.ResourceMemory: resource.MustParse("1Mi")}
	static := container("c", 2000, false)
	static.Resources.Requests = nil
	for _, c := range []struct {
		c    v1.Container
		want int
	}{{whole, 2}, {half, 0}, {burstable, 0}, {static, 2}} {
		p := pod("p", nil, c.c)
		if got := Count(p, &p.Spec.Containers[0]); got != c.want {
			t.Errorf("%v owns %d, want %d", c.c.Resources, got, c.want)
		}
	}
	together := pod("p", nil, whole)
	together.Spec.Resources = &whole.Resources
	if got := Count(together, &together.Spec.Containers[0]); got != 0 {
		t.Errorf("a container of a pod that asks as a whole owns %d", got)
	}
}

func TestReservation(t *testing.T) {
	m := host(2, 1, 1, 2, 2, false)
	for _, c := range []struct {
		named string
		milli int64
		want  string
	}{{"", 500, "0"}, {"", 1500, "0-1"}, {"6-7", 500, "6-7"}, {"", 0, "needs a cpu reservation"},
		{"9", 0, "only processors 0-7 are online"}, {"", 99000, "not enough"}} {
		set, err := Reserve(m, c.named, c.milli)
		if got := fmt.Sprint(set, err); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestOptions(t *testing.T) {
	for text, want := range map[string]string{
		"full-pcpus-only": "", "full-pcpus-only,distribute-cpus-across-cores": "can not be used at the same time",
		"prefer-align-cpus-by-uncorecache,distribute-cpus-across-numa": "can not be used at the same time", "speed": "is not known",
	} {
		in := map[string]string{}
		for _, name := range strings.Split(text, ",") {
			in[name] = "true"
		}
		_, err := ParseOptions(in)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
