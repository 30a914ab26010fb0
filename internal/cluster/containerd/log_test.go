package containerd

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/testkit/logtest"
)

// TestRuntimeLogIsBounded: containerd's log, written by another process, keeps
// to four files of its size.
func TestRuntimeLogIsBounded(t *testing.T) {
	limits := logtest.Small(t)
	s := &Supervisor{Log: slog.New(slog.DiscardHandler), LogFile: filepath.Join(t.TempDir(), "containerd.log")}
	out, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for range 20 {
		if _, err := out.WriteString(strings.Repeat(logtest.Line, 100)); err != nil {
			t.Fatal(err)
		}
		s.boundLog()
	}
	logtest.Full(t, s.LogFile, limits)
}
