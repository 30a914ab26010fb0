package cloud

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	cloudprovider "k8s.io/cloud-provider"
)

// Batcher is what a provider may offer beside InstancesV2: the hosts of many
// nodes for one call. Nodes it cannot tell about are left out of the answer.
type Batcher interface {
	InstanceStates(ctx context.Context, nodes []*v1.Node) (map[string]InstanceState, error)
}

// Notifier is what a provider may offer that knows when its hosts change; f
// is called after each change until stop is called.
type Notifier interface {
	Notify(f func()) (stop func())
}

// Asker asks a provider, never faster than a rate and never more than a few
// questions at a time. One Asker is shared by all controllers of a provider.
type Asker struct {
	cloud     cloudprovider.Interface
	instances cloudprovider.InstancesV2
	limit     flowcontrol.RateLimiter
	slots     chan struct{}
}

// Limits are those of an Asker: calls a second with bursts, and at a time.
type Limits struct {
	Rate   float32
	Burst  int
	AtOnce int
}

// NewAsker refuses providers without InstancesV2, which all that live outside
// Kubernetes itself have.
func NewAsker(c cloudprovider.Interface, l Limits) (*Asker, error) {
	v2, ok := c.InstancesV2()
	if !ok || v2 == nil {
		return nil, fmt.Errorf("cloud provider %q does not implement InstancesV2, the only way supported to ask about machines",
			c.ProviderName())
	}
	return &Asker{cloud: c, instances: v2, limit: flowcontrol.NewTokenBucketRateLimiter(l.Rate, l.Burst),
		slots: make(chan struct{}, l.AtOnce)}, nil
}

// acquire waits for a slot and a rate-limiter token for one call; done frees the slot.
func (a *Asker) acquire(ctx context.Context) (done func(), err error) {
	select {
	case a.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := a.limit.Wait(ctx); err != nil {
		<-a.slots
		return nil, err
	}
	return func() { <-a.slots }, nil
}

// Metadata is the node's machine as the provider describes it.
func (a *Asker) Metadata(ctx context.Context, n *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	done, err := a.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	m, err := a.instances.InstanceMetadata(ctx, n)
	if err == nil && m == nil {
		err = errors.New("the cloud provider described no machine")
	}
	if err != nil {
		return nil, fmt.Errorf("asking cloud provider %q for the machine of Node %s: %w", a.cloud.ProviderName(), n.Name, err)
	}
	return m, nil
}

// InstanceStates returns the states of the nodes' hosts, by node name. A node whose host
// the cloud could not tell of is left out, and the error says why.
func (a *Asker) InstanceStates(ctx context.Context, nodes []*v1.Node) (map[string]InstanceState, error) {
	if b, ok := a.instances.(Batcher); ok {
		done, err := a.acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		m, err := b.InstanceStates(ctx, nodes)
		if err != nil {
			return m, fmt.Errorf("asking cloud provider %q for %d machines: %w", a.cloud.ProviderName(), len(nodes), err)
		}
		return m, nil
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	out := map[string]InstanceState{}
	for _, n := range nodes {
		wg.Go(func() {
			m, err := a.instanceState(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			out[n.Name] = m
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

func (a *Asker) instanceState(ctx context.Context, n *v1.Node) (InstanceState, error) {
	done, err := a.acquire(ctx)
	if err != nil {
		return Running, err
	}
	defer done()
	exists, err := a.instances.InstanceExists(ctx, n)
	if err != nil {
		return Running, fmt.Errorf("asking cloud provider %q whether the machine of Node %s exists: %w", a.cloud.ProviderName(), n.Name,
			err)
	}
	if !exists {
		return Absent, nil
	}
	if err := a.limit.Wait(ctx); err != nil {
		return Running, err
	}
	off, err := a.instances.InstanceShutdown(ctx, n)
	switch {
	case errors.Is(err, cloudprovider.NotImplemented):
		return Running, nil
	case err != nil:
		return Running, fmt.Errorf("asking cloud provider %q whether the machine of Node %s is shut down: %w", a.cloud.ProviderName(),
			n.Name, err)
	case off:
		return Stopped, nil
	}
	return Running, nil
}

// notify calls f at each change a provider tells of, if it tells.
func (a *Asker) notify(f func()) (stop func()) {
	if n, ok := a.cloud.(Notifier); ok {
		return n.Notify(f)
	}
	return func() {}
}
