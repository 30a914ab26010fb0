// Package logtest checks that a log keeps to its size.
package logtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/logfile"
)

// Line is one kilobyte, as a part that complains writes it again and again.
var Line = strings.Repeat("x", 999) + "\n"

// Small lets every log that is opened in this test keep four files of 64 KiB.
func Small(t *testing.T) logfile.Limits {
	t.Helper()
	was := logfile.DefaultLimits
	logfile.DefaultLimits = logfile.Limits{Size: 64 << 10, Old: 3}
	t.Cleanup(func() { logfile.DefaultLimits = was })
	return logfile.DefaultLimits
}

// Full refuses a log that does not fill all the files it may keep, or holds more
// bytes than they may. path is the file that is written now.
func Full(t *testing.T, path string, limits logfile.Limits) {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		bytes += info.Size()
	}
	if allowed := int64(limits.Old+1) * limits.Size; bytes == 0 || bytes > allowed || len(files) != limits.Old+1 {
		t.Errorf("log %s: %d files hold %d bytes, want %d files and at most %d bytes", path, len(files), bytes, limits.Old+1, allowed)
	}
}
