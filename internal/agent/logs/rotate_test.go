package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRotation(t *testing.T) {
	path := t.TempDir() + "/0.log"
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var fail error
	cfg := Config{
		MaxSize: 10, MaxFiles: 4, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		Running: func() []Log { return []Log{{"c", path}, {"gone", path + "-none"}} },
		Reopen:  func(context.Context, string) error { return errors.Join(fail, touch(path, fail)) },
	}
	files := func() (out []string) {
		found, _ := filepath.Glob(path + "*")
		for _, f := range found {
			out = append(out, strings.TrimPrefix(f, path))
		}
		slices.Sort(out)
		return out
	}
	write := func(n int) {
		if err := os.WriteFile(path, fmt.Appendf(nil, "%010d\n", n), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		small bool
		fail  error
		want  string
	}{
		{small: true, want: "[]"},
		{want: "[ .20260101-120001]"},
		{want: "[ .20260101-120001.gz .20260101-120002]"},
		{fail: errors.New("no"), want: "[ .20260101-120001.gz .20260101-120002.gz]"},
		{want: "[ .20260101-120001.gz .20260101-120002.gz .20260101-120004]"},
		{want: "[ .20260101-120002.gz .20260101-120004.gz .20260101-120005]"},
	} {
		fail = step.fail
		if step.small {
			touch(path, nil)
			pass(t.Context(), cfg)
			if got := files(); len(got) != 1 {
				t.Errorf("a small log was rotated: %v", got)
			}
			continue
		}
		now = now.Add(time.Second)
		write(now.Second())
		pass(t.Context(), cfg)
		if got := fmt.Sprint(files()); got != step.want {
			t.Errorf("at %d s there are %s, want %s", now.Second(), got, step.want)
		}
	}
	f, err := os.Open(path + ".20260101-120002.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || string(b) != "0000000002\n" {
		t.Errorf("a packed log holds %q, %v", b, err)
	}
}

func touch(path string, fail error) error {
	if fail != nil {
		return nil
	}
	return os.WriteFile(path, nil, 0o640)
}

// TestInterrupted: what an agent that died left behind is put right.
func TestInterrupted(t *testing.T) {
	path := t.TempDir() + "/0.log"
	for _, suffix := range []string{"", ".20260101-000001", ".20260101-000001.gz", ".20260101-000002", ".20260101-000002.tmp", ".other"} {
		if err := os.WriteFile(path+suffix, []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	got, err := rotated(path)
	if err != nil || !slices.Equal(got, []string{path + ".20260101-000001.gz", path + ".20260101-000002"}) {
		t.Errorf("%v, %v", got, err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 4 {
		t.Errorf("what is left: %v", left)
	}
}
