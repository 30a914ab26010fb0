package sim

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// anything is a scenario of random faults on 30 nodes and 60 pods.
func anything(seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 7))
	actions := []string{
		"kill: {zone: %s, percent: %d, for: 6m, stagger: 40s}", "cut: {zone: %s, percent: %d, for: 3m}",
		"pause: {zone: %s, percent: %d, for: 2m}",
		"flap: {zone: %s, percent: %d, down: 1m, up: 30s, for: 6m}", "notReady: {zone: %s, percent: %d, for: 4m}",
		"slow: {zone: %s, percent: %d, every: 45s, for: 5m}",
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed: %d\n%s", seed, plain)
	for range 4 {
		fmt.Fprintf(&b, "- at: %ds\n  "+actions[r.IntN(len(actions))]+"\n", 30+r.IntN(600), string("abc"[r.IntN(3)]), 1+r.IntN(100))
	}
	return b.String()
}

// TestWhateverHappens plays random faults. At no moment is a node or a pod
// counted twice or lost; no zone is tainted faster than its rate allows; and the
// sums of the run are those of its samples.
func TestWhateverHappens(t *testing.T) {
	most := defaultRate(t)
	for seed := range uint64(60) {
		text := anything(seed + 1)
		r := play(t, text)
		evicted, last := 0, time.Duration(-1)
		for _, s := range r.Series {
			n, p := s.Nodes, s.Pods
			if sum := n.Ready + n.Cordoned + n.Unnoticed + n.NotReady + n.Unknown + n.Evicting; sum != 30 {
				t.Fatalf("at %s %d nodes are counted: %+v\n%s", s.At.D(), sum, n, text)
			}
			// The Deployment keeps 60 pods besides those that terminate; a pod
			// that was lost is missed until one serves in its place.
			if sum := p.Serving + p.Dead + p.NotReady + p.Pending; sum > 60 || sum+p.Lost < 60 || p.Serving+p.Lost < 60 {
				t.Fatalf("at %s: %+v\n%s", s.At.D(), p, text)
			}
			if s.Evictions < evicted || s.At.D() <= last {
				t.Fatalf("at %s: %d evictions after %d at %s\n%s", s.At.D(), s.Evictions, evicted, last, text)
			}
			evicted, last = s.Evictions, s.At.D()
			for _, z := range s.Zones {
				if z.Rate > most || z.State == "PartialDisruption" && z.Rate != 0 {
					t.Fatalf("at %s zone %s in %s may taint %g nodes a second\n%s", s.At.D(), z.Zone, z.State, z.Rate, text)
				}
			}
		}
		if evicted > r.Summary.Evictions || r.Summary.Needless > r.Summary.Evictions {
			t.Errorf("%d evictions in the samples, %d of %d needless\n%s", evicted, r.Summary.Needless, r.Summary.Evictions, text)
		}
		for _, e := range r.Timeline {
			if e.What != bursts["tainted"].verb {
				continue
			}
			times := max(e.Count, e.Times)
			if allowed := 1 + int(math.Floor(most*(e.Until-e.At).D().Seconds()+0.01)); e.Until > 0 && times > allowed {
				t.Errorf("zone %s: %d nodes tainted from %s to %s, the rate allows %d\n%s", e.Zone, times, e.At.D(), e.Until.D(), allowed,
					text)
			}
		}
	}
}

// defaultRate is the fastest that a zone may be tainted without flags.
func defaultRate(t *testing.T) float64 {
	t.Helper()
	s, err := (&Scenario{}).settings()
	if err != nil {
		t.Fatal(err)
	}
	return s.health.EvictionRate
}

// TestReportsOfASeed: every report of one seed is the same, byte by byte, and
// another seed's is not.
func TestReportsOfASeed(t *testing.T) {
	for seed := range uint64(8) {
		one, two := play(t, anything(seed+1)), play(t, anything(seed+1))
		if a, b := asJSON(t, one), asJSON(t, two); a != b {
			t.Errorf("seed %d: two runs differ in JSON", seed+1)
		}
		if !bytes.Equal(SVG([]*Result{one}), SVG([]*Result{two})) {
			t.Errorf("seed %d: two plots differ", seed+1)
		}
		other := play(t, strings.Replace(anything(seed+1), fmt.Sprintf("seed: %d", seed+1), "seed: 1000", 1))
		if bytes.Equal(SVG([]*Result{one}), SVG([]*Result{other})) {
			t.Errorf("seed %d and seed 1000 have one plot: nothing is random", seed+1)
		}
	}
}

// tiny is a scenario whose reports are short enough to read.
const tiny = `
name: a rack <fails> & returns
duration: 12m
cluster:
  cpu: '2'
  zones: [{name: a, nodes: 4, racks: 2}, {name: b, nodes: 4}]
workloads:
- {name: web, kind: Deployment, replicas: 12, tolerationSeconds: 30}
- {name: big, kind: Deployment, replicas: 2, cpu: '3'}
events:
- {at: 2m, kill: {rack: a-r1, for: 5m}}
`

// TestReportFormats: the text, the numbers, the JSON and the plot of two runs
// beside each other, whole.
func TestReportFormats(t *testing.T) {
	sc, err := Parse([]byte(tiny))
	if err != nil {
		t.Fatal(err)
	}
	quick, err := sc.With("node-monitor-grace-period=20s")
	if err != nil {
		t.Fatal(err)
	}
	runs := runAll(t, sc, quick)
	var text bytes.Buffer
	if err := Text(&text, runs); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", "report.txt"), text.String())
	for _, r := range runs { // a picture of one sample a minute is large enough
		r.Series = slices.DeleteFunc(r.Series, func(s sample) bool { return s.At.D()%time.Minute != 0 })
	}
	golden.Check(t, filepath.Join("testdata", "report.svg"), string(SVG(runs)))
	for _, r := range runs {
		if r.Series = slices.DeleteFunc(r.Series, func(s sample) bool { return s.At.D()%(4*time.Minute) != 0 }); len(r.Series) != 4 {
			t.Fatalf("%d samples are left of one each 4 minutes", len(r.Series))
		}
	}
	golden.Check(t, filepath.Join("testdata", "report.json"), strings.ReplaceAll(asJSON(t, runs[0]), `},{`, "},\n{")+"\n")
	if !strings.HasSuffix(text.String(), SummaryText(runs)) {
		t.Error("the text does not end with the numbers")
	}
}

// TestSpread is compared with the plain way: sort, then look.
func TestSpread(t *testing.T) {
	if s := spread(nil); s != (spreadRule{}) {
		t.Errorf("of nothing: %+v", s)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		list := make([]time.Duration, 1+r.IntN(300))
		for i := range list {
			list[i] = time.Duration(r.IntN(1e6)) * time.Millisecond
		}
		given := slices.Clone(list)
		s := spread(list)
		if !slices.Equal(list, given) {
			t.Fatal("the list was changed")
		}
		below := func(d duration) (n int) {
			for _, x := range list {
				if x <= d.D() {
					n++
				}
			}
			return n
		}
		if s.Count != len(list) || s.Max.D() != slices.Max(list) || s.P50 > s.P99 || s.P99 > s.Max || 2*below(s.P50) < len(list) ||
			100*below(s.P99) < 99*len(list) {
			t.Fatalf("%+v of %v", s, list)
		}
	}
}

// TestAxis: the top is a round number above every value, in few even steps.
func TestAxis(t *testing.T) {
	for _, high := range []float64{0, 0.3, 1, 7, 10, 11, 99, 100, 640, 12345, 3e5} {
		top, step := axis(high)
		if n := top / step; top < high || n < 1 || n > 6 || math.Abs(n-math.Round(n)) > 1e-9 {
			t.Errorf("values up to %g: an axis to %g in steps of %g", high, top, step)
		}
	}
}
