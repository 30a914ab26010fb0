package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/controller"
)

func apiNode(name, ip string, ready v1.ConditionStatus, answers string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{
		Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: ip}},
		Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}
	if answers != "" {
		n.Annotations = map[string]string{Annotation: answers}
	}
	return n
}

func text(all []*discovery.EndpointSlice) string {
	var lines []string
	for _, s := range all {
		e := s.Endpoints[0]
		line := fmt.Sprintf("%s %s:%d ready=%t", s.Name, e.Addresses[0], *s.Ports[0].Port, *e.Conditions.Ready)
		if e.NodeName != nil {
			line += " for " + e.Hints.ForNodes[0].Name
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestEndpointsOfClusterDNS(t *testing.T) {
	own := netip.MustParseAddrPort("192.0.2.1:10053")
	for _, tc := range []struct {
		name  string
		nodes []*v1.Node
		want  string
	}{
		{"no node yet", nil, "kube-dns-cp 192.0.2.1:10053 ready=true"},
		{"this machine is a node", []*v1.Node{apiNode("cp", "192.0.2.1", v1.ConditionTrue, "192.0.2.1:10053")},
			"kube-dns-cp 192.0.2.1:10053 ready=true for cp"},
		{"two nodes with ports of their own", []*v1.Node{apiNode("a", "192.0.2.2", v1.ConditionTrue, "192.0.2.2:10053"),
			apiNode("b", "192.0.2.3", v1.ConditionTrue, "192.0.2.3:53")},
			"kube-dns-a 192.0.2.2:10053 ready=true for a\nkube-dns-b 192.0.2.3:53 ready=true for b"},
		{"a node that does not say", []*v1.Node{apiNode("a", "192.0.2.2", v1.ConditionTrue, "")}, "kube-dns-cp 192.0.2.1:10053 ready=true"},
		{"a lost node", []*v1.Node{apiNode("a", "192.0.2.2", v1.ConditionUnknown, "192.0.2.2:10053"),
			apiNode("b", "192.0.2.3", v1.ConditionTrue, "192.0.2.3:53")},
			"kube-dns-a 192.0.2.2:10053 ready=false for a\nkube-dns-b 192.0.2.3:53 ready=true for b"},
		{"only lost nodes", []*v1.Node{apiNode("a", "192.0.2.2", v1.ConditionUnknown, "192.0.2.2:10053")},
			"kube-dns-a 192.0.2.2:10053 ready=false for a\nkube-dns-cp 192.0.2.1:10053 ready=true"},
		{"an address of somebody else", []*v1.Node{apiNode("a", "192.0.2.2", v1.ConditionTrue, "203.0.113.7:53"),
			apiNode("b", "192.0.2.3", v1.ConditionTrue, "nonsense")},
			"kube-dns-cp 192.0.2.1:10053 ready=true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := text(endpointsOf(tc.nodes, "cp", own)); got != tc.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tc.want)
			}
		})
	}
}

// TestPublisherFollowsNodes waits for events of the slices, not for time.
func TestPublisherFollowsNodes(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	old := hostSlice(ServiceName, netip.MustParseAddrPort("192.0.2.1:10053"), true)
	other := hostSlice(sliceName("cp2"), netip.MustParseAddrPort("192.0.2.9:10053"), true)
	client := fake.NewClientset(old, other)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	shared := informers.NewSharedInformerFactory(client, 0)
	defer shared.Shutdown()
	seen, err := client.DiscoveryV1().EndpointSlices(Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	p := Publisher{ClusterIP: net.ParseIP("10.96.0.10"), Host: "cp", Own: netip.MustParseAddrPort("192.0.2.1:10053")}
	ended := make(chan error, 2)
	env := controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler)}
	go func() { ended <- p.Controller().Start(env, nil)(ctx) }()
	at := netip.MustParseAddrPort("192.0.2.2:20053")
	go func() { ended <- Advertise(ctx, client, shared, "a", at) }()
	until := func(want string) {
		t.Helper()
		last := ""
		for {
			list, err := client.DiscoveryV1().EndpointSlices(Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var all []*discovery.EndpointSlice
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
			if last = text(all); last == want {
				return
			}
			select {
			case e, ok := <-seen.ResultChan():
				if !ok || e.Type == apiwatch.Error {
					t.Fatal("the watch ended")
				}
			case err := <-ended:
				t.Fatalf("ended with %v; slices:\n%s\nwant:\n%s", err, last, want)
			}
		}
	}
	const elsewhere = "\nkube-dns-cp2 192.0.2.9:10053 ready=true"
	until("kube-dns-cp 192.0.2.1:10053 ready=true" + elsewhere)
	if _, err := client.CoreV1().Nodes().Create(ctx, apiNode("a", "192.0.2.2", v1.ConditionTrue, ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("kube-dns-a 192.0.2.2:20053 ready=true for a" + elsewhere)
	if _, err := client.CoreV1().Nodes().Update(ctx, apiNode("a", "192.0.2.2", v1.ConditionUnknown, at.String()),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("kube-dns-a 192.0.2.2:20053 ready=false for a\nkube-dns-cp 192.0.2.1:10053 ready=true" + elsewhere)
	if err := client.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("kube-dns-cp 192.0.2.1:10053 ready=true" + elsewhere)
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestPublishRepairsTheService(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	ip := net.ParseIP("10.96.0.10")
	for range 2 {
		if err := publish(ctx, client, ip); err != nil {
			t.Fatal(err)
		}
	}
	s, err := client.CoreV1().Services(Namespace).Get(ctx, ServiceName, metav1.GetOptions{})
	if err != nil || s.Spec.ClusterIP != "10.96.0.10" || len(s.Spec.Ports) != 2 {
		t.Errorf("%v, %v", s, err)
	}
	if err := publish(ctx, client, net.ParseIP("10.96.0.11")); err == nil || !strings.Contains(err.Error(), "10.96.0.10") {
		t.Errorf("another address: %v", err)
	}
	bad := Publisher{ClusterIP: ip, Own: netip.MustParseAddrPort("[::1]:53")}
	if err := bad.Run(ctx, controller.Env{}); err == nil {
		t.Error("a server of another family than the Service is taken")
	}
}
