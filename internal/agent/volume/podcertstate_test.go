package volume

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// certScript drives one source through a script: each line is an input, and
// what follows from it is written below.
type certScript struct {
	certState
	now    time.Time
	start  time.Time
	number int
}

func (s *certScript) answer(name, answer, reason string, refresh, expires time.Duration) string {
	r := &certificates.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if answer != "" {
		r.Status.Conditions = []metav1.Condition{{Type: answer, Status: metav1.ConditionTrue, Reason: reason, Message: "m"}}
	}
	if answer == "Issued" {
		refreshAt, notAfter := metav1.NewTime(s.now.Add(refresh)), metav1.NewTime(s.now.Add(expires))
		r.Status.BeginRefreshAt, r.Status.NotAfter = &refreshAt, &notAfter
		r.Status.CertificateChain = "words between\n" + anchor("of "+name)
	}
	if s.certState.answer(r, time.Minute) {
		return "ended"
	}
	return "ignored"
}

func (s *certScript) line(line string) string {
	f := strings.Fields(line)
	span := func(i int) time.Duration {
		d, err := time.ParseDuration(f[i])
		if err != nil {
			panic(err)
		}
		return d
	}
	switch f[0] {
	case "look":
		p := s.plan(s.now)
		s.told(p.reason)
		var out []string
		if p.ask {
			s.number++
			name := fmt.Sprint("r", s.number)
			s.certState.ask(name, []byte("key of "+name))
			out = append(out, "ask "+name)
		}
		if p.reason != "" {
			out = append(out, p.reason)
		}
		if !p.due.IsZero() {
			out = append(out, "due "+p.due.Sub(s.start).String())
		}
		return strings.Join(out, ", ")
	case "made":
		s.made(f[1])
	case "failed":
		s.notMade(s.now)
	case "gone":
		return fmt.Sprint(s.gone(f[1]))
	case "wait":
		s.now = s.now.Add(span(1))
	case "pending":
		return s.answer(f[1], "", "", 0, 0)
	case "denied":
		return s.answer(f[1], "Denied", "UnsupportedKeyType", 0, 0)
	case "unable":
		return s.answer(f[1], "Failed", "Broken", 0, 0)
	case "issued":
		return s.answer(f[1], "Issued", "Signed", span(2), span(3))
	default:
		panic("unknown command " + line)
	}
	return ""
}

func (s *certScript) state() string {
	var out []string
	if s.held != nil {
		out = append(out, "holds "+string(s.held.key))
	}
	if s.asked != nil {
		out = append(out, fmt.Sprintf("asked %s made=%v", s.asked.name, s.asked.made))
	}
	if s.refused != nil {
		out = append(out, s.refused.Error())
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "; ")
}

// Each story begins with a title; the file is its own expected output.
func TestCertificateStories(t *testing.T) {
	data, err := os.ReadFile("testdata/podcert.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var s *certScript
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "# "):
			start := time.Unix(1_700_000_000, 0)
			s = &certScript{now: start, start: start}
			fmt.Fprintln(&out, line)
		case line == "":
			fmt.Fprintln(&out)
		case strings.HasPrefix(line, "  "):
		default:
			said := s.line(line)
			fmt.Fprintln(&out, line)
			if said != "" {
				fmt.Fprintln(&out, "  ->", said)
			}
			fmt.Fprintln(&out, "  "+s.state())
		}
	}
	golden.Check(t, "testdata/podcert.txt", out.String())
}

// Whatever happens, at most one request is on its way, a credential is never
// lost, a key is never used for another request's certificate, and a source
// that is neither refused nor waiting has a time at which it goes on.
func TestCertificateProperties(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		start := time.Unix(1_700_000_000, 0)
		s := &certScript{now: start, start: start}
		for step := range 60 {
			had := s.held
			name := fmt.Sprint("r", rnd.IntN(s.number+1))
			lines := []string{"look", "look", "made " + name, "failed", "gone " + name, "wait 11m", "wait 3h", "pending " + name,
				"issued " + name + " 1h 2h"}
			if rnd.IntN(10) == 0 {
				lines = []string{"denied " + name, "unable " + name}
			}
			line := lines[rnd.IntN(len(lines))]
			if line == "failed" && s.asked == nil {
				continue
			}
			asked := s.asked
			s.line(line)
			if asked != nil && s.asked != nil && asked != s.asked {
				t.Fatalf("seed %d step %d: %s: asked %s while %s waits", seed, step, line, s.asked.name, asked.name)
			}
			if had != nil && s.held == nil {
				t.Fatalf("seed %d step %d: %s lost the credential", seed, step, line)
			}
			if s.held != nil && s.held != had && string(s.held.key) != "key of "+asked.name {
				t.Fatalf("seed %d step %d: %s: chain of %s with %q", seed, step, line, asked.name, s.held.key)
			}
			if p := s.plan(s.now); s.asked == nil && s.refused == nil && !p.ask && p.due.IsZero() {
				t.Fatalf("seed %d step %d: %s: nothing goes on: %s", seed, step, line, s.state())
			}
		}
	}
}
