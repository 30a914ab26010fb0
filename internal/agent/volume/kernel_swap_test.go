package volume

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoSwapTmpfs compares what the kernel is taken to be able to with what it
// did to a file system in memory.
func TestNoSwapTmpfs(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := (kernel{}).tmpfs(dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " "+dir+" ") {
			if did := strings.Contains(line, "noswap"); did != NoSwapTmpfs() {
				t.Errorf("taken to be %v, but: %s", NoSwapTmpfs(), line)
			}
			return
		}
	}
	t.Errorf("%s is not mounted", dir)
}
