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
		"route-reconciliation-period": "10s", "allocate-node-cidrs": "false", "cidr-allocator-type": "RangeAllocator",
		"configure-cloud-routes": "true",
		"leader-elect":           "true", "leader-elect-lease-duration": "15s", "leader-elect-renew-deadline": "10s",
		"leader-elect-retry-period":       "2s",
		"leader-elect-resource-namespace": "kube-system", "secure-port": "10257", "controllers": "[*]", "cluster-name": "kubernetes",
	} {
		if f := fs.Lookup(name); f == nil || f.DefValue != want {
			t.Errorf("--%s: %+v, want the default %s", name, f, want)
		}
	}
}

func TestWhatIsNotSupportedIsRefusedByName(t *testing.T) {
	for args, want := range map[string]string{
		"--root-ca-file=/x": `invalid argument "/x" for "--root-ca-file" flag: it belongs to a controller that ` +
			`berth controllers does not run`,
		"--concurrent-deployment-syncs=5":        "it belongs to a controller",
		"--feature-gates=A=true":                 "has no feature gates",
		"--enable-taint-manager":                 "leave out taint-eviction-controller",
		"--vmodule=a=4":                          "use -v and --logging-format",
		"--show-hidden-metrics-for-version=1":    "hides no metrics",
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

// upstreams are the flags of kube-controller-manager 1.36 that concern its node
// controllers and the process they run in.
const upstreams = `allocate-node-cidrs cidr-allocator-type cloud-config cloud-provider cluster-cidr cluster-name configure-cloud-routes
	contention-profiling controller-start-interval controllers enable-leader-migration external-cloud-volume-plugin feature-gates
	kube-api-burst kube-api-content-type kube-api-qps kubeconfig master
	leader-elect leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name
	leader-elect-resource-namespace leader-elect-retry-period leader-migration-config min-resync-period node-monitor-period ` +
	`node-sync-period profiling
	route-reconciliation-period use-service-account-credentials
	bind-address cert-dir disable-http2-serving http2-max-streams-per-connection permit-address-sharing permit-port-sharing secure-port
	tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file tls-sni-cert-key
	authentication-kubeconfig authentication-skip-lookup authentication-token-webhook-cache-ttl authentication-tolerate-lookup-failure ` +
	`client-ca-file
	requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
	requestheader-uid-headers requestheader-username-headers
	authorization-always-allow-paths authorization-kubeconfig authorization-webhook-cache-authorized-ttl ` +
	`authorization-webhook-cache-unauthorized-ttl
	node-cidr-mask-size node-cidr-mask-size-ipv4 node-cidr-mask-size-ipv6 service-cluster-ip-range
	large-cluster-size-threshold node-eviction-rate node-monitor-grace-period node-startup-grace-period secondary-node-eviction-rate
	unhealthy-zone-threshold terminated-pod-gc-threshold
	allow-metric-labels allow-metric-labels-manifest disabled-metrics show-hidden-metrics-for-version
	emulated-version log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
	logging-format v vmodule
	concurrent-node-syncs concurrent-node-status-updates node-status-update-frequency webhooks webhook-secure-port`

// No one who brings a command line of upstream's is told of an unknown flag: each
// is honoured, accepted without effect, or refused with the reason.
func TestEveryFlagOfUpstreamIsKnown(t *testing.T) {
	fs := newFlagSet(NewOptions())
	for _, name := range strings.Fields(upstreams) {
		if fs.Lookup(name) == nil {
			t.Errorf("--%s is unknown", name)
		}
	}
	for why, names := range foreign {
		for _, name := range strings.Fields(names) {
			if _, err := parse("--" + name + "=x"); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("--%s: %v, want the reason %q", name, err, why)
			}
		}
	}
}

func TestRangesFollowTheFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--cluster-cidr=10.0.0.0/16":                       "[] []",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16": "[{10.0.0.0/16 24}] []",
		"--allocate-node-cidrs --cluster-cidr=fd00::/56":   "[{fd00::/56 64}] []",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=26 " +
			"--service-cluster-ip-range=10.0.255.0/24": "[{10.0.0.0/16 26}] [10.0.255.0/24]",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16,fd00::/56 " +
			"--node-cidr-mask-size-ipv6=66": "[{10.0.0.0/16 24} {fd00::/56 66}] []",
		"--allocate-node-cidrs": "error: needs --cluster-cidr",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16,10.1.0.0/16":                        "error: of the same family",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16,fd00::/56 --node-cidr-mask-size=24": "error: not allowed with two families",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv6=64": "error: a family that --cluster-cidr " +
			"10.0.0.0/16 is not of",
		"--allocate-node-cidrs --cluster-cidr=10.0.0.0/8 --node-cidr-mask-size=30": "error: at most 16 more",
		"--allocate-node-cidrs --cluster-cidr=10.0.0":                              `error: --cluster-cidr "10.0.0"`,
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
