package health

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts instead of comparing with them")

// TestTranscripts runs testdata/*.txt. Lines of a script:
//
//	set FIELD=VALUE ...        (of Settings: grace, rate, secondary, threshold, large)
//	zone READY NOT             (prints a zone's state and rate)
//	nodes ZONE COUNT           (nodes ZONE-0 ... that live; - is the zone without labels)
//	start                      (the controller knows them all)
//	kill NAME ... / revive NAME ...
//	say NAME True|False        (the node posts its Ready condition)
//	hide NAME                  (answers to its node's writes are lost, the watch is late)
//	show NAME                  (what was hidden is seen, the oldest first)
//	hear NAME                  (it renews its lease)
//	strip NAME                 (someone takes its NoExecute taints off)
//	api down|up
//	restart [D]                (the controller forgets everything but the API, and is away for D)
//	clock NAME D               (the node's clock is ahead by D)
//	run D                      (prints what is decided meanwhile)
//	why NAME
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t, settings: Defaults(), w: &world{t: t, now: t0, granted: map[string][]time.Time{},
				added: map[string][]time.Time{}}}
			s.w.m = NewMonitor(s.settings)
			in := bufio.NewScanner(bytes.NewReader(data))
			for in.Scan() {
				line := in.Text()
				if strings.HasPrefix(line, "  ") {
					continue // output of an earlier run
				}
				s.out.WriteString(line + "\n")
				if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
					s.line(words[0], words[1:])
				}
			}
			if *rewrite {
				if err := os.WriteFile(file, s.out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got := s.out.String(); got != string(data) {
				t.Errorf("%s differs (run with -rewrite to accept):\n%s", file, got)
			}
		})
	}
}

type script struct {
	t        *testing.T
	settings Settings
	w        *world
	told     int
	out      bytes.Buffer
}

func (s *script) number(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) node(name string) *fakeNode {
	for _, n := range s.w.nodes {
		if n.name == name {
			return n
		}
	}
	s.t.Fatalf("no node %q", name)
	return nil
}

func (s *script) line(verb string, args []string) {
	switch verb {
	case "set":
		for _, a := range args {
			s.set(a)
		}
		s.w.m = NewMonitor(s.settings)
	case "zone":
		ready, not := int(s.number(args[0])), int(s.number(args[1]))
		z := zone{ready: ready, notReady: not, state: disruption(ready, not, s.settings.UnhealthyThreshold)}
		fmt.Fprintf(&s.out, "  %s, %g nodes/s\n", z.state, z.rate(s.settings, false))
	case "nodes":
		for i := range int(s.number(args[1])) {
			n := &fakeNode{name: fmt.Sprintf("%s-%d", args[0], i), alive: true, renew: s.w.now, beat: s.w.now}
			n.view = View{UID: n.name, Created: s.w.now.Add(-time.Hour), Ready: True, Heartbeat: s.w.now}
			if args[0] != "-" {
				n.view.Zone = "r:\x00:" + args[0]
			}
			s.w.nodes = append(s.w.nodes, n)
		}
	case "start":
		s.start()
	case "clock":
		s.node(args[0]).skew = s.duration(args[1])
	case "restart":
		if len(args) > 0 {
			s.w.unheard(s.duration(args[0]))
		}
		s.w.m = NewMonitor(s.settings)
		s.start()
	case "kill", "revive":
		for _, name := range args {
			s.node(name).alive = verb == "revive"
		}
	case "say":
		n := s.node(args[0])
		n.view.Ready, n.view.Heartbeat = map[string]Status{"True": True, "False": False}[args[1]], s.w.now
		s.w.changed(n)
		s.w.settle()
		s.tell()
	case "hide":
		s.node(args[0]).hidden = true
	case "show":
		s.w.show(s.node(args[0]))
		s.tell()
		fmt.Fprintf(&s.out, "  NoExecute taints written to its zone: %d\n", len(s.w.added[s.node(args[0]).view.Zone]))
	case "strip":
		n := s.node(args[0])
		n.view.NotReady, n.view.Unreachable = false, false
		s.w.changed(n)
		s.w.settle()
		s.tell()
	case "hear":
		n := s.node(args[0])
		n.renew, n.beat = s.w.now, s.w.now
		s.w.m.Observe(s.w.now, n.lease())
		s.w.settle()
		s.tell()
	case "api":
		s.w.apiDown = args[0] == "down"
	case "run":
		s.w.run(s.duration(args[0]))
		s.tell()
	case "why":
		r, ok := s.w.m.Explain(args[0], s.w.now)
		fmt.Fprintf(&s.out, "  %s %s (known: %v)\n", args[0], r.Decision, ok)
		for _, f := range r.Because {
			fmt.Fprintf(&s.out, "    %s: %s\n", f.Name, f.Value)
		}
	default:
		s.t.Fatalf("unknown line %q", verb)
	}
}

func (s *script) set(assignment string) {
	field, value, _ := strings.Cut(assignment, "=")
	switch field {
	case "grace":
		s.settings.Grace = s.duration(value)
	case "rate":
		s.settings.EvictionRate = s.number(value)
	case "secondary":
		s.settings.SecondaryEvictionRate = s.number(value)
	case "threshold":
		s.settings.UnhealthyThreshold = s.number(value)
	case "large":
		s.settings.LargeZone = int(s.number(value))
	default:
		s.t.Fatalf("no setting %q", field)
	}
}

// start lists everything to the controller.
func (s *script) start() {
	for _, n := range s.w.nodes {
		s.w.m.Observe(s.w.now, Event{Kind: NodeSeen, Node: n.name, View: n.view, Version: n.version})
		s.w.m.Observe(s.w.now, n.lease())
	}
	s.w.m.Observe(s.w.now, Event{Kind: Synced})
	s.w.settle()
	s.tell()
}

// tell prints the decisions since it was last called.
func (s *script) tell() {
	for _, d := range s.w.log[s.told:] {
		who := d.Node
		if who == "" {
			who = "all"
		}
		fmt.Fprintf(&s.out, "  %s: %s", who, d.Text())
		for _, f := range d.Because() {
			fmt.Fprintf(&s.out, "; %s: %s", f.Name, f.Value)
		}
		s.out.WriteByte('\n')
	}
	s.told = len(s.w.log)
	fmt.Fprintf(&s.out, "  now %s\n", s.w.now.Sub(t0))
}
