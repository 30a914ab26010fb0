package cluster

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/testkit/logtest"
)

// TestLogsOfAClusterAreBounded counts the bytes below logs/ while parts and the
// process itself write many times what they may keep: each log is four files of
// its size at most, and the newest words are there.
func TestLogsOfAClusterAreBounded(t *testing.T) {
	limits := logtest.Small(t)
	dir := t.TempDir()
	l, err := newLogs(dir, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ctx, cancel := context.WithCancel(t.Context())
	tick, done := make(chan time.Time), make(chan struct{})
	go func() { defer close(done); l.boundCrashLog(ctx, tick, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-done }()
	tick <- time.Now() // there is no crash log yet
	crash, err := os.OpenFile(filepath.Join(dir, CrashLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer crash.Close()
	line := strings.Repeat("x", 1000)
	for _, part := range []string{"agent", "proxy", "api"} {
		log, err := l.part(part)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			log.Info(line)
		}
		log.Info("the end of " + part)
	}
	for range 20 {
		for range 100 {
			if _, err := crash.WriteString(line + "\n"); err != nil {
				t.Fatal(err)
			}
		}
		tick <- time.Now()
	}
	tick <- time.Now() // the last rotation has ended when the next tick is taken
	if _, err := crash.WriteString("the end of crash\n"); err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		log, _, _ := strings.Cut(d.Name(), ".log")
		sizes[log] += info.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"agent", "proxy", "api", "crash"} {
		if bound := int64(limits.Old+1) * limits.Size; sizes[part] == 0 || sizes[part] > bound {
			t.Errorf("the logs of %s hold %d bytes, may hold %d", part, sizes[part], bound)
		}
		text, err := os.ReadFile(filepath.Join(dir, part+".log"))
		if err != nil || !strings.Contains(string(text), "the end of "+part) {
			t.Errorf("%s: the newest entry is lost (%v)", part, err)
		}
	}
}
