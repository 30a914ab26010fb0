package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/logfile"
)

// TestEtcdLogIsBounded: an etcd that complains without end keeps to four files.
func TestEtcdLogIsBounded(t *testing.T) {
	was := logfile.DefaultLimits
	logfile.DefaultLimits = logfile.Limits{Size: 64 << 10, Old: 3}
	t.Cleanup(func() { logfile.DefaultLimits = was })
	path := filepath.Join(t.TempDir(), "logs", "etcd.log")
	log, err := openLog(path, newFailure())
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		log.Warn(strings.Repeat("x", 1000))
	}
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
	if bytes == 0 || bytes > 4*logfile.DefaultLimits.Size || len(files) != 4 {
		t.Errorf("%d files hold %d bytes", len(files), bytes)
	}
}
