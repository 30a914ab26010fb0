package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/journal"
)

// errAbandoned marks a call whose caller gave up while it still runs.
var errAbandoned = errors.New("still in progress")

// acquire finds or makes the state of a pod; release must follow.
func (m *Manager) acquire(uid types.UID) *podState {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.pods[uid]
	if st == nil {
		st = &podState{busy: make(chan struct{}, 1)}
		m.pods[uid] = st
	}
	st.refs++
	return st
}

// release forgets a pod that has no volumes and no callers.
func (m *Manager) release(uid types.UID, st *podState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st.refs--
	if st.refs == 0 && st.pod == nil && m.pods[uid] == st {
		delete(m.pods, uid)
	}
}

// exclusive runs fn as the only one for its pod. fn runs apart from the
// caller: when ctx ends first the caller goes on, and the pod stays locked
// until fn returns.
func (m *Manager) exclusive(ctx context.Context, uid types.UID, fn func(ctx context.Context, st *podState) error) error {
	st := m.acquire(uid)
	select {
	case st.busy <- struct{}{}:
	case <-ctx.Done():
		m.release(uid, st)
		return fmt.Errorf("waiting for the volumes of pod %s: %w: %w", uid, errAbandoned, ctx.Err())
	}
	done := make(chan error, 1)
	m.wg.Go(func() {
		// Deferred, so that a test that stops fn in the middle leaves no lock.
		defer func() {
			<-st.busy
			m.release(uid, st)
		}()
		done <- fn(ctx, st)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// Prefer an answer that is already there.
	select {
	case err := <-done:
		return err
	default:
		return fmt.Errorf("volumes of pod %s: %w: %w", uid, errAbandoned, ctx.Err())
	}
}

// Unmount takes down everything of a pod that is on disk or mounted, whether
// or not this process set it up, and removes the pod's directory. It may be
// called any number of times. An error means that something is still there;
// nothing that is reachable through a mount has been deleted.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if !validUID(string(uid)) {
		return fmt.Errorf("unmounting: %q is not a pod uid", uid)
	}
	return m.exclusive(ctx, uid, func(ctx context.Context, st *podState) error {
		start := m.cfg.Clock.Now()
		err := m.unmount(ctx, uid)
		m.metrics.observe("volume_unmount", m.cfg.Clock.Since(start), err)
		if err != nil {
			return fmt.Errorf("unmounting volumes of pod %s: %w", uid, err)
		}
		claims := st.pod == nil || slices.ContainsFunc(st.pod.Spec.Volumes,
			func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil })
		st.pod, st.mounted, st.failures = nil, nil, 0
		m.setDue(st, time.Time{})
		m.setWaiting(st, false)
		if claims {
			m.wakeWaiting() // another pod may wait for what this one had
		}
		return nil
	})
}

func (m *Manager) unmount(ctx context.Context, uid types.UID) error {
	if m.objects != nil {
		m.objects.forget(uid)
		m.tokens.forget(uid)
		m.bundles.forget(uid)
		m.certs.forget(uid)
	}
	dir := m.layout.pod(uid)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// Prepared subPaths are bind mounts of volumes: they go first, or the
	// volume below them stays busy.
	if err := m.k.unmountBelow(dir + "/volume-subpaths"); err != nil {
		return err
	}
	// Drivers undo what drivers did, while their records are still there.
	if err := m.csi.unpublishPod(ctx, uid); err != nil {
		return err
	}
	if err := m.k.unmountBelow(dir); err != nil {
		return err
	}
	return m.k.removeTree(dir)
}

// Orphans takes down the volumes of pods that keep refuses: those found on
// disk after a crash, and those whose Unmount failed before. Volumes that are
// staged for no pod are unstaged. A pod that cannot be taken down is reported
// and does not stop the others.
func (m *Manager) Orphans(ctx context.Context, keep func(uid types.UID) bool) error {
	entries, err := os.ReadDir(m.layout.pods())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listing pods on disk: %w", err)
	}
	var errs []error
	for _, e := range entries {
		uid := types.UID(e.Name())
		if !e.IsDir() || !validUID(e.Name()) || keep(uid) {
			continue
		}
		if err := m.Unmount(ctx, uid); err != nil {
			errs = append(errs, err)
			continue
		}
		m.cfg.Log.Info("removed orphaned volumes", "pod", uid)
		m.cfg.Journal.Append(journal.Record{
			Time: m.cfg.Clock.Now(), Part: "agent", Object: journal.Ref{Kind: "Pod", UID: string(uid)},
			Decision: "removed orphaned volumes", Because: []journal.Fact{{Name: "pod known to the agent", Value: "false"}},
		})
	}
	errs = append(errs, m.csi.unstageUnused(ctx))
	return errors.Join(errs...)
}

// Update takes a new version of a pod: downward contents follow its labels
// and annotations. Contents are refreshed in the background, at once.
func (m *Manager) Update(pod *v1.Pod) {
	m.mu.Lock()
	st := m.pods[pod.UID]
	m.mu.Unlock()
	if st == nil {
		return
	}
	m.startRefresh(pod.UID, pod)
}

// objectChanged wakes what depends on an object.
func (m *Manager) objectChanged(_ key, pods []types.UID) { m.markDirty(pods) }

func (m *Manager) markDirty(pods []types.UID) {
	for _, uid := range pods {
		m.mu.Lock()
		st := m.pods[uid]
		waiting := st != nil && st.waiting
		m.mu.Unlock()
		if st == nil {
			continue
		}
		if waiting && m.cfg.Wake != nil {
			m.cfg.Wake(uid)
		}
		m.startRefresh(uid, nil)
	}
}

// startRefresh collects a pod's contents again unless that is about to happen
// anyway.
func (m *Manager) startRefresh(uid types.UID, pod *v1.Pod) {
	m.mu.Lock()
	st := m.pods[uid]
	if st == nil || m.ctx.Err() != nil || st.dirty && pod == nil {
		m.mu.Unlock()
		return
	}
	st.dirty = true
	m.mu.Unlock()
	m.background(func() {
		select {
		case m.refreshes <- struct{}{}:
		case <-m.ctx.Done():
			return
		}
		defer func() { <-m.refreshes }()
		// One pod that hangs holds its slot for this long at most.
		ctx, cancel := context.WithTimeout(m.ctx, 30*time.Second)
		defer cancel()
		err := m.exclusive(ctx, uid, func(ctx context.Context, st *podState) error { return m.refresh(ctx, st, pod) })
		if err != nil && m.ctx.Err() == nil {
			m.cfg.Log.Warn("refreshing volumes", "pod", uid, "err", err)
		}
	})
}

// background runs f unless the manager is closed; Close waits for it.
func (m *Manager) background(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() == nil {
		m.wg.Go(f)
	}
}

// refresh rewrites the contents of volumes that are mounted already.
func (m *Manager) refresh(ctx context.Context, st *podState, pod *v1.Pod) error {
	m.mu.Lock()
	grow := st.grow
	st.dirty, st.grow = false, false // changes from here on need another refresh
	m.mu.Unlock()
	if st.pod == nil {
		return nil
	}
	if pod != nil {
		st.pod = pod
	}
	var due time.Time
	var errs []error
	for i := range st.pod.Spec.Volumes {
		v := &st.pod.Spec.Volumes[i]
		_, ok := st.mounted[v.Name]
		claim := v.PersistentVolumeClaim != nil || v.Ephemeral != nil
		if !ok || !isPayload(v) && !(grow && claim) && m.republishAt(st.pod, v.Name).IsZero() {
			continue
		}
		_, next, err := m.setUp(ctx, st.pod, v)
		if err != nil {
			// Old contents stay; the next change or this deadline tries again.
			errs = append(errs, fmt.Errorf("volume %q: %w", v.Name, err))
			m.report(st.pod, v.Name, err)
			next = m.cfg.Clock.Now().Add(30 * time.Second)
		}
		due = earliest(due, next)
	}
	m.setDue(st, earliest(due, m.growAt(st.pod.UID)))
	return errors.Join(errs...)
}

// setDue records when a pod must be refreshed and wakes Run if that is sooner
// than what it sleeps for.
func (m *Manager) setDue(st *podState, at time.Time) {
	m.mu.Lock()
	st.refreshAt = at
	m.mu.Unlock()
	if at.IsZero() {
		return
	}
	select {
	case m.due <- struct{}{}:
	default:
	}
}

func (m *Manager) setWaiting(st *podState, waiting bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st.waiting = waiting
}

// Run refreshes contents when they are due, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	for {
		now := m.cfg.Clock.Now()
		next := m.fire(now)
		var timer <-chan time.Time
		stop := func() bool { return true }
		if !next.IsZero() {
			t := m.cfg.Clock.NewTimer(next.Sub(now))
			timer, stop = t.C(), t.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-m.due:
		case <-timer:
		}
		stop()
	}
}

// fire starts what is due and returns the next deadline.
func (m *Manager) fire(now time.Time) (next time.Time) {
	var ripe []types.UID
	m.mu.Lock()
	for uid, st := range m.pods {
		switch {
		case st.refreshAt.IsZero():
		case st.refreshAt.After(now):
			next = earliest(next, st.refreshAt)
		default:
			st.refreshAt, st.grow = time.Time{}, true
			ripe = append(ripe, uid)
		}
	}
	m.mu.Unlock()
	for _, uid := range ripe {
		m.startRefresh(uid, nil)
	}
	return next
}

// NodeChanged tells that the node's own object changed: pods that wait for the
// cluster to attach a volume try again.
func (m *Manager) NodeChanged() { m.wakeWaiting() }

// driverCame has pods try again that may have waited for a driver, grows what
// waited to grow, and unstages what a crash left staged for no one.
func (m *Manager) driverCame() {
	m.wakeWaiting()
	m.growAll()
	m.background(func() {
		if err := m.csi.unstageUnused(m.ctx); err != nil && m.ctx.Err() == nil {
			m.cfg.Log.Warn("unstaging volumes that no pod uses", "err", err)
		}
	})
}

// inUseChanged reports the attachable volumes in use.
func (m *Manager) inUseChanged() {
	if m.cfg.InUse != nil {
		m.cfg.InUse(m.VolumesInUse())
	}
}

// wakeWaiting has every pod whose Mount failed try again now.
func (m *Manager) wakeWaiting() {
	if m.cfg.Wake == nil {
		return
	}
	var pods []types.UID
	m.mu.Lock()
	for uid, st := range m.pods {
		if st.waiting {
			pods = append(pods, uid)
		}
	}
	m.mu.Unlock()
	for _, uid := range pods {
		m.cfg.Wake(uid)
	}
}

// republishEvery is how often drivers that want it are asked again.
const republishEvery = time.Minute

// republishAt is when a volume's driver must be asked again, zero for never.
func (m *Manager) republishAt(pod *v1.Pod, volume string) time.Time {
	for _, dir := range subdirs(m.layout.volume(pod.UID, pluginCSI, "")) {
		if r, err := readRecord(dir); err == nil && r.Volume == volume && r.Republish {
			return m.cfg.Clock.Now().Add(republishEvery)
		}
	}
	return time.Time{}
}

// VolumesInUse are the attachable volumes of pods on this node, for the node's
// status: the cluster must not detach them.
func (m *Manager) VolumesInUse() []v1.UniqueVolumeName {
	seen := map[v1.UniqueVolumeName]bool{}
	var out []v1.UniqueVolumeName
	for _, pod := range subdirs(m.layout.pods()) {
		for _, dir := range subdirs(filepath.Join(pod, "volumes", escape(pluginCSI))) {
			r, err := readRecord(dir)
			if err != nil || r.Lifecycle == ephemeral {
				continue
			}
			name := v1.UniqueVolumeName(pluginCSI + "/" + r.Driver + "^" + r.Handle)
			if !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// ConfigMap and Secret serve what environments and pull secrets refer to from
// the same watches as volumes; see container.Resolve.
func (m *Manager) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	if m.objects == nil {
		return nil, errors.New("reading configmap: the node agent runs without an API server")
	}
	c, err := m.objects.get(ctx, key{configMaps, namespace, name})
	if err != nil {
		return nil, err
	}
	return c.configMap, nil
}

// Secret is the secret of that name; see ConfigMap.
func (m *Manager) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	if m.objects == nil {
		return nil, errors.New("reading secret: the node agent runs without an API server")
	}
	c, err := m.objects.get(ctx, key{secrets, namespace, name})
	if err != nil {
		return nil, err
	}
	return c.secret, nil
}

var _ container.Getter = (*Manager)(nil)
