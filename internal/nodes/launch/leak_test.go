package launch

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// No goroutine of ours outlives the tests. The API server beside them leaves some of
// its own, so goleak cannot tell.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := ours(); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines outlived the tests:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// ours are the goroutines with code of this module on their stacks, but this one
// and those of the API server, after ten seconds at most.
func ours() (left string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		all := make([]byte, 16<<20)
		all = all[:runtime.Stack(all, true)]
		left = ""
		for _, g := range strings.Split(string(all), "\n\n")[1:] {
			if strings.Contains(g, "berth-dev/berth/internal/") && !strings.Contains(g, "berth/internal/control/api") {
				left += g + "\n\n"
			}
		}
		if left == "" {
			return ""
		}
	}
	return left
}
