package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// bridgeSettings are there once packets between two ports of a bridge can pass
// netfilter.
const bridgeSettings = "/proc/sys/net/bridge"

// LoadBridgeFilter loads the module without which Services and policies miss
// packets between pods on one bridge. Nothing else loads it: a fresh Debian has
// it, but not in its kernel. It says whether it was loaded now.
func LoadBridgeFilter(ctx context.Context) (loaded bool, err error) {
	return load(ctx, "br_netfilter", bridgeSettings)
}

// load loads a module unless what it brings is there.
func load(ctx context.Context, module, brings string) (bool, error) {
	if _, err := os.Stat(brings); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	out, err := exec.CommandContext(ctx, "modprobe", module).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("loading the kernel module %s: %w: %s", module, err, strings.TrimSpace(string(out)))
	}
	return true, nil
}
