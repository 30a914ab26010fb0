package ipam

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/controller"
)

func four(cluster string, bits int) Range {
	return Range{Cluster: netip.MustParsePrefix(cluster), NodeBits: bits}
}

func node(name string, cidrs ...string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: cidrs}}
}

// rig runs the controller on a fake API in virtual time; settle lets it come to
// rest.
type rig struct {
	t      *testing.T
	client *fake.Clientset
	events *record.FakeRecorder
	err    error
}

func (r *rig) run(cfg Config, during func()) {
	ctx, cancel := context.WithCancel(context.Background())
	shared := informers.NewSharedInformerFactory(r.client, 0)
	e := controller.Env{Client: r.client, Informers: shared, Log: slog.New(slog.DiscardHandler),
		Recorders: controller.RecorderFunc(func(string) record.EventRecorder { return r.events })}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, e, cfg) }()
	r.waitIdle()
	during()
	r.waitIdle()
	cancel()
	r.err = <-done
	shared.Shutdown()
}

func (r *rig) waitIdle() {
	time.Sleep(time.Second) // virtual
	synctest.Wait()
}

func (r *rig) create(names ...string) {
	for _, n := range names {
		if _, err := r.client.CoreV1().Nodes().Create(context.Background(), node(n), metav1.CreateOptions{}); err != nil {
			r.t.Fatal(err)
		}
		r.waitIdle()
	}
}

func (r *rig) remove(name string) {
	if err := r.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.waitIdle()
}

func (r *rig) cidrs(name string) string {
	n, err := r.client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Join(n.Spec.PodCIDRs, ",")
}

func virtual(t *testing.T, f func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		f(&rig{t: t, client: fake.NewClientset(), events: record.NewFakeRecorder(100)})
	})
}

func TestDualStackReservedAndInOrder(t *testing.T) {
	virtual(t, func(r *rig) {
		r.run(Config{Ranges: []Range{four("10.0.0.0/22", 24), four("fd00::/62", 64)},
			Reserved: []netip.Prefix{netip.MustParsePrefix("10.0.1.128/25")}}, func() {
			r.create("a", "b", "c")
			for name, want := range map[string]string{"a": "10.0.0.0/24,fd00::/64", "b": "10.0.2.0/24,fd00:0:0:1::/64",
				"c": "10.0.3.0/24,fd00:0:0:2::/64"} {
				if got := r.cidrs(name); got != want {
					t.Errorf("%s got %s, want %s", name, got, want)
				}
			}
		})
	})
}

// A restart gives no range out twice, and forgets none.
func TestRestartGivesNoRangeTwice(t *testing.T) {
	virtual(t, func(r *rig) {
		for round := range 4 {
			r.run(Config{Ranges: []Range{four("10.0.0.0/21", 24)}}, func() {
				r.create(fmt.Sprintf("n%da", round), fmt.Sprintf("n%db", round))
				if round == 2 {
					r.remove("n0a")
				}
			})
		}
		seen := map[string]string{}
		nodes, err := r.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes.Items {
			if len(n.Spec.PodCIDRs) != 1 || seen[n.Spec.PodCIDRs[0]] != "" {
				t.Errorf("%s has %v, which %q has too", n.Name, n.Spec.PodCIDRs, seen[n.Spec.PodCIDRs[0]])
				continue
			}
			seen[n.Spec.PodCIDRs[0]] = n.Name
		}
		if len(seen) != 7 {
			t.Errorf("%d ranges in use, want 7", len(seen))
		}
	})
}

// A node that finds no range says so once, and gets the next that is released.
func TestExhaustionIsSaidAndEnds(t *testing.T) {
	virtual(t, func(r *rig) {
		r.run(Config{Ranges: []Range{four("10.0.0.0/23", 24)}}, func() {
			r.create("a", "b", "c")
			if got := r.cidrs("c"); got != "" {
				t.Fatalf("c got %s of a full cluster", got)
			}
			if e := <-r.events.Events; e != "Normal CIDRNotAvailable Node c status is now: CIDRNotAvailable" {
				t.Errorf("event %q", e)
			}
			r.remove("a")
			if got := r.cidrs("c"); got != "10.0.0.0/24" {
				t.Errorf("c got %q after a was deleted", got)
			}
			if len(r.events.Events) > 0 {
				t.Errorf("more events: %q", <-r.events.Events)
			}
		})
	})
}

// A node made again with a range of its own gives the old one back.
func TestRecreatedNodeHoldsOnlyWhatItHas(t *testing.T) {
	virtual(t, func(r *rig) {
		r.run(Config{Ranges: []Range{four("10.0.0.0/23", 24)}}, func() {
			r.create("a")
			ctx := context.Background()
			// Between two looks of the controller: it never sees the deletion.
			if err := r.client.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.client.CoreV1().Nodes().Create(ctx, node("a", "10.0.1.0/24"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			r.waitIdle()
			r.create("b")
			if got := r.cidrs("b"); got != "10.0.0.0/24" {
				t.Errorf("b got %q", got)
			}
		})
	})
}

func TestRangeOutsideTheClusterEndsTheStart(t *testing.T) {
	virtual(t, func(r *rig) {
		if err := r.client.Tracker().Add(node("old", "192.168.7.0/24")); err != nil {
			t.Fatal(err)
		}
		r.run(Config{Ranges: []Range{four("10.0.0.0/16", 24)}}, func() {})
		if r.err == nil || !strings.Contains(r.err.Error(), "Node old: spec.podCIDRs: 192.168.7.0/24 is outside cluster CIDR 10.0.0.0/16") {
			t.Errorf("ended with %v", r.err)
		}
	})
}

func TestPoolsRefuseTwoOfAFamily(t *testing.T) {
	if _, err := Pools([]Range{four("10.0.0.0/16", 24), four("10.1.0.0/16", 24)}, nil); err == nil {
		t.Error("two IPv4 ranges were taken")
	}
}
