package nodes

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/nodes/cloud"
	"github.com/berth-dev/berth/internal/nodes/ipam"
	"github.com/berth-dev/berth/internal/nodes/route"
)

// provider has routes or has none; nothing here asks it anything else.
type provider struct {
	cloudprovider.Interface
	routes bool
}

func (p provider) Routes() (cloudprovider.Routes, bool) { return nil, p.routes }

type recorders struct{}

func (recorders) As(kubernetes.Interface) func(string) record.EventRecorder {
	return func(string) record.EventRecorder { return record.NewFakeRecorder(1) }
}

func configured() Config {
	client := fake.NewSimpleClientset()
	return Config{Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Log: slog.New(slog.DiscardHandler),
		Recorders: recorders{}}
}

// always are the controllers that need nothing configured.
const always = "node-lifecycle-controller taint-eviction-controller pod-garbage-collector-controller ttl-controller"

// TestWhichControllersRun: a controller that has nothing to do is not in the
// list, and each that is has upstream's name.
func TestWhichControllersRun(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*Config)
		want   string
	}{
		{"nothing configured", func(*Config) {}, always},
		{"pod CIDRs", func(c *Config) {
			c.Ranges = []ipam.Range{{Cluster: netip.MustParsePrefix("10.0.0.0/16"), NodeBits: 24}}
		}, "node-ipam-controller " + always},
		{"cloud", func(c *Config) { c.Cloud = &Cloud{Provider: provider{routes: true}} },
			always + " cloud-node-controller cloud-node-lifecycle-controller"},
		{"cloud with routes", func(c *Config) { c.Cloud = &Cloud{Provider: provider{routes: true}, Routes: true} },
			always + " cloud-node-controller cloud-node-lifecycle-controller node-route-controller"},
		{"routes of a cloud that has none", func(c *Config) { c.Cloud = &Cloud{Provider: provider{}, Routes: true} },
			always + " cloud-node-controller cloud-node-lifecycle-controller"},
		{"some enabled", func(c *Config) { c.Enabled = func(name string) bool { return strings.HasPrefix(name, "t") } },
			"taint-eviction-controller ttl-controller"},
		{"one enabled that has nothing to do", func(c *Config) {
			c.Enabled = func(name string) bool { return name == "node-ipam-controller" }
		},
			""},
	} {
		cfg := configured()
		c.change(&cfg)
		list, err := Controllers(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range list {
			got = append(got, one.Name)
			if one.Run == nil {
				t.Errorf("%s: %s cannot run", c.why, one.Name)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// TestIncompleteConfigs: each thing that must be set is missed at once, not
// when a controller first needs it.
func TestIncompleteConfigs(t *testing.T) {
	for name, change := range map[string]func(*Config){"Client": func(c *Config) { c.Client = nil },
		"Informers": func(c *Config) { c.Informers = nil }, "Log": func(c *Config) { c.Log = nil },
		"Recorders": func(c *Config) { c.Recorders = nil }} {
		cfg := configured()
		change(&cfg)
		if _, err := Controllers(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
		if err := Run(context.Background(), cfg); err == nil {
			t.Errorf("runs without %s", name)
		}
	}
}

// TestNamesAndAliases: names are distinct, and every alias leads to one of
// them: --controllers takes both.
func TestNamesAndAliases(t *testing.T) {
	names := Names()
	if len(names) != 8 || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("names %s", names)
	}
	want := map[string]string{"nodeipam": "node-ipam-controller", "nodelifecycle": "node-lifecycle-controller",
		"podgc": "pod-garbage-collector-controller", "ttl": "ttl-controller", "cloud-node": "cloud-node-controller",
		"cloud-node-lifecycle": "cloud-node-lifecycle-controller", "route": "node-route-controller"}
	got := Aliases()
	for short, long := range want {
		if got[short] != long || !slices.Contains(names, long) {
			t.Errorf("%s is %q, want %s", short, got[short], long)
		}
	}
	if len(got) != len(want) {
		t.Errorf("aliases %v", got)
	}
}

// TestCloudDefaults: zero values become upstream's, what is set stays, and the
// caller's value is not written to.
func TestCloudDefaults(t *testing.T) {
	given := Cloud{Routes: true}
	got := given.complete()
	if got.Limits != cloud.DefaultLimits || got.Refresh != cloud.DefaultRefresh || got.Monitor != cloud.DefaultMonitor ||
		got.Workers != 1 || got.RoutePeriod != route.DefaultPeriod || !got.Routes || given.Workers != 0 {
		t.Errorf("defaults %+v of %+v", got, given)
	}
	set := Cloud{Limits: cloud.Limits{Rate: 1}, Refresh: 1, Monitor: 2, Workers: 3, RoutePeriod: 4,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	if got := set.complete(); got.Limits != set.Limits || got.Refresh != 1 || got.Monitor != 2 || got.Workers != 3 ||
		got.RoutePeriod != 4 || len(got.ClusterCIDRs) != 1 {
		t.Errorf("settings %+v of %+v", got, set)
	}
	negative := Cloud{Workers: -1, Refresh: -time.Second}
	if got := negative.complete(); got.Workers != 1 || got.Refresh != cloud.DefaultRefresh {
		t.Errorf("negative values: %+v", got)
	}
}
