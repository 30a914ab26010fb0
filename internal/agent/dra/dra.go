// Package dra prepares the devices of resource claims for pods through the
// drivers of this node (dynamic resource allocation), and keeps what drivers
// publish of the node in step with which drivers there are.
package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// callMax bounds one call of a driver.
const callMax = 45 * time.Second

// Config is what a Manager works with. Client may be nil: there are no claims
// then. All else is required.
type Config struct {
	Log      *slog.Logger
	RootDir  string
	NodeName string
	Client   kubernetes.Interface
	// Changed gets the pods whose devices' health may have changed.
	Changed func(types.UID)
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Manager prepares claims. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	drivers *drivers
	metrics *metrics

	// preparing is held while drivers work: a claim that two pods share must
	// not be prepared for one while it is unprepared for the other.
	preparing sync.Mutex
	mu        sync.Mutex
	claims    ledger
	// health is what drivers said of devices.
	health map[deviceKey]deviceHealth
}

// New takes up what a former agent left.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil || cfg.RootDir == "" || cfg.NodeName == "" || cfg.Changed == nil {
		return nil, errors.New("configuring resource claims: Log, RootDir, NodeName and Changed are required")
	}
	m := &Manager{cfg: cfg, drivers: newDrivers(cfg), health: map[deviceKey]deviceHealth{}}
	var err error
	if m.claims, err = load(filepath.Join(cfg.RootDir, fileName)); err != nil {
		return nil, err
	}
	m.metrics, err = newMetrics(cfg.Metrics, m)
	return m, err
}

// Prepare makes the devices of all of a pod's claims ready. It may be
// repeated.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) error {
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	began := time.Now()
	err := m.prepare(ctx, pod)
	m.metrics.done("PrepareResources", began, err)
	return err
}

func (m *Manager) prepare(ctx context.Context, pod *v1.Pod) error {
	claims, err := m.claimsOf(ctx, pod)
	if err != nil || len(claims) == 0 {
		return err
	}
	m.preparing.Lock()
	defer m.preparing.Unlock()
	open := map[string][]*drav1.Claim{} // by driver
	for _, driver := range driversOf(claims...) {
		if _, err := m.drivers.client(driver); err != nil {
			return err
		}
	}
	changed := false
	m.mu.Lock()
	for _, claim := range claims {
		info, news := m.claims.use(claim.UID, claim.Namespace, claim.Name, driversOf(claim), pod.UID)
		changed = changed || news
		if info.prepared {
			continue
		}
		for driver := range info.DriverState {
			open[driver] = append(open[driver], &drav1.Claim{Namespace: claim.Namespace, Uid: string(claim.UID), Name: claim.Name})
		}
	}
	m.mu.Unlock()
	if changed { // who uses what is on disk before a driver does anything
		if err := m.save(); err != nil {
			return err
		}
	}
	if len(open) == 0 {
		return nil
	}
	for _, driver := range slices.Sorted(maps.Keys(open)) {
		if err := m.prepareWith(ctx, driver, open[driver]); err != nil {
			return err
		}
	}
	m.mu.Lock()
	for _, claim := range claims {
		m.claims[claim.UID].prepared = true
	}
	m.mu.Unlock()
	return m.save()
}

// prepareWith lets one driver prepare its part of claims.
func (m *Manager) prepareWith(ctx context.Context, driver string, claims []*drav1.Claim) error {
	client, err := m.drivers.client(driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	answer, err := client.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("NodePrepareResources of driver %s: %w", driver, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, claim := range claims {
		result := answer.GetClaims()[claim.Uid]
		if result == nil {
			return fmt.Errorf("NodePrepareResources of driver %s said nothing of claim %s/%s", driver, claim.Namespace, claim.Name)
		}
		if result.Error != "" {
			return fmt.Errorf("NodePrepareResources of driver %s failed for claim %s/%s: %s", driver, claim.Namespace, claim.Name,
				result.Error)
		}
		state := driverState{}
		for _, d := range result.Devices {
			device := device{PoolName: d.PoolName, DeviceName: d.DeviceName, RequestNames: d.RequestNames, CDIDeviceIDs: d.CdiDeviceIds}
			if d.ShareId != nil {
				id := types.UID(*d.ShareId)
				device.ShareID = &id
			}
			state.Devices = append(state.Devices, device)
		}
		m.claims[types.UID(claim.Uid)].DriverState[driver] = state
	}
	return nil
}

// claimsOf reads the claims that a pod uses and checks that it may.
func (m *Manager) claimsOf(ctx context.Context, pod *v1.Pod) ([]*resourceapi.ResourceClaim, error) {
	var names []string
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, known := claimName(pod, ref)
		if !known {
			return nil, fmt.Errorf("pod claim %s: the ResourceClaim made from its template is not known yet", ref.Name)
		}
		if name != "" {
			names = append(names, name)
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		names = append(names, extended.ResourceClaimName)
	}
	if len(names) > 0 && m.cfg.Client == nil {
		return nil, fmt.Errorf("resource claim %s: there is no API to read it from", names[0])
	}
	var out []*resourceapi.ResourceClaim
	for _, name := range names {
		claim, err := m.cfg.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("failed to fetch ResourceClaim %s referenced by pod %s: %w", name, pod.Name, err)
		}
		if claim.Status.Allocation == nil {
			return nil, fmt.Errorf("resource claim %s is not allocated", name)
		}
		mine := func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }
		if !slices.ContainsFunc(claim.Status.ReservedFor, mine) {
			return nil, fmt.Errorf("pod %s(%s) is not allowed to use resource claim %s(%s)", pod.Name, pod.UID, name, claim.UID)
		}
		out = append(out, claim)
	}
	return out, nil
}

func driversOf(claims ...*resourceapi.ResourceClaim) []string {
	seen := map[string]bool{}
	for _, claim := range claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			seen[r.Driver] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Unprepare gives back the claims of a pod of which nothing runs any more. A
// claim that another pod uses stays. It may be repeated.
func (m *Manager) Unprepare(ctx context.Context, pod types.UID) error {
	m.preparing.Lock()
	defer m.preparing.Unlock()
	m.mu.Lock()
	if !slices.Contains(m.claims.pods(), pod) {
		m.mu.Unlock()
		return nil
	}
	m.mu.Unlock()
	began := time.Now()
	err := m.unprepare(ctx, pod)
	m.metrics.done("UnprepareResources", began, err)
	return err
}

// unprepare does so; m.preparing is held.
func (m *Manager) unprepare(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	unused := m.claims.leave(pod)
	open := map[string][]*drav1.Claim{}
	for _, info := range unused {
		info.prepared = false
		for driver := range info.DriverState {
			open[driver] = append(open[driver], &drav1.Claim{Namespace: info.Namespace, Uid: string(info.ClaimUID), Name: info.ClaimName})
		}
	}
	m.mu.Unlock()
	for _, driver := range slices.Sorted(maps.Keys(open)) {
		if err := m.unprepareWith(ctx, driver, open[driver]); err != nil {
			return err
		}
	}
	m.mu.Lock()
	for _, info := range unused {
		delete(m.claims, info.ClaimUID)
	}
	m.mu.Unlock()
	return m.save()
}

func (m *Manager) unprepareWith(ctx context.Context, driver string, claims []*drav1.Claim) error {
	client, err := m.drivers.client(driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	answer, err := client.NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources of driver %s: %w", driver, err)
	}
	for _, claim := range claims {
		result, ok := answer.GetClaims()[claim.Uid]
		if !ok {
			return fmt.Errorf("NodeUnprepareResources of driver %s said nothing of claim %s/%s", driver, claim.Namespace, claim.Name)
		}
		if result.GetError() != "" {
			return fmt.Errorf("NodeUnprepareResources of driver %s failed for claim %s/%s: %s", driver, claim.Namespace, claim.Name,
				result.Error)
		}
	}
	return nil
}

// Orphans gives back the claims of pods that keep refuses.
func (m *Manager) Orphans(ctx context.Context, keep func(types.UID) bool) error {
	m.mu.Lock()
	pods := m.claims.pods()
	m.mu.Unlock()
	var errs []error
	for _, pod := range pods {
		if !keep(pod) {
			errs = append(errs, m.Unprepare(ctx, pod))
		}
	}
	return errors.Join(errs...)
}

// Devices are the CDI names of what a container gets of the pod's claims.
func (m *Manager) Devices(pod *v1.Pod, c *v1.Container) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, use := range usedBy(pod, c) {
		info := m.claims.byName(pod, use.claim)
		if info == nil || !info.prepared {
			return nil, fmt.Errorf("resource claim %s is not prepared for pod %s", use.claim, pod.Name)
		}
		for _, id := range info.ids(use.request) {
			if !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	return out, nil
}

// HeldBy is what a container has of claims, as the pod resources API tells it.
func (m *Manager) HeldBy(pod *v1.Pod, c *v1.Container) []*podresourcesapi.DynamicResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*podresourcesapi.DynamicResource
	for _, use := range usedBy(pod, c) {
		info := m.claims.byName(pod, use.claim)
		if info == nil {
			continue
		}
		entry := &podresourcesapi.DynamicResource{ClaimName: info.ClaimName, ClaimNamespace: info.Namespace}
		for _, driver := range slices.Sorted(maps.Keys(info.DriverState)) {
			for _, d := range info.DriverState[driver].Devices {
				if d.serves(use.request) {
					entry.ClaimResources = append(entry.ClaimResources, listed(driver, d))
				}
			}
		}
		out = append(out, entry)
	}
	return out
}

func listed(driver string, d device) *podresourcesapi.ClaimResource {
	out := &podresourcesapi.ClaimResource{DriverName: driver, PoolName: d.PoolName, DeviceName: d.DeviceName}
	if d.ShareID != nil {
		id := string(*d.ShareID)
		out.ShareId = &id
	}
	for _, name := range d.CDIDeviceIDs {
		out.CdiDevices = append(out.CdiDevices, &podresourcesapi.CDIDevice{Name: name})
	}
	return out
}
