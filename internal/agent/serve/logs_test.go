package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFollowedLogEndsWithItsContainer(t *testing.T) {
	h := start(t, nil)
	file, err := os.OpenFile(h.cri.logPath, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	go func() {
		io.WriteString(file, "2026-01-02T03:04:07Z stdout F three\n")
		close(h.pods.exited)
	}()
	if _, body := h.do(t, "api-server", "GET", "/containerLogs/default/p/c?follow=true", ""); body != "one\ntwo\nthree\n" {
		t.Errorf("got %q", body)
	}
}

// TestLogQuery asks for logs of services: a file in the log directory first,
// else the journal; the answer is cut as asked.
func TestLogQuery(t *testing.T) {
	on := true
	var asked []string
	h := start(t, func(cfg *Config) {
		cfg.Kubelet.EnableSystemLogQuery = &on
		cfg.Logs.Journal = func(_ context.Context, args []string, out io.Writer) error {
			if asked = args; strings.Contains(strings.Join(args, " "), "unit=broken") {
				return errors.New("no journal files were found")
			}
			_, err := io.WriteString(out, "first of containerd\nsecond of containerd\nthird\n")
			return err
		}
	})
	if err := os.WriteFile(filepath.Join(h.cfg.Logs.Dir, "kubelet.log"), []byte("a 1\nb 2\na 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(h.cfg.Logs.Dir, "out.log")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		query string
		code  int
		want  string
		args  string
	}{
		{"query=kubelet", 200, "a 1\nb 2\na 3\n", ""},
		{"query=kubelet&pattern=%5Ea", 200, "a 1\na 3\n", ""},
		{"query=kubelet&pattern=%5Ea&tailLines=1", 200, "a 3\n", ""},
		{"query=/kubelet.log&tailLines=1", 200, "a 3\n", ""},
		{"query=/../../etc/passwd", 404, "opening log", ""},
		{"query=/out.log", 404, "escapes", ""},
		{"query=/kubelet.log&boot=0", 400, "only apply to the journal", ""},
		{"query=containerd&tailLines=2", 200, "second of containerd\nthird\n", "--unit=containerd"},
		{"query=containerd&query=cri&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-02T03:04:05Z&boot=-1", 200, "first",
			"--since=2026-01-02 02:04:05 --until=2026-01-02 03:04:05 --boot -1 --unit=containerd --unit=cri"},
		{"query=broken", 500, "no journal files were found", ""},
		{"query=-u%20x", 400, "neither the name of a service", ""},
		{"query=--root", 400, "neither the name of a service", ""},
		{"query=", 400, "neither the name of a service", ""},
		{"query=/a&query=b", 400, "only one file", ""},
		{"query=a&tailLines=-1", 400, "tailLines", ""},
		{"query=a&boot=1", 400, "boot", ""},
		{"query=a&pattern=(", 400, "pattern", ""},
		{"query=a&sinceTime=now", 400, "sinceTime", ""},
		{"query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2025-01-02T03:04:05Z", 400, "untilTime must not be before", ""},
	} {
		asked = nil
		code, body := h.do(t, "api-server", "GET", "/logs/?"+test.query, "")
		if code != test.code || !strings.Contains(body, test.want) || test.code == 200 && !strings.HasPrefix(body, test.want) {
			t.Errorf("%s: got %d %q, want %d with %q", test.query, code, body, test.code, test.want)
		}
		if got := strings.Join(asked, " "); !strings.HasSuffix(got, test.args) {
			t.Errorf("%s: the journal was asked %q", test.query, got)
		}
	}
}

// TestLogDirKeepsLinksInside: a pod that may write below the log directory
// plants links and FIFOs; what lies inside is still shown, the absolute links
// of containers/ included.
func TestLogDirKeepsLinksInside(t *testing.T) {
	on := true
	h := start(t, func(cfg *Config) { cfg.Kubelet.EnableSystemLogQuery = &on })
	dir := h.cfg.Logs.Dir
	secret := filepath.Join(t.TempDir(), "shadow")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret, "root:secret")
	write(filepath.Join(dir, "pods/p/0.log"), "a line\n")
	for name, target := range map[string]string{
		"evil": secret, "deep/evil": filepath.Dir(secret), "containers/c.log": filepath.Join(dir, "pods/p/0.log"),
		"near.log": "pods/p/0.log",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		code int
		want string
	}{
		{"/logs/evil", 500, ""},
		{"/logs/deep/evil/shadow", 500, ""},
		{"/logs/fifo", 403, ""},
		{"/logs/?query=/evil", 404, "escapes"},
		{"/logs/?query=/fifo", 404, "neither a file nor a directory"},
		{"/logs/none", 404, ""},
		{"/logs/pods/p/0.log", 200, "a line\n"},
		{"/logs/containers/c.log", 200, "a line\n"},
		{"/logs/near.log", 200, "a line\n"},
		{"/logs/?query=/containers/c.log", 200, "a line\n"},
		{"/logs/", 200, "pods/"},
	} {
		code, body := h.do(t, "api-server", "GET", test.path, "")
		if code != test.code || !strings.Contains(body, test.want) || strings.Contains(body, "secret") {
			t.Errorf("%s: got %d %q, want %d with %q", test.path, code, body, test.code, test.want)
		}
	}
}

// TestLogLinesAreBounded: neither a line without an end nor a long tail makes
// the agent hold what somebody else wrote.
func TestLogLinesAreBounded(t *testing.T) {
	var out bytes.Buffer
	f := &lineFilter{out: &out, tail: 100000}
	block := bytes.Repeat([]byte("x"), 1<<16)
	for range 1024 { // 64 MiB in one line
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if cap(f.line) > 4*maxLogLine {
		t.Errorf("a line takes %d bytes", cap(f.line))
	}
	line := append(bytes.Repeat([]byte("y"), 1<<16), '\n')
	for range 1024 {
		if _, err := f.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if f.held > maxLogTail {
		t.Errorf("the tail holds %d bytes", f.held)
	}
	for _, text := range []string{"one\ntw", "o\nthree"} {
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.close(); err != nil || !strings.HasSuffix(out.String(), "one\ntwo\nthree") {
		t.Errorf("the end of the tail: %v, %q", err, out.String()[max(0, out.Len()-20):])
	}
}

// FuzzLogQuery takes in any query of logs, and any text for it to filter.
func FuzzLogQuery(f *testing.F) {
	f.Add("query=kubelet&pattern=a&tailLines=3", "a\nb\nca")
	f.Add("query=/x/../y&sinceTime=2026-01-02T03:04:05Z&boot=-1", "\n\n")
	f.Fuzz(func(t *testing.T, query, text string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := readLogQuery(values["query"], values)
		if err != nil {
			return
		}
		for _, arg := range journalArgs(q, q.services)[3:] {
			if strings.ContainsAny(arg, "\n\x00") {
				t.Errorf("%q reaches the command line", arg)
			}
		}
		if strings.Contains(q.file, "/../") {
			t.Errorf("%q leaves the log directory", q.file)
		}
		var out bytes.Buffer
		lines := q.lines(&out)
		if _, err := io.WriteString(lines, text); err != nil || lines.close() != nil {
			t.Fatal(err)
		}
		if q.pattern == nil && q.tail < 0 && out.String() != text {
			t.Errorf("%q became %q", text, out.String())
		}
	})
}
