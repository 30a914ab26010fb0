package cluster

import (
	"strings"
	"testing"
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
