package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// seeBridges has packets between two ports of a bridge pass the hooks that
// policies stand at. The tables of the bridge family would do without, but
// they cannot track connections on many kernels.
func seeBridges() error {
	var errs []error
	for _, file := range []string{"/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"} {
		now, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs, errors.New("the kernel does not pass bridged packets to netfilter: load the module br_netfilter"))
			return errors.Join(errs...)
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
