package containerd

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/logfile"
)

// TestRuntimeLogIsBounded: containerd's log, written by another process, keeps
// to four files of its size.
func TestRuntimeLogIsBounded(t *testing.T) {
	was := logfile.DefaultLimits
	logfile.DefaultLimits = logfile.Limits{Size: 64 << 10, Old: 3}
	t.Cleanup(func() { logfile.DefaultLimits = was })
	s := &Supervisor{Log: slog.New(slog.DiscardHandler), LogFile: filepath.Join(t.TempDir(), "containerd.log")}
	out, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for range 20 {
		if _, err := out.WriteString(strings.Repeat(strings.Repeat("x", 999)+"\n", 100)); err != nil {
			t.Fatal(err)
		}
		s.boundLog()
	}
	files, err := filepath.Glob(s.LogFile + "*")
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
	if bytes == 0 || bytes > 4*logfile.DefaultLimits.Size || len(files) != 4 {
		t.Errorf("%d files hold %d bytes", len(files), bytes)
	}
}
