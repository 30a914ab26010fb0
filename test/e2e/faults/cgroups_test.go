package faults

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// oomKills is how often the kernel ended something in a cgroup; on v2 also
// below it.
func oomKills(t *testing.T, path string) int {
	t.Helper()
	file := filepath.Join(kit.CgroupRoot, "memory", path, "memory.oom_control")
	if kit.CgroupV2() {
		file = filepath.Join(kit.CgroupRoot, path, "memory.events")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s does not tell of the OOM killer", file)
	return 0
}
