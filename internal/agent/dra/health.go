package dra

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/berth-dev/berth/internal/controller"
)

// healthLasts is how long a driver's word on a device counts if it does not
// say.
const healthLasts = 30 * time.Second

// deviceKey names a device on this node.
type deviceKey struct{ driver, pool, device string }

func (k deviceKey) String() string { return k.driver + "/" + k.pool + "/" + k.device }

// deviceHealth is what a driver said of a device.
type deviceHealth struct {
	status v1.ResourceHealthStatus
	until  time.Time
}

// at is the health that counts at a time.
func (h deviceHealth) at(now time.Time) v1.ResourceHealthStatus {
	if h.status == "" || now.After(h.until) {
		return v1.ResourceHealthStatusUnknown
	}
	return h.status
}

// Health is the health of the claimed devices of a pod's containers, by
// container, in the words of the pod's status.
func (m *Manager) Health(pod *v1.Pod, now time.Time) map[string][]v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]v1.ResourceStatus{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, use := range usedBy(pod, &list[i]) {
				info := m.claims.byName(pod, use.claim)
				if info == nil {
					continue
				}
				s := v1.ResourceStatus{Name: v1.ResourceName(use.status)}
				for _, key := range info.devices(use.request) {
					s.Resources = append(s.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(key.String()),
						Health: m.health[key].at(now)})
				}
				if len(s.Resources) > 0 {
					out[list[i].Name] = append(out[list[i].Name], s)
				}
			}
		}
	}
	return out
}

// devices are those of a claim for one request of it.
func (c *claimInfo) devices(request string) (out []deviceKey) {
	for _, driver := range slices.Sorted(maps.Keys(c.DriverState)) {
		for _, d := range c.DriverState[driver].Devices {
			if d.serves(request) {
				out = append(out, deviceKey{driver, d.PoolName, d.DeviceName})
			}
		}
	}
	return out
}

// healthOf makes a client of the version that a driver offers, nil if none.
func healthOf(conn *grpc.ClientConn, versions []string) healthv1.DRAResourceHealthClient {
	switch {
	case slices.Contains(versions, healthv1.DRAResourceHealthService):
		return healthv1.NewDRAResourceHealthClient(conn)
	case slices.Contains(versions, healthv1alpha1.DRAResourceHealthService):
		return healthv1.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(conn)}
	}
	return nil
}

// follow keeps what a driver says of its devices until the instance goes.
func (m *Manager) follow(ctx context.Context, driver string, client healthv1.DRAResourceHealthClient) {
	for retry := (controller.Retry{Backoff: retries}); ; {
		heard, err := m.listen(ctx, driver, client)
		m.silent(driver)
		if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
			return
		}
		if heard {
			retry.Succeeded()
		}
		pause := retry.Failed()
		m.cfg.Log.Warn("following the health of a driver's devices", "driver", driver, "err", err, "again", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// listen takes in one stream, and reports statements that no longer count.
func (m *Manager) listen(ctx context.Context, driver string, client healthv1.DRAResourceHealthClient) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
	if err != nil {
		return false, fmt.Errorf("NodeWatchResources of driver %s: %w", driver, err)
	}
	words, ended := make(chan *healthv1.NodeWatchResourcesResponse), make(chan error, 1)
	go func() { // ends with the stream, which ends with ctx
		for {
			word, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case words <- word:
			case <-ctx.Done():
			}
		}
	}()
	expiry := time.NewTimer(healthLasts)
	defer expiry.Stop()
	for {
		select {
		case err := <-ended:
			return heard, err
		case word := <-words:
			heard = true
			now := time.Now()
			expiry.Reset(m.hear(driver, word, now).Sub(now) + time.Millisecond)
		case <-expiry.C:
			m.notify(driver)
		}
	}
}

// hear notes what a driver said, and returns when the first of it stops to
// count.
func (m *Manager) hear(driver string, word *healthv1.NodeWatchResourcesResponse, now time.Time) time.Time {
	next := now.Add(healthLasts)
	m.mu.Lock()
	for _, d := range word.GetDevices() {
		lasts := healthLasts
		if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
			lasts = time.Duration(s) * time.Second
		}
		h := deviceHealth{status: v1.ResourceHealthStatusUnknown, until: now.Add(lasts)}
		switch d.GetHealth() {
		case healthv1.HealthStatus_HEALTHY:
			h.status = v1.ResourceHealthStatusHealthy
		case healthv1.HealthStatus_UNHEALTHY:
			h.status = v1.ResourceHealthStatusUnhealthy
		}
		m.health[deviceKey{driver, d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}] = h
		if h.until.Before(next) {
			next = h.until
		}
	}
	m.mu.Unlock()
	m.notify(driver)
	return next
}

// silent forgets what a driver said: it may have changed since.
func (m *Manager) silent(driver string) {
	m.mu.Lock()
	maps.DeleteFunc(m.health, func(key deviceKey, _ deviceHealth) bool { return key.driver == driver })
	m.mu.Unlock()
	m.notify(driver)
}

// notify calls Changed for the pods that have devices of a driver.
func (m *Manager) notify(driver string) {
	m.mu.Lock()
	pods := map[types.UID]bool{}
	for _, info := range m.claims {
		if _, ok := info.DriverState[driver]; ok {
			for pod := range info.PodUIDs {
				pods[types.UID(pod)] = true
			}
		}
	}
	m.mu.Unlock()
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		m.cfg.Changed(pod)
	}
}
