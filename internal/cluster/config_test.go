package cluster

import (
	"os"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

func TestSettingsAreForLife(t *testing.T) {
	kept := Settings{ClusterCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16", ClusterDomain: "cluster.local", NodeName: "a",
		Ports: PortsFrom(7000)}
	same := Settings{}
	if err := same.merge(kept); err != nil || same.ClusterCIDR != kept.ClusterCIDR || same.Ports != kept.Ports {
		t.Fatalf("a start without flags must use what is kept: %+v, %v", same, err)
	}
	other := Settings{ServiceCIDR: "10.9.0.0/16"}
	if err := other.merge(kept); err == nil || !strings.Contains(err.Error(), "--service-cidr 10.9.0.0/16") ||
		!strings.Contains(err.Error(), "10.2.0.0/16") {
		t.Fatalf("a changed service range must be refused by name: %v", err)
	}
	moved := Settings{Ports: Ports{API: 9000}}
	if err := moved.merge(kept); err != nil || moved.Ports.API != 9000 || moved.Ports.Agent != 7001 {
		t.Fatalf("ports may move: %+v, %v", moved.Ports, err)
	}
}

// TestHardenedIsKept: what --hardened chose holds at later starts without the
// flag, until --hardened=false, which is kept as well.
func TestHardenedIsKept(t *testing.T) {
	dir := t.TempDir()
	start := func(flag *bool) *Config {
		t.Helper()
		c := &Config{DataDir: dir, NodeIP: "192.0.2.1", bundle: bundle{BundleDir: dir}, Settings: Settings{Hardened: flag, NodeName: "n"}}
		if err := c.Complete(); err != nil {
			t.Fatal(err)
		}
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := start(nil); c.Hardened != nil {
		t.Errorf("a cluster that was never hardened is: %v", *c.Hardened)
	}
	if text, err := os.ReadFile(start(nil).settingsFile()); err != nil || strings.Contains(string(text), "hardened") {
		t.Errorf("settings name what nobody chose: %s, %v", text, err)
	}
	for _, step := range []struct{ flag, want *bool }{
		{ptr.To(true), ptr.To(true)}, {nil, ptr.To(true)}, {nil, ptr.To(true)}, {ptr.To(false), ptr.To(false)}, {nil, ptr.To(false)},
	} {
		if c := start(step.flag); !ptr.Equal(c.Hardened, step.want) {
			t.Errorf("hardened is %v, want %v", ptr.Deref(c.Hardened, false), *step.want)
		}
	}
}
