package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func header() Header {
	return Header{Name: "a", Time: noon, Cluster: "berth", Node: "n", DataDir: "/var/lib/berth", Berth: "v1", Etcd: "3.7.3", Layout: 1,
		Revision: 7, StoreBytes: 1024, Sealed: SealedByKey, PayloadBytes: 9}
}

func TestHeaderComesBack(t *testing.T) {
	h := header()
	block, err := h.encode()
	if err != nil || len(block) != headerSize {
		t.Fatalf("%d bytes, %v", len(block), err)
	}
	got, err := decodeHeader("f", block)
	if err != nil || got != h {
		t.Fatalf("%+v, %v", got, err)
	}
	h.DataDir = strings.Repeat("x", headerSize)
	if _, err := h.encode(); err == nil {
		t.Error("a header longer than its block was written")
	}
}

func TestBadHeadersAreRefused(t *testing.T) {
	h := header()
	good, err := h.encode()
	if err != nil {
		t.Fatal(err)
	}
	change := func(old, new string) []byte {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("the header has no %q", old)
		}
		out := bytes.Replace(good, []byte(old), []byte(new), 1)
		out = bytes.TrimRight(out, " \n")
		return append(append(out, bytes.Repeat([]byte{' '}, headerSize-1-len(out))...), '\n')
	}
	for name, c := range map[string]struct {
		block []byte
		want  string
	}{
		"empty":            {nil, "not a snapshot"},
		"something else":   {bytes.Repeat([]byte("x"), headerSize), "not a snapshot"},
		"no version":       {change("berth-snapshot 1\n", "berth-snapshot one\n"), "not a snapshot"},
		"version 0":        {change("berth-snapshot 1\n", "berth-snapshot 0\n"), "not a snapshot"},
		"newer":            {change("berth-snapshot 1\n", "berth-snapshot 2\n"), "snapshot format 2"},
		"newer, huge":      {change("berth-snapshot 1\n", "berth-snapshot 99999999999999999999\n"), "not a snapshot"},
		"cut off":          {good[:headerSize-1], "cut off"},
		"name leads away":  {change(`"name":"a"`, `"name":"../a"`), "snapshot name"},
		"name is a dot":    {change(`"name":"a"`, `"name":".."`), "snapshot name"},
		"unknown field":    {change(`{"name"`, `{"what":1,"name"`), "unknown field"},
		"two values":       {change(`}`, `} {}`), "follow"},
		"sealed by nobody": {change(`"sealed":"key"`, `"sealed":"wax"`), "allowed are"},
		"no revision":      {change(`"revision":7`, `"revision":0`), "impossible"},
		"negative size":    {change(`"storeBytes":1024`, `"storeBytes":-1`), "impossible"},
		"huge":             {change(`"storeBytes":1024`, fmt.Sprintf(`"storeBytes":%d`, int64(maxStorePart)+1)), "impossible"},
		"terminal escapes": {change(`"node":"n"`, `"node":"\u001b[2J"`), "control characters"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decodeHeader("f", c.block); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ...%s", err, c.want)
			}
		})
	}
}

func TestWhoCanOpen(t *testing.T) {
	reader := Reader{Etcd: "3.7.3", Layout: 1}
	for _, c := range []struct {
		etcd   string
		layout int
		want   string
	}{
		{"3.7.9", 1, ""}, {"3.6.0", 1, ""}, {"3.7.3", 0, ""},
		{"3.8.0", 1, "etcd 3.8.0"}, {"4.0.0", 1, "etcd 4.0.0"}, {"3.7.3", 2, "layout 2"}, {"x", 1, "not a version"},
	} {
		h := header()
		h.Etcd, h.Layout = c.etcd, c.layout
		if err := h.CanOpen(reader); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("etcd %s, layout %d: %v, want %q", c.etcd, c.layout, err, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, bad := range []string{"", ".", "..", "-a", ".a", "a/b", "a b", "a\n", strings.Repeat("x", 129)} {
		if checkName(bad) == nil {
			t.Errorf("%q is allowed", bad)
		}
	}
	if name := DefaultName("host/ä.example", noon); checkName(name) != nil || name != "20300101T120000Z-host-.example" {
		t.Errorf("default name %q", name)
	}
}

func entries(ages ...time.Duration) (all []Entry) {
	for i, a := range ages {
		h := header()
		h.Time = noon.Add(-a)
		all = append(all, Entry{File: fmt.Sprint(i), Header: h})
	}
	return all
}

func TestPrune(t *testing.T) {
	broken := append(entries(time.Hour, 2*time.Hour), Entry{File: "broken", Broken: "cut off"})
	for _, c := range []struct {
		name string
		keep Retention
		all  []Entry
		want []string
	}{
		{"nothing asked", Retention{}, entries(1, 2, 3), nil},
		{"newest two", Retention{Keep: 2}, entries(3*time.Hour, time.Hour, 2*time.Hour), []string{"0"}},
		{"oldest first", Retention{Keep: 1}, entries(1*time.Hour, 3*time.Hour, 2*time.Hour), []string{"1", "2"}},
		{"young", Retention{KeepFor: 90 * time.Minute}, entries(time.Hour, 2*time.Hour), []string{"1"}},
		{"exactly as old", Retention{KeepFor: time.Hour}, entries(0, time.Hour), []string{"1"}},
		{"the newest stays, however old", Retention{KeepFor: time.Minute}, entries(3*time.Hour, 2*time.Hour), []string{"0"}},
		{"either keeps", Retention{Keep: 1, KeepFor: 150 * time.Minute}, entries(time.Hour, 2*time.Hour, 3*time.Hour), []string{"2"}},
		{"more than there are", Retention{Keep: 9}, entries(1, 2), nil},
		{"damaged ones neither count nor go", Retention{Keep: 1}, broken, []string{"1"}},
		{"from the future", Retention{Keep: 1}, entries(-time.Hour, time.Hour), []string{"1"}},
		{"same time", Retention{Keep: 1}, entries(time.Hour, time.Hour), []string{"1"}},
		{"none", Retention{Keep: 1}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, e := range c.keep.Prune(c.all, noon) {
				got = append(got, e.File)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("deletes %v, want %v", got, c.want)
			}
		})
	}
}

func TestSchedule(t *testing.T) {
	const day = 24 * time.Hour
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	for _, c := range []struct {
		name   string
		p      Progress
		jitter float64
		want   time.Time
	}{
		{"first", Progress{Every: day, Started: noon}, 0, at(soonest)},
		{"first of a short interval", Progress{Every: time.Minute, Started: noon}, 0, at(6 * time.Second)},
		{"one of the last run", Progress{Every: day, Started: noon, Last: at(-time.Hour)}, 0, at(23 * time.Hour)},
		{"missed while it was off", Progress{Every: day, Started: noon, Last: at(-40 * time.Hour)}, 0, at(soonest)},
		{"jitter", Progress{Every: day, Started: noon, Last: at(0)}, 0.5, at(day + day/20)},
		{"failed once", Progress{Every: day, Started: noon, Failures: 1, Failed: at(time.Hour)}, 0, at(time.Hour + time.Minute)},
		{"failed three times", Progress{Every: day, Started: noon, Failures: 3, Failed: at(time.Hour)}, 0, at(time.Hour + 4*time.Minute)},
		{"failed for weeks", Progress{Every: day, Started: noon, Failures: 1000, Failed: at(0)}, 0, at(day)},
	} {
		if got := c.p.Next(c.jitter); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got.Sub(noon), c.want.Sub(noon))
		}
	}
	late := Progress{Every: time.Hour, Started: noon.Add(-3 * time.Hour), Dir: "/d", Failures: 2, Error: "no room"}
	if line, ok := late.Line(noon); ok || !strings.Contains(line, "none made yet") || !strings.Contains(line, "failed 2 times") ||
		!strings.Contains(line, "no room") || !strings.HasSuffix(line, "OVERDUE") {
		t.Errorf("late: %v %s", ok, line)
	}
	fine := Progress{Every: time.Hour, Started: noon.Add(-3 * time.Hour), Dir: "/d", Last: noon.Add(-time.Minute), LastFile: "x"}
	if line, ok := fine.Line(noon); !ok || line != "every 1h0m0s to /d, last 1m0s ago (x)" {
		t.Errorf("fine: %v %s", ok, line)
	}
}

// A restored revision lies above all that clients can have seen: of the cluster
// that is replaced, and of one that was restored from the same file before.
func TestRevisionsOnlyGrow(t *testing.T) {
	m := &manifest{Header: header()}
	m.Revision = 500
	if got := 500 + bump(m, 0, noon); got != 500+revisionBump {
		t.Errorf("a new host begins at %d", got)
	}
	if got := 500 + bump(m, 40_000_000_000, noon); got != 40_000_000_000+revisionBump {
		t.Errorf("over a cluster that is further, it begins at %d", got)
	}
	first, second := bump(m, 0, noon.Add(time.Hour)), bump(m, 0, noon.Add(2*time.Hour))
	if second-first < 3600*writesPerSecond {
		t.Errorf("a second restore an hour later begins %d above the first", second-first)
	}
	if bump(m, 0, noon.Add(-time.Hour)) != revisionBump {
		t.Error("a clock that was set back lowers the revision")
	}
}

func TestPlans(t *testing.T) {
	m := &manifest{Header: header(), Parts: []filePart{{Name: ProviderConfigName}}}
	if _, err := NewPlan("f", m, Target{DataDir: "/d", RunningPID: 7, HasCluster: true, Force: true}, noon); err == nil ||
		!strings.Contains(err.Error(), "kill 7") {
		t.Errorf("under a running cluster: %v", err)
	}
	if _, err := NewPlan("f", m, Target{DataDir: "/d", HasCluster: true, Node: "x", Revision: 3}, noon); err == nil ||
		!strings.Contains(err.Error(), "--force") || !strings.Contains(err.Error(), "node x") {
		t.Errorf("over a cluster: %v", err)
	}
	p, err := NewPlan("f", m, Target{DataDir: "/d", HasCluster: true, Force: true, NodeName: "z", MissingPaths: []string{"/gone"}}, noon)
	if err != nil || p.Aside != "before-restore-20300101T120000Z" {
		t.Fatalf("%+v, %v", p, err)
	}
	text := strings.Join(p.Lines, "\n")
	for _, want := range []string{"revision 7", "/d/" + p.Aside, "node z", "Node n stays", "/gone", "/d/" + ProviderConfigName, "key"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if p, err = NewPlan("f", m, Target{DataDir: "/d"}, noon); err != nil || p.Aside != "" {
		t.Errorf("a new host: %+v, %v", p, err)
	}
}

func TestNewerIsAnErrorOfItsOwn(t *testing.T) {
	var newer *newerError
	h := header()
	h.Etcd = "9.0.0"
	if err := h.CanOpen(Reader{"3.7.3", 1}); !errors.As(err, &newer) || !strings.Contains(err.Error(), "at least as new") {
		t.Errorf("%v", err)
	}
}
