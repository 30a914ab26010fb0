package pod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// FuzzTail reads the end of whatever a log file holds.
func FuzzTail(f *testing.F) {
	f.Add("2026-01-01T12:00:00.5Z stdout F hello\n2026-01-01T12:00:01Z stderr P part\n2026-01-01T12:00:01Z stderr F ial\n", 80)
	f.Add("", 1)
	f.Add("no log line at all", 10)
	f.Add("2026-01-01T12:00:00Z stdout\n\n \n    \n", 0)
	f.Add(strings.Repeat("2026-01-01T12:00:00Z stdout F x\n", 300), 2048)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < 0 || limit > 1<<20 {
			return
		}
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := tail(path, limit)
		if len(got) > limit || strings.Count(got, "\n") > maxTailLines {
			t.Errorf("%d bytes in %d lines, at most %d and %d are wanted", len(got), strings.Count(got, "\n"), limit, maxTailLines)
		}
	})
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	log := "2026-01-01T12:00:00Z stdout F one\n2026-01-01T12:00:00Z stdout P tw\n2026-01-01T12:00:00Z stdout F o\n2026-01-01T12:00:00Z " +
		"stderr F three\n"
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path, 100); got != "one\ntwo\nthree\n" {
		t.Errorf("the end of the log is %q", got)
	}
	if got := tail(path, 6); got != "three\n" {
		t.Errorf("its last bytes are %q", got)
	}
}

// TestLoggedAttempts: restart counts outlive the runtime in the names of logs.
func TestLoggedAttempts(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"default_web_u1/app/0.log", "default_web_u1/app/3.log", "default_web_u1/app/2.log.20260101-120000",
		"default_web_u1/side/x.log", "default_web_u2/app/9.log"} {
		path := filepath.Join(w.m.cfg.Dirs.Logs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := w.m.loggedAttempts("u1")
	if len(got) != 1 || got["app"] != 3 {
		t.Fatalf("the logs tell of %v", got)
	}
	w.begin(testPod("Always", "app"))
	w.obs.Logged = got
	w.settle()
	if s := w.plan.Status.ContainerStatuses[0]; s.RestartCount != 4 {
		t.Errorf("after the runtime lost everything the restart count is %d, want 4", s.RestartCount)
	}
}

// TestSameToVolumes: a definition that differs in its status alone is no reason
// to collect the contents of volumes again.
func TestSameToVolumes(t *testing.T) {
	was := testPod(v1.RestartPolicyAlways, "app")
	was.Generation, was.Labels, was.Annotations = 3, map[string]string{"a": "1"}, map[string]string{"b": "2"}
	for name, c := range map[string]struct {
		change func(*v1.Pod)
		same   bool
	}{
		"status":     {func(p *v1.Pod) { p.ResourceVersion, p.Status.Phase = "9", v1.PodRunning }, true},
		"labels":     {func(p *v1.Pod) { p.Labels["a"] = "2" }, false},
		"annotation": {func(p *v1.Pod) { delete(p.Annotations, "b") }, false},
		"spec":       {func(p *v1.Pod) { p.Generation++ }, false},
		"unnumbered": {func(p *v1.Pod) { p.Generation = 0 }, false},
	} {
		is := was.DeepCopy()
		c.change(is)
		if got := sameToVolumes(was, is); got != c.same {
			t.Errorf("%s changed: the same is %v, want %v", name, got, c.same)
		}
	}
	if sameToVolumes(nil, was) {
		t.Error("a first definition is new")
	}
}
