package proxy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// TestKernelListing checks that the nft program can print the rules, and load
// what it printed: administrators and other tools list the whole ruleset.
func TestKernelListing(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("the nft program is not installed")
	}
	for _, f := range []model.Family{model.V4, model.V6} {
		w := newSuite(t, f)
		w.fill(w.w)
		w.sync()
		list := func(args ...string) string {
			out, err := exec.Command("nft", args...).CombinedOutput()
			if err != nil {
				t.Fatalf("nft %v: %v\n%s", args, err, out)
			}
			return string(out)
		}
		var first string
		w.must(netnstest.In(w.node, func() error { first = list("list", "ruleset"); return nil }))
		for _, want := range []string{"numgen random mod 2 map @endpoints", "numgen random mod 1 map @nodeport-endpoints",
			"th dport map @sticky", "meta priority . numgen random mod 2 map @sticky-picks",
			"meta priority . numgen random mod 1 offset 16777216 map @sticky-picks", "to meta priority map @sticky-endpoints",
			"timeout 3h : meta priority }", "delete @affinity-10800", "meta priority >= c000:0 meta priority set none",
			"th dport @vip-2 goto vip-2", "!= @source-ranges drop", "masquerade fully-random", "th dport . numgen random mod 4 :"} {
			if !strings.Contains(first, want) {
				t.Errorf("%s: the listing has no %q", f, want)
			}
		}
		file := filepath.Join(t.TempDir(), "rules")
		w.must(os.WriteFile(file, []byte(first), 0o600))
		again := netnstest.New(t)
		w.must(netnstest.In(again, func() error {
			list("-f", file)
			if second := list("list", "ruleset"); second != first {
				t.Errorf("%s: reloaded rules differ:\n%s\n---\n%s", f, first, second)
			}
			return nil
		}))
	}
}
