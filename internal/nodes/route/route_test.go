package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/controller"
)

var cluster = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/48")}

func node(name string, cidrs ...string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u-uid"}, Spec: v1.NodeSpec{PodCIDRs: cidrs},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}}}
}

func to(name, cidr string) *cloudprovider.Route {
	return &cloudprovider.Route{TargetNode: types.NodeName(name), DestinationCIDR: cidr}
}

func show(routes []*cloudprovider.Route) (out []string) {
	for _, r := range routes {
		out = append(out, string(r.TargetNode)+" "+r.DestinationCIDR)
	}
	slices.Sort(out)
	return out
}

func TestCompare(t *testing.T) {
	hole := to("a", "10.0.9.0/24")
	hole.Blackhole = true
	moved := to("a", "10.0.1.0/24")
	moved.EnableNodeAddresses = true
	moved.TargetNodeAddresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.99"}}
	for _, c := range []struct {
		name           string
		nodes          []*v1.Node
		have           []*cloudprovider.Route
		delete, create []string
	}{
		{"all is right", []*v1.Node{node("a", "10.0.1.0/24", "fd00:0:0:1::/64")}, []*cloudprovider.Route{to("a", "10.0.1.0/24"),
			to("a", "fd00:0:0:1::/64")}, nil, nil},
		{"a new node", []*v1.Node{node("a", "10.0.1.0/24", "fd00:0:0:1::/64")}, nil, nil, []string{"a 10.0.1.0/24", "a fd00:0:0:1::/64"}},
		{"its node is gone", nil, []*cloudprovider.Route{to("a", "10.0.1.0/24")}, []string{"a 10.0.1.0/24"}, nil},
		{"another node has the range now", []*v1.Node{node("b", "10.0.1.0/24")}, []*cloudprovider.Route{to("a", "10.0.1.0/24")},
			[]string{"a 10.0.1.0/24"}, []string{"b 10.0.1.0/24"}},
		{"a blackhole", nil, []*cloudprovider.Route{hole}, []string{"a 10.0.9.0/24"}, nil},
		{"a range of somebody else", nil, []*cloudprovider.Route{to("x", "172.16.0.0/24")}, nil, nil},
		{"the node's address changed", []*v1.Node{node("a", "10.0.1.0/24")}, []*cloudprovider.Route{moved}, []string{"a 10.0.1.0/24"},
			[]string{"a 10.0.1.0/24"}},
		{"a node without ranges", []*v1.Node{node("a")}, nil, nil, nil},
	} {
		p := compare(c.nodes, c.have, cluster)
		if !slices.Equal(show(p.Delete), c.delete) || !slices.Equal(show(p.Create), c.create) {
			t.Errorf("%s: delete %v, create %v; want %v, %v", c.name, show(p.Delete), show(p.Create), c.delete, c.create)
		}
	}
}

// routes is a cloud that keeps routes and fails on demand.
type routes struct {
	mu   sync.Mutex
	have []*cloudprovider.Route
	fail bool
}

func (r *routes) ListRoutes(context.Context, string) ([]*cloudprovider.Route, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.have), nil
}

func (r *routes) CreateRoute(_ context.Context, _, hint string, route *cloudprovider.Route) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail {
		return errors.New("quota exceeded")
	}
	for _, h := range r.have {
		if h.DestinationCIDR == route.DestinationCIDR {
			return fmt.Errorf("%s has a route already", route.DestinationCIDR)
		}
	}
	c := *route
	c.Name = hint
	r.have = append(r.have, &c)
	return nil
}

func (r *routes) DeleteRoute(_ context.Context, _ string, route *cloudprovider.Route) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have = slices.DeleteFunc(r.have, func(h *cloudprovider.Route) bool { return h.DestinationCIDR == route.DestinationCIDR })
	return nil
}

func TestShellKeepsRoutesAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := fake.NewClientset(node("a", "10.0.1.0/24"), node("b", "10.0.2.0/24"))
		shared := informers.NewSharedInformerFactory(client, 0)
		cloud := &routes{fail: true, have: []*cloudprovider.Route{to("gone", "10.0.1.0/24")}}
		events := record.NewFakeRecorder(100)
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler),
				Recorders: controller.RecorderFunc(func(string) record.EventRecorder { return events })},
				Config{Routes: cloud, ClusterName: "c", ClusterCIDRs: cluster, Period: DefaultPeriod})
		}()
		check := func(status v1.ConditionStatus, reason string) {
			t.Helper()
			for _, name := range []string{"a", "b"} {
				n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Status != status || n.Status.Conditions[0].Reason != reason {
					t.Errorf("%s: %+v, want NetworkUnavailable=%s %s", name, n.Status.Conditions, status, reason)
				}
			}
		}
		time.Sleep(time.Second) // virtual
		synctest.Wait()
		check(v1.ConditionTrue, "NoRouteCreated")
		if e := <-events.Events; e != "Warning FailedToCreateRoute creating route 10.0.1.0/24 to a: quota exceeded" &&
			e != "Warning FailedToCreateRoute creating route 10.0.2.0/24 to b: quota exceeded" {
			t.Errorf("event %q", e)
		}
		cloud.mu.Lock()
		cloud.fail = false
		cloud.mu.Unlock()
		time.Sleep(2 * DefaultPeriod)
		synctest.Wait()
		check(v1.ConditionFalse, "RouteCreated")
		if got := show(cloud.have); !slices.Equal(got, []string{"a 10.0.1.0/24", "b 10.0.2.0/24"}) {
			t.Errorf("routes %v", got)
		}
		if err := client.CoreV1().Nodes().Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // no need to wait for the period
		synctest.Wait()
		if got := show(cloud.have); !slices.Equal(got, []string{"a 10.0.1.0/24"}) {
			t.Errorf("routes %v after b was deleted", got)
		}
		cancel()
		<-done
		shared.Shutdown()
	})
}
