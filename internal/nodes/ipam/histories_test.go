package ipam

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// history drives the controller's steps on a small cluster: nodes come and go,
// the cache is behind, writes fail after or before they count, the controller
// crashes at every step. It returns what rule broke, "" for none.
func history(t *testing.T, client *fake.Clientset, seed uint64, bug string) string {
	r := rand.New(rand.NewPCG(seed, 3))
	ctx := context.Background()
	for i := range 9 {
		_ = client.CoreV1().Nodes().Delete(ctx, fmt.Sprintf("n%d", i), metav1.DeleteOptions{}) // of the history before, if there
	}
	client.ClearActions()
	var c *reconciler
	start := func() {
		c = &reconciler{Env: controller.Env{Client: client, Log: slog.New(slog.DiscardHandler), Journal: journal.Discard},
			owned: map[string][]netip.Prefix{}, waiting: map[string]bool{},
			nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil),
			queue: controller.NewQueue()}
		var err error
		if c.pools, err = Pools([]Range{four("10.0.0.0/21", 24)}, nil); err != nil {
			t.Fatal(err)
		}
		if c.meter, err = newMeter(nil); err != nil {
			t.Fatal(err)
		}
		all, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			if bug != "forget at start" {
				if err := c.learn(&all.Items[i]); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.nodes.Add(&all.Items[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	start()
	look := func(name string) { // one event of the watch arrives
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			n = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := c.nodes.Delete(n); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := c.nodes.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	work := func(name string) {
		o, found, err := c.nodes.GetByKey(name)
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			c.release(name)
			return
		}
		n := o.(*v1.Node)
		if bug == "release at conflict" {
			c.mu.Lock()
			c.free(c.owned[name])
			c.mu.Unlock()
		}
		if err := c.sync(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	for step := range 60 {
		name := fmt.Sprintf("n%d", r.IntN(9))
		switch r.IntN(7) {
		case 0, 1:
			// it may be there
			_, _ = client.CoreV1().Nodes().Create(ctx,
				&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprint(step))}}, metav1.CreateOptions{})
		case 2:
			if _, cached, err := c.nodes.GetByKey(name); err == nil && cached {
				_ = client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}) // it may be gone
			}
		case 3, 4:
			look(name)
		case 5:
			work(name)
			if fault := twice(t, client); fault != "" {
				return fault
			}
		case 6:
			start()
		}
	}
	return ""
}

// twice finds a range that two nodes have.
func twice(t *testing.T, client *fake.Clientset) string {
	seen := map[string]string{}
	all, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all.Items {
		for _, cidr := range n.Spec.PodCIDRs {
			if other := seen[cidr]; other != "" {
				return fmt.Sprintf("%s is of %s and %s", cidr, other, n.Name)
			}
			seen[cidr] = n.Name
		}
	}
	return ""
}

// No range is ever two nodes', whatever the order of events, crashes and
// restarts.
func TestNoRangeIsGivenTwice(t *testing.T) {
	client := fake.NewClientset()
	for seed := range uint64(200) {
		if fault := history(t, client, seed, ""); fault != "" {
			t.Fatalf("seed %d: %s", seed, fault)
		}
	}
}

// The rule above can be broken.
func TestSeededBugsAreFound(t *testing.T) {
	client := fake.NewClientset()
	for _, bug := range []string{"forget at start", "release at conflict"} {
		found := false
		for seed := uint64(0); seed < 200 && !found; seed++ {
			found = history(t, client, seed, bug) != ""
		}
		if !found {
			t.Errorf("200 histories with the bug %q gave no range twice", bug)
		}
	}
}
