package dra

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/berth-dev/berth/internal/controller"
)

// absence is how long a driver may be away before what it published of this
// node is removed: the scheduler must not go on giving it out.
const absence = 30 * time.Second

// retries are the pauses before a driver is asked again, and before its slices
// are removed again.
var retries = controller.Backoff{First: time.Second, Most: time.Minute}

// drivers are those that have registered. A driver may have several instances
// while it is replaced; the newest serves.
type drivers struct {
	cfg Config
	mu  sync.Mutex
	// byName, oldest instance first.
	byName map[string][]*instance
	// gone wakes the cleaner; absent says since when a driver has no instance.
	gone   chan struct{}
	absent map[string]time.Time
	// follow starts to follow the health of an instance's devices; nil before
	// Run, which starts with those that are there.
	follow func(name string, in *instance)
}

type instance struct {
	endpoint string
	conn     *grpc.ClientConn
	client   drav1.DRAPluginClient
	health   healthv1.DRAResourceHealthClient // nil if it has none
	// stop ends the following of its health.
	stop context.CancelFunc
}

func newDrivers(cfg Config) *drivers {
	return &drivers{cfg: cfg, byName: map[string][]*instance{}, gone: make(chan struct{}, 1), absent: map[string]time.Time{}}
}

// Register takes in a driver that the plugin directory's watcher found.
func (m *Manager) Register(_ context.Context, name, endpoint string, versions []string) error {
	d := m.drivers
	conn, err := grpc.NewClient("unix:"+strings.TrimPrefix(endpoint, "unix://"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(m.metrics.measure(name)))
	if err != nil {
		return fmt.Errorf("connecting to driver %s: %w", name, err)
	}
	in := &instance{endpoint: endpoint, conn: conn, health: healthOf(conn, versions), stop: func() {}}
	switch {
	case slices.Contains(versions, drav1.DRAPluginService):
		in.client = drav1.NewDRAPluginClient(conn)
	case slices.Contains(versions, drav1beta1.DRAPluginService):
		in.client = drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(conn)}
	default:
		_ = conn.Close()
		return fmt.Errorf("driver %s offers %q: want %s or %s", name, versions, drav1.DRAPluginService, drav1beta1.DRAPluginService)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(name, endpoint)
	d.byName[name] = append(d.byName[name], in)
	delete(d.absent, name)
	if d.follow != nil {
		d.follow(name, in)
	}
	return nil
}

// Deregister forgets an instance whose socket is gone.
func (m *Manager) Deregister(name, endpoint string) {
	d := m.drivers
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(name, endpoint)
	if len(d.byName[name]) == 0 {
		d.absent[name] = time.Now()
		select {
		case d.gone <- struct{}{}:
		default:
		}
	}
}

// drop closes an instance; d.mu is held.
func (d *drivers) drop(name, endpoint string) {
	d.byName[name] = slices.DeleteFunc(d.byName[name], func(in *instance) bool {
		if in.endpoint != endpoint {
			return false
		}
		in.stop()
		_ = in.conn.Close() // calls in flight fail and are tried again
		return true
	})
}

// client is the newest instance of a driver.
func (d *drivers) client(name string) (drav1.DRAPluginClient, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.byName[name]
	if len(list) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	return list[len(list)-1].client, nil
}

// Run removes what drivers that are not here published of this node: all of it
// at the start, since drivers publish again when they register, and that of a
// driver some time after it went.
func (m *Manager) Run(ctx context.Context) error {
	d := m.drivers
	var followers sync.WaitGroup
	defer followers.Wait()
	defer d.close()
	d.start(func(name string, in *instance) {
		if in.health == nil {
			return
		}
		following, stop := context.WithCancel(ctx)
		in.stop = stop
		followers.Go(func() {
			defer stop()
			m.follow(following, name, in.health)
		})
	})
	if d.cfg.Client == nil {
		<-ctx.Done()
		return nil
	}
	d.insist(ctx, "")
	for {
		next := d.due(time.Now())
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.gone:
		case <-timer:
			for _, name := range d.overdue(time.Now()) {
				d.insist(ctx, name)
			}
		}
	}
}

// start follows the instances that are there, and those that come.
func (d *drivers) start(follow func(string, *instance)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.follow = follow
	for name, list := range d.byName {
		for _, in := range list {
			follow(name, in)
		}
	}
}

func (d *drivers) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.follow = nil
	for name, list := range d.byName {
		for _, in := range list {
			in.stop()
			_ = in.conn.Close()
		}
		delete(d.byName, name)
	}
}

// due is when the next absent driver has been away for too long; zero if none
// is away.
func (d *drivers) due(now time.Time) (next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, since := range d.absent {
		if at := since.Add(absence); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if !next.IsZero() && next.Before(now) {
		next = now
	}
	return next
}

// overdue takes the drivers that have been away for too long.
func (d *drivers) overdue(now time.Time) (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, since := range d.absent {
		if !now.Before(since.Add(absence)) {
			names = append(names, name)
			delete(d.absent, name)
		}
	}
	slices.Sort(names)
	return names
}

// insist removes slices until that works, the driver is back, or ctx ends.
func (d *drivers) insist(ctx context.Context, driver string) {
	for retry := (controller.Retry{Backoff: retries}); ; {
		if _, err := d.client(driver); err == nil {
			return
		}
		err := d.wipe(ctx, driver)
		if err == nil || ctx.Err() != nil {
			return
		}
		pause := retry.Failed()
		d.cfg.Log.Warn("removing the ResourceSlices of drivers that are not here", "driver", driver, "err", err, "again", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// wipe removes a driver's slices of this node ("": those of all drivers). An
// API server that has no such resource has none to remove.
func (d *drivers) wipe(ctx context.Context, driver string) error {
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: d.cfg.NodeName}
	if driver != "" {
		selector[resourceapi.ResourceSliceSelectorDriver] = driver
	}
	err := d.cfg.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: selector.String()})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
