package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestHealthAnswers are those of an API server, byte by byte: load balancers and
// scripts read them.
func TestHealthAnswers(t *testing.T) {
	good := healthCheck{"ping", func(context.Context) error { return nil }}
	bad := healthCheck{"api", func(context.Context) error { return errors.New("refused") }}
	for _, c := range []struct {
		url    string
		checks []healthCheck
		code   int
		body   string
	}{
		{"/healthz", []healthCheck{good}, 200, "ok"},
		{"/healthz?verbose", []healthCheck{good}, 200, "[+]ping ok\n/healthz check passed\n"},
		{"/readyz", []healthCheck{good, bad}, 500, "[+]ping ok\n[-]api failed: refused\n/readyz check failed\n"},
		{"/readyz/api", []healthCheck{bad}, 500, "[-]api failed: refused\n/readyz/api check failed\n"},
	} {
		w := httptest.NewRecorder()
		answerChecks(c.checks)(w, httptest.NewRequest(http.MethodGet, c.url, nil))
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.url, w.Code, w.Body, c.code, c.body)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: a browser may guess the type", c.url)
		}
	}
}

// TestProbe: what a part says of itself reaches `berth status`.
func TestProbe(t *testing.T) {
	code, body := 200, "ok"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		if _, err := w.Write([]byte(body)); err != nil {
			t.Error(err)
		}
	}))
	if err := probe(t.Context(), s.Client(), s.URL); err != nil {
		t.Errorf("a healthy part: %v", err)
	}
	code, body = 503, "the runtime does not answer"
	if err := probe(t.Context(), s.Client(), s.URL); err == nil || !strings.Contains(err.Error(), body) {
		t.Errorf("a part that is not: %v", err)
	}
	s.Close()
	if err := probe(t.Context(), s.Client(), s.URL); err == nil {
		t.Error("no one answers, and the part is healthy")
	}
}

// TestStages: a stage's end is reported as what it is. One that ends because
// another failed is no failure of its own: the user looks for the first.
func TestStages(t *testing.T) {
	for _, c := range []struct {
		err           error
		state, detail string
	}{
		{nil, "done", "fine"},
		{errors.New("no space"), "fail", "no space"},
		{context.Canceled, "stop", "not finished"},
	} {
		var got []Event
		stages := clock{began: time.Now(), emit: func(e Event) { got = append(got, e) }}
		err := stages.stage("store", func() (string, error) { return "fine", c.err })
		if !errors.Is(err, c.err) || c.err != nil && !strings.HasPrefix(err.Error(), "store: ") {
			t.Errorf("%v becomes %v", c.err, err)
		}
		if len(got) != 2 || got[0].State != "start" || got[1].State != c.state || got[1].Detail != c.detail || got[1].Stage != "store" {
			t.Errorf("%v is reported as %+v", c.err, got)
		}
	}
}

// TestEncoder: a detached berth writes what the command that waits reads.
func TestEncoder(t *testing.T) {
	var out bytes.Buffer
	e := Event{Stage: "api", State: "fail", At: time.Second, Took: time.Millisecond, Detail: "two\nlines"}
	Encoder(&out)(e)
	var back Event
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back != e {
		t.Errorf("%s: %+v, %v", out.Bytes(), back, err)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("an event takes %d lines", n)
	}
}

// TestLibrariesAreDemoted: libraries' information is our debugging, their
// warnings and errors stay; attributes and groups are kept.
func TestLibrariesAreDemoted(t *testing.T) {
	for _, c := range []struct {
		level slog.Level // of the log files
		shown string
	}{
		{slog.LevelInfo, "warn error"},
		{slog.LevelDebug, "info warn error"},
		{slog.LevelDebug - 4, "debug info warn error"},
	} {
		var out bytes.Buffer
		l := &logs{format: "text", level: c.level}
		log := slog.New(&demoteHandler{l.handler(&out)}).With("lib", "client-go").WithGroup("g")
		log.Debug("debug", "n", 1)
		log.Info("info", "n", 1)
		log.Warn("warn", "n", 1)
		log.Error("error", "n", 1)
		var shown []string
		for line := range strings.Lines(out.String()) {
			_, msg, _ := strings.Cut(line, "msg=")
			shown = append(shown, strings.Fields(msg)[0])
			if !strings.Contains(line, "lib=client-go") || !strings.Contains(line, "g.n=1") {
				t.Errorf("attributes are lost: %s", line)
			}
		}
		if got := strings.Join(shown, " "); got != c.shown {
			t.Errorf("at level %s libraries show %q, want %q", c.level, got, c.shown)
		}
	}
}

// TestRunDirectoryIsOfOneBoot: what lies in run/ was true for the last boot only.
func TestRunDirectoryIsOfOneBoot(t *testing.T) {
	c := &Config{DataDir: t.TempDir()}
	if err := c.dropStaleRun("boot-1"); err != nil {
		t.Fatal(err)
	}
	socket := c.Path("run", "berth.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		boot  string
		stays bool
	}{{"boot-1", true}, {"boot-2", false}} {
		if err := c.dropStaleRun(step.boot); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(socket); (err == nil) != step.stays {
			t.Errorf("after a start in %s: %v", step.boot, err)
		}
	}
	if memo, err := os.ReadFile(c.Path("run", "boot-id")); err != nil || string(memo) != "boot-2" {
		t.Errorf("the boot is remembered as %q, %v", memo, err)
	}
}

// TestPurgeKeeps removes a directory but for what the message names.
func TestPurgeKeeps(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"logs/up.log", "pki/ca.key", "cluster.json"} {
		mkdir(t, filepath.Dir(filepath.Join(dir, name)))
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := purgeFiles(dir, "logs"); err != nil || entries(t, dir) != "logs" || entries(t, filepath.Join(dir, "logs")) != "up.log" {
		t.Errorf("left: %s, %v", entries(t, dir), err)
	}
	if err := purgeFiles(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}
