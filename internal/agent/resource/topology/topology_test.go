package topology

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// TestHosts reads the trees of testdata, which lay hosts out as sysfs
// does, and compares with what is noted in them.
func TestHosts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no machines", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			noted := -1
			for i, f := range archive.Files {
				if f.Name == "golden" {
					noted = i
					continue
				}
				path := filepath.Join(root, f.Name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, f.Data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m, err := Read(root)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%sthreads per core %d\n", m.describe(), m.ThreadsPerCore())
			if noted < 0 {
				archive.Files = append(archive.Files, txtar.File{Name: "golden"})
				noted = len(archive.Files) - 1
			}
			archive.Files[noted].Data = []byte(got)
			golden.Check(t, file, string(txtar.Format(archive)))
		})
	}
}

func TestReadSaysWhatIsMissing(t *testing.T) {
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "sys/devices/system/cpu/online") {
		t.Error(err)
	}
}

// nodes makes a host of n NUMA nodes with a CPU each.
func nodes(n int) *Host {
	m := &Host{}
	for i := range n {
		m.CPUs = append(m.CPUs, CPU{ID: i, Core: i, Cache: i, Socket: i / 2, NUMA: i})
		d := make([]int, n)
		for j := range d {
			d[j] = 10 + 10*min(1, max(i-j, j-i)) + (i+j)%3
		}
		m.Nodes = append(m.Nodes, Node{ID: i, Distances: d})
	}
	return m
}

// slow is the choice as the policies describe it: every combination is
// written down, those that mean the same are merged, and the list is judged as
// a whole.
func slow(m Merger, wishes []Wishes) (Hint, bool) {
	if m.Policy == None {
		return Hint{}, true
	}
	all := m.Host.NodeMask()
	combinations := [][]Hint{{}}
	demand := 0
	for _, w := range wishes {
		resources := [][]Hint{}
		for _, hints := range w {
			resources = append(resources, hints)
		}
		if len(w) == 0 {
			resources = append(resources, nil)
		}
		for _, hints := range resources {
			if hints == nil {
				hints = []Hint{{Preferred: true}}
			} else if len(hints) == 0 {
				hints = []Hint{{}}
			}
			if m.Policy == SingleNUMA {
				var single []Hint
				for _, h := range hints {
					if h.Preferred && h.Mask.Count() <= 1 {
						single = append(single, h)
					}
				}
				hints = single
			}
			least := 0
			for _, h := range hints {
				if h.Mask != 0 && (least == 0 || h.Mask.Count() < least) {
					least = h.Mask.Count()
				}
			}
			demand = max(demand, least)
			var longer [][]Hint
			for _, c := range combinations {
				for _, h := range hints {
					longer = append(longer, append(append([]Hint(nil), c...), h))
				}
			}
			combinations = longer
		}
	}
	best := Hint{Mask: all}
	bestRank := ""
	for _, c := range combinations {
		meet, preferred, distinct := all, true, map[Mask]bool{}
		for _, h := range c {
			preferred = preferred && h.Preferred
			if h.Mask != 0 {
				meet &= h.Mask
				distinct[h.Mask] = true
			}
		}
		preferred = preferred && len(distinct) < 2
		if meet == 0 {
			continue
		}
		if rank := m.rank(meet, preferred, demand); bestRank == "" || rank < bestRank {
			best, bestRank = Hint{meet, preferred}, rank
		}
	}
	if m.Policy == SingleNUMA && best.Mask == all {
		best.Mask = 0
	}
	return best, best.Preferred || m.Policy == BestEffort
}

// rank is an order as text: preferred first, narrow first. What is not
// preferred is best as wide as the most demanding resource is, then narrower
// ones from wide to narrow, then wider ones from narrow to wide.
func (m Merger) rank(mask Mask, preferred bool, demand int) string {
	n := mask.Count()
	class, width := 0, n
	switch {
	case preferred:
	case n == demand:
		class = 1
	case n < demand:
		class, width = 2, 64-n
	default:
		class = 3
	}
	distance := 0.0
	if m.Options.PreferClosest {
		distance = m.Host.Distance(mask)
	}
	return fmt.Sprintf("%d %02d %012.6f %020d", class, width, distance, uint64(mask))
}

func TestMergeIsWhatThePoliciesSay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	policies := []Policy{None, BestEffort, Restricted, SingleNUMA}
	for round := range 20000 {
		host := nodes(1 + rng.IntN(5))
		m := Merger{Host: host, Policy: policies[rng.IntN(4)], Options: options{PreferClosest: rng.IntN(2) == 0}}
		var wishes []Wishes
		for range rng.IntN(4) {
			w := Wishes{}
			for r := range rng.IntN(3) {
				var hints []Hint
				switch rng.IntN(6) {
				case 0:
				case 1:
					hints = []Hint{}
				default:
					for range 1 + rng.IntN(4) {
						hints = append(hints, Hint{Mask: Mask(rng.Uint64N(1 << len(host.Nodes))), Preferred: rng.IntN(2) == 0})
					}
				}
				w[fmt.Sprint("r", r)] = hints
			}
			wishes = append(wishes, w)
		}
		got, ok := m.Merge(wishes)
		want, wantOK := slow(m, wishes)
		if got != want || ok != wantOK {
			t.Fatalf("round %d: %s %v of %v\n got %v %v\nwant %v %v", round, m.Policy, m.Options, wishes, got, ok, want, wantOK)
		}
	}
}

func TestOptionsOfPolicies(t *testing.T) {
	for text, want := range map[string]string{
		"prefer-closest-numa-nodes=true": "", "max-allowable-numa-nodes=12": "",
		"prefer-closest-numa-nodes=often": "invalid syntax", "max-allowable-numa-nodes=4": "must be 8 to 16", "speed=1": "is not known",
	} {
		key, val, _ := strings.Cut(text, "=")
		_, err := ParseOptions(map[string]string{key: val})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestNodesThatCannotBe: a device plugin may claim any node.
func TestNodesThatCannotBe(t *testing.T) {
	if got := Of(-1, 64, 1<<40, 0, 63); got != 1|1<<63 {
		t.Errorf("got %v", got)
	}
}
