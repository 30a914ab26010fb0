package launch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func newFlagSet(o *Options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("controllers", pflag.ContinueOnError)
	o.AddFlags(fs)
	return fs
}

func parse(args ...string) (*Options, error) {
	o := NewOptions()
	if err := newFlagSet(o).Parse(args); err != nil {
		return nil, err
	}
	return o, o.Validate()
}

func TestDefaultsAreUpstreams(t *testing.T) {
	fs := newFlagSet(NewOptions())
	for name, want := range map[string]string{
		"node-monitor-period": "5s", "node-monitor-grace-period": "50s", "node-startup-grace-period": "1m0s", "node-eviction-rate": "0.1",
		"secondary-node-eviction-rate": "0.01", "unhealthy-zone-threshold": "0.55", "large-cluster-size-threshold": "50",
		"terminated-pod-gc-threshold": "12500", "node-status-update-frequency": "5m0s", "concurrent-node-syncs": "1",
		"route-reconciliation-period": "10s", "allocate-node-cidrs": "false", "cidr-allocator-type": "RangeAllocator", "configure-cloud-routes": "true",
		"leader-elect": "true", "leader-elect-lease-duration": "15s", "leader-elect-renew-deadline": "10s", "leader-elect-retry-period": "2s",
		"leader-elect-resource-namespace": "kube-system", "secure-port": "10257", "controllers": "[*]", "cluster-name": "kubernetes",
	} {
		if f := fs.Lookup(name); f == nil || f.DefValue != want {
			t.Errorf("--%s: %+v, want the default %s", name, f, want)
		}
	}
}

func TestWhatIsNotSupportedIsRefusedByName(t *testing.T) {
	for args, want := range map[string]string{
		"--root-ca-file=/x":                      `invalid argument "/x" for "--root-ca-file" flag: it belongs to a controller that berth controllers does not run`,
		"--concurrent-deployment-syncs=5":        "it belongs to a controller",
		"--no-such-flag":                         "unknown flag",
		"--enable-leader-migration":              "--enable-leader-migration: not supported",
		"--cidr-allocator-type=CloudAllocator":   `--cidr-allocator-type "CloudAllocator": only RangeAllocator`,
		"--controllers=*,deployment":             `"deployment" is not in the list of known controllers`,
		"--node-eviction-rate=-1":                "must not be negative",
		"--logging-format=xml":                   "allowed are text and json",
		"--leader-elect-resource-lock=endpoints": `must be "leases"`,
	} {
		if _, err := parse(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestRangesFollowTheFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--cluster-cidr=10.0.0.0/16":                       "[] []",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16": "[{10.0.0.0/16 24}] []",
		"--allocate-node-cidrs --cluster-cidr=fd00::/56":   "[{fd00::/56 64}] []",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=26 --service-cluster-ip-range=10.0.255.0/24": "[{10.0.0.0/16 26}] [10.0.255.0/24]",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16,fd00::/56 --node-cidr-mask-size-ipv6=66":                           "[{10.0.0.0/16 24} {fd00::/56 66}] []",
		"--allocate-node-cidrs": "error: needs --cluster-cidr",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16,10.1.0.0/16":                        "error: of the same family",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16,fd00::/56 --node-cidr-mask-size=24": "error: not allowed with two families",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv6=64":      "error: a family that --cluster-cidr 10.0.0.0/16 is not of",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/8 --node-cidr-mask-size=30":            "error: at most 16 more",
		"--allocate-node-cidrs --cluster-cidr=10.0.0":                                         `error: --cluster-cidr "10.0.0"`,
	} {
		o, err := parse(strings.Fields(args)...)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
			if w, ok := strings.CutPrefix(want, "error: "); ok && strings.Contains(err.Error(), w) {
				continue
			}
		} else {
			ranges, reserved, _ := o.Ranges()
			got = fmt.Sprint(ranges, reserved)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}
