package logfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogsAreBounded: whatever is written, the files keep to their size and
// count, entries stay whole, and the newest are there.
func TestLogsAreBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "part.log")
	limits := Limits{Size: 1000, Old: 2}
	const entries = 500
	for begin := range 2 { // a log goes on where the last process left it
		f, err := Open(path, limits)
		if err != nil {
			t.Fatal(err)
		}
		for i := range entries / 2 {
			if _, err := fmt.Fprintf(f, "entry %d\n", begin*entries/2+i); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	bounded(t, dir, 3, limits.Size)
	var all []byte
	for _, name := range []string{path + ".2", path + ".1", path} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	first := 0
	if _, err := fmt.Sscanf(string(all), "entry %d", &first); err != nil {
		t.Fatalf("an entry was cut: %v", err)
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(all), "\n"), "\n") {
		if line != fmt.Sprintf("entry %d", first+i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if !bytes.HasSuffix(all, fmt.Appendf(nil, "entry %d\n", entries-1)) {
		t.Error("the newest entry is lost")
	}
}

// TestForeignLogsAreBounded: a log that another process appends to.
func TestForeignLogsAreBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "containerd.log")
	limits := Limits{Size: 1000, Old: 2}
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for i := range 200 {
		if _, err := fmt.Fprintf(writer, "line %d %s\n", i, strings.Repeat("x", 90)); err != nil {
			t.Fatal(err)
		}
		if err := Truncate(path, limits); err != nil {
			t.Fatal(err)
		}
	}
	bounded(t, dir, 3, limits.Size)
	if _, err := writer.WriteString("the end\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !bytes.HasSuffix(text, []byte("the end\n")) || text[0] == 0 {
		t.Errorf("the writer does not go on: %q, %v", text, err)
	}
}

func bounded(t *testing.T, dir string, files int, size int64) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != files {
		t.Errorf("%d files, want %d (%v)", len(list), files, err)
	}
	for _, e := range list {
		if info, err := e.Info(); err != nil || info.Size() > size {
			t.Errorf("%s has %d bytes (%v)", e.Name(), info.Size(), err)
		}
	}
}
