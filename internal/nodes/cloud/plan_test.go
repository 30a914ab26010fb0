package cloud

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
)

func addr(kind v1.NodeAddressType, a string) v1.NodeAddress {
	return v1.NodeAddress{Type: kind, Address: a}
}

func TestInitialise(t *testing.T) {
	other := v1.Taint{Key: "mine", Effect: v1.TaintEffectNoSchedule}
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"rack": "7", v1.LabelTopologyZone: "z"}},
		Spec: v1.NodeSpec{Taints: []v1.Taint{other, {Key: cloudapi.TaintExternalCloudProvider, Value: "true",
			Effect: v1.TaintEffectNoSchedule}}}}
	m := &cloudprovider.InstanceMetadata{ProviderID: "c://1", InstanceType: "big", Zone: "z", Region: "r",
		AdditionalLabels: map[string]string{"rack": "8", "row": "2", "node.kubernetes.io/evil": "x", "k8s.io/evil": "x",
			"notkubernetes.io/fine": "y"}}
	id, err := initialise(n, m)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"row": "2", "notkubernetes.io/fine": "y", v1.LabelInstanceType: "big", v1.LabelInstanceTypeStable: "big",
		v1.LabelFailureDomainBetaZone: "z", v1.LabelFailureDomainBetaRegion: "r", v1.LabelTopologyRegion: "r"}
	if fmt.Sprint(id.Labels) != fmt.Sprint(want) || id.ProviderID != "c://1" || fmt.Sprint(id.Taints) != fmt.Sprint([]v1.Taint{other}) {
		t.Errorf("got %+v, want labels %v", id, want)
	}
	n.Spec.ProviderID = "c://old"
	if id, _ := initialise(n, m); id.ProviderID != "c://old" {
		t.Errorf("a provider ID was replaced by %s", id.ProviderID)
	}
	n.Spec.ProviderID, m.ProviderID = "", ""
	if _, err := initialise(n, m); err == nil {
		t.Error("a node without provider ID was let in")
	}
}

func TestAddresses(t *testing.T) {
	in, ex, host := addr(v1.NodeInternalIP, "10.0.0.1"), addr(v1.NodeExternalIP, "203.0.113.1"), addr(v1.NodeHostName, "n")
	second := addr(v1.NodeInternalIP, "10.9.0.1")
	for _, c := range []struct {
		name        string
		has, known  []v1.NodeAddress
		provided    string
		want        []v1.NodeAddress
		changed, ok bool
	}{
		{"as they are", []v1.NodeAddress{in, host}, []v1.NodeAddress{in, host}, "", []v1.NodeAddress{in, host}, false, true},
		{"the cloud knows none", []v1.NodeAddress{in}, nil, "", nil, false, true},
		{"the agent's host name stays", []v1.NodeAddress{host}, []v1.NodeAddress{in, ex}, "", []v1.NodeAddress{in, ex, host}, true, true},
		{"the cloud's host name wins", []v1.NodeAddress{addr(v1.NodeHostName, "old")}, []v1.NodeAddress{in, host}, "",
			[]v1.NodeAddress{in, host}, true, true},
		{"the provided address is first and alone of its type", nil, []v1.NodeAddress{in, second, ex}, "10.9.0.1",
			[]v1.NodeAddress{second, ex}, true, true},
		{"the provided address is unknown", nil, []v1.NodeAddress{in}, "10.9.9.9", nil, false, false},
	} {
		n := &v1.Node{Status: v1.NodeStatus{Addresses: c.has}}
		if c.provided != "" {
			n.Annotations = map[string]string{cloudapi.AnnotationAlphaProvidedIPAddr: c.provided}
		}
		out, changed, err := addresses(n, c.known)
		if (err == nil) != c.ok || changed != c.changed || fmt.Sprint(out) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, changed %v, %v; want %v, %v", c.name, out, changed, err, c.want, c.changed)
		}
		if err != nil && !strings.Contains(err.Error(), "10.9.9.9") {
			t.Errorf("%s: the error does not name the address: %v", c.name, err)
		}
	}
}

func TestFollow(t *testing.T) {
	for _, ready := range []v1.ConditionStatus{"", v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown} {
		for _, tainted := range []bool{false, true} {
			for _, m := range []InstanceState{Running, Stopped, Absent} {
				n := &v1.Node{}
				if ready != "" {
					n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
				}
				if tainted {
					n.Spec.Taints = []v1.Taint{shutdownTaint}
				}
				want := Nothing
				switch {
				case ready == v1.ConditionTrue && tainted:
					want = Untaint
				case ready != v1.ConditionTrue && m == Absent:
					want = Delete
				case ready != v1.ConditionTrue && m == Stopped && !tainted:
					want = Taint
				}
				if got := follow(n, m); got != want {
					t.Errorf("Ready %q, tainted %v, machine %d: %d, want %d", ready, tainted, m, got, want)
				}
			}
		}
	}
}
