//go:build vm

package proxy

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// hidden are modules of a distribution's kernel, and what is missing where one
// cannot be loaded.
var hidden = map[string]string{
	"nf_tables":       "nftables (CONFIG_NF_TABLES",
	"nft_chain_nat":   "chains that translate addresses (CONFIG_NFT_NAT)",
	"nft_numgen":      "random numbers (CONFIG_NFT_NUMGEN",
	"nft_nat":         "translating destinations (CONFIG_NFT_NAT)",
	"nft_masq":        "masquerading (CONFIG_NFT_MASQ)",
	"nft_fib_ipv4":    "telling the node's own addresses (CONFIG_NFT_FIB_IPV4",
	"nft_reject_ipv4": "refusing before routing (CONFIG_NFT_REJECT_IPV4",
	"nft_ct":          "the state of connections (CONFIG_NFT_CT)",
}

// TestKernelWithoutModules hides one module after another from a real kernel:
// the probe names that, and nothing else.
func TestKernelWithoutModules(t *testing.T) {
	const file = "/etc/modprobe.d/hidden-by-test.conf"
	defer os.Remove(file)
	for module, want := range hidden {
		if err := os.WriteFile(file, []byte("install "+module+" /bin/false\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		unload(t)
		err := rules.ProbeHost(model.V4)
		var lack *rules.Lack
		if !errors.As(err, &lack) || len(lack.Features) != 1 || !strings.HasPrefix(lack.Features[0], want) {
			t.Errorf("without %s: got %v, want that %s) is missing", module, err, want)
		}
		t.Logf("without %s: %v", module, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := rules.ProbeHost(model.V4, model.V6); err != nil {
		t.Errorf("with all modules: %v", err)
	}
}

// unload removes nftables and all that belongs to it, once the namespaces of
// earlier probes have ended.
func unload(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(testtimeout.Scale(20 * time.Second)); ; {
		out, err := os.ReadFile("/proc/modules")
		if err != nil {
			t.Fatal(err)
		}
		left = nil
		for line := range strings.Lines(string(out)) {
			if name := strings.Fields(line)[0]; strings.HasPrefix(name, "nft_") || name == "nf_tables" {
				left = append(left, name)
				_ = exec.Command("rmmod", name).Run() // used by another one: next time
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still loaded: %v", left)
		}
		time.Sleep(10 * time.Millisecond) // the kernel tells no one when a namespace is gone
	}
}
