package cloud

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudfake "k8s.io/cloud-provider/fake"
)

// counting is a cloud that notes how it is asked.
type counting struct {
	*cloudfake.Cloud
	mu             sync.Mutex
	calls, at, top int
}

func (c *counting) InstancesV2() (cloudprovider.InstancesV2, bool) { return c, true }

func (c *counting) InstanceExists(context.Context, *v1.Node) (bool, error) {
	c.mu.Lock()
	c.calls++
	c.at++
	c.top = max(c.top, c.at)
	c.mu.Unlock()
	time.Sleep(100 * time.Millisecond) // virtual: a slow cloud
	c.mu.Lock()
	c.at--
	c.mu.Unlock()
	return true, nil
}

func (c *counting) InstanceShutdown(context.Context, *v1.Node) (bool, error) {
	return false, cloudprovider.NotImplemented
}

func TestAskerIsBoundedInRateAndNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{Cloud: &cloudfake.Cloud{}}
		a, err := NewAsker(c, Limits{Rate: 10, Burst: 5, AtOnce: 3})
		if err != nil {
			t.Fatal(err)
		}
		var nodes []*v1.Node
		for i := range 50 {
			nodes = append(nodes, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}})
		}
		began := time.Now()
		got, err := a.InstanceStates(t.Context(), nodes)
		if err != nil || len(got) != 50 {
			t.Fatalf("%d answers, %v", len(got), err)
		}
		// 100 calls: one of each kind a node, 5 at once and then 10 a second.
		if took := time.Since(began); took < 9*time.Second {
			t.Errorf("100 calls took %s, faster than the rate allows", took)
		}
		if c.calls != 50 || c.top > 3 {
			t.Errorf("%d calls, %d at a time", c.calls, c.top)
		}
	})
}

func TestAskerNamesWhomItCouldNotAskFor(t *testing.T) {
	c := &cloudfake.Cloud{EnableInstancesV2: true, ErrByProviderID: errors.New("throttled")}
	a, err := NewAsker(c, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.InstanceStates(t.Context(), []*v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}})
	if err == nil || len(got) != 0 {
		t.Errorf("%v, %v: a cloud that does not answer says nothing of its machines", got, err)
	}
}

func TestAskerRefusesOldProviders(t *testing.T) {
	if _, err := NewAsker(&cloudfake.Cloud{}, DefaultLimits); err == nil {
		t.Error("a provider without InstancesV2 was taken")
	}
}
