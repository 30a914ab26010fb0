package cluster

import (
	"strings"
	"testing"
	"time"
)

func TestPrinter(t *testing.T) {
	events := []Event{
		{Stage: "store", State: "start"}, {Stage: "runtime", State: "start"},
		{Stage: "store", State: "done", At: 12 * time.Millisecond, Took: 10 * time.Millisecond, Detail: "fine"},
		{Stage: "runtime", State: "fail", At: 20 * time.Millisecond, Took: 20 * time.Millisecond, Detail: "no such file"},
	}
	for _, c := range []struct {
		terminal bool
		want     []string
		not      string
	}{
		{false, []string{"12 ms  ok    store", "fine\n", "20 ms  FAIL  runtime", "no such file\n"}, "\r"},
		{true, []string{"\r\x1b[K", "...   [store runtime]", "...   [runtime]"}, "never"},
	} {
		var out strings.Builder
		show := Printer(&out, c.terminal)
		for _, e := range events {
			show(e)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("terminal %v: no %q in\n%q", c.terminal, w, out.String())
			}
		}
		if strings.Contains(out.String(), c.not) {
			t.Errorf("terminal %v: %q in\n%q", c.terminal, c.not, out.String())
		}
	}
}
