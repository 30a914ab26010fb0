package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestQuickstart runs the commands of docs/quickstart.md as they are printed,
// each in a shell of its own.
func TestQuickstart(t *testing.T) {
	c := kit.NewCluster(t) // for a directory and ports of its own, which the environment names
	text, err := os.ReadFile("../../../docs/quickstart.md")
	kit.Must(t, err)
	blocks := shellBlocks(t, string(text))
	if len(blocks) != 10 {
		t.Fatalf("the page has %d commands, and its title says ten", len(blocks))
	}
	says := map[int]string{1: "a start would succeed", 4: "successfully rolled out", 5: "Hello from web-", 6: "\nkept\n",
		7: "condition met",
		8: "web-", 9: "ready (in"}
	for i, block := range blocks {
		ctx, cancel := context.WithTimeout(t.Context(), 2*kit.Timeout)
		cmd := exec.CommandContext(ctx, "bash", "-c", block)
		cmd.Env = append(os.Environ(), "PATH="+c.Bin+":"+os.Getenv("PATH"), "BERTH_DATA_DIR="+c.Dir, "BERTH_NAME=", "KUBECONFIG=",
			fmt.Sprintf("BERTH_PORTS_FROM=%d", c.FirstPort))
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("command %d: %v\n%s\n%s", i+1, err, block, out)
		}
		if !strings.Contains(string(out), says[i+1]) {
			t.Fatalf("command %d does not say %q:\n%s", i+1, says[i+1], out)
		}
	}
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("after the last command %s is there: %v", c.Dir, err)
	}
}

// shellBlocks are the fenced blocks of shell on a page.
func shellBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	for {
		_, after, ok := strings.Cut(page, "\n```sh\n")
		if !ok {
			return blocks
		}
		block, next, ok := strings.Cut(after, "\n```\n")
		if !ok {
			t.Fatal("a block of the page does not end")
		}
		blocks, page = append(blocks, block), next
	}
}
