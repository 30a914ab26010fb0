package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// bridgeSettings are there with br_netfilter.
const bridgeSettings = "/proc/sys/net/bridge"

// seeBridges has packets between two ports of a bridge pass the hooks that
// policies stand at. The tables of the bridge family would do without, but
// they cannot track connections on many kernels. It looks again each time: the
// module may be loaded later.
func seeBridges(dir string, v4, v6 bool) error {
	var errs []error
	for name, wanted := range map[string]bool{"bridge-nf-call-iptables": v4, "bridge-nf-call-ip6tables": v6} {
		if !wanted {
			continue
		}
		file := filepath.Join(dir, name)
		now, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return errors.New("the kernel does not pass bridged packets to netfilter: load the module br_netfilter")
		case err != nil:
			errs = append(errs, fmt.Errorf("asking whether bridged packets pass netfilter: %w", err))
		case string(bytes.TrimSpace(now)) == "0":
			if err := os.WriteFile(file, []byte("1\n"), 0); err != nil {
				errs = append(errs, fmt.Errorf("having bridged packets pass netfilter: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}
