package pod

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Manager holds a worker per pod and routes news to it.
type Manager struct {
	cfg     Config
	metrics *metrics

	mu      sync.Mutex
	ctx     context.Context // set while Run runs
	wg      sync.WaitGroup
	workers map[types.UID]*worker
	// blocked are static pods that wait for an older one of the same name.
	blocked map[types.NamespacedName]*v1.Pod
	// mirrors are what the API holds of static pods, by the static pod.
	mirrors map[types.UID]*v1.Pod
	// ready: all sources have reported, so what no one knows is an orphan.
	ready    bool
	nodeSaid string
}

// NewManager makes a manager; pods may be set before Run.
func NewManager(cfg Config) *Manager {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.SandboxPatience == 0 {
		cfg.SandboxPatience = 20 * time.Second
	}
	m := &Manager{
		cfg: cfg, workers: map[types.UID]*worker{}, blocked: map[types.NamespacedName]*v1.Pod{}, mirrors: map[types.UID]*v1.Pod{},
		metrics: newMetrics(),
	}
	if cfg.Signals != nil {
		cfg.Signals.manager.Store(m)
	}
	if cfg.Metrics != nil {
		for _, c := range append(m.metrics.all(), m) {
			if err := cfg.Metrics.Register(c); err != nil {
				cfg.Log.Warn("registering a pod metric", "err", err)
			}
		}
	}
	return m
}

// Run waits for the first picture of the runtime, then runs every pod until
// ctx ends. Containers go on running after it.
func (m *Manager) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.cfg.Runtime.Synced():
	}
	m.mu.Lock()
	// Errors of the runtime are reported here, in the pod's words.
	m.ctx = klog.NewContext(ctx, klog.Logger{})
	for _, w := range m.workers {
		m.begin(w)
	}
	m.orphans()
	m.mu.Unlock()
	<-ctx.Done()
	m.wg.Wait()
	return ctx.Err()
}

// begin starts a worker's loop; m.mu is held.
func (m *Manager) begin(w *worker) {
	if m.ctx == nil || m.ctx.Err() != nil {
		return
	}
	ctx := m.ctx
	m.wg.Go(func() {
		w.run(ctx)
		if ctx.Err() == nil {
			m.ended(w)
		}
	})
}

// ended forgets a pod that is gone, and lets a static pod of the same name in.
func (m *Manager) ended(w *worker) {
	m.cfg.Probes.Sync(w.uid, nil)
	m.cfg.Admitter.Forget(w.uid)
	if m.cfg.Ended != nil {
		m.cfg.Ended(w.uid)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roomMade()
	w.mu.Lock()
	again, name := w.again, nameOf(w.spec.Pod)
	w.mu.Unlock()
	delete(m.workers, w.uid)
	switch next := m.blocked[name]; {
	case next != nil:
		delete(m.blocked, name)
		m.add(next, true)
	case again != nil:
		m.metrics.restartedPods.WithLabelValues(isStatic(again.Static)).Inc()
		m.add(again.Pod, again.Static)
	}
}

// makeRoom is roomMade for callers that do not hold m.mu.
func (m *Manager) makeRoom() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roomMade()
}

// roomMade lets pods that wait for more resources ask again; m.mu is held.
func (m *Manager) roomMade() {
	for _, w := range m.workers {
		if w.deferred.Load() {
			w.retry.Store(true)
			w.enqueue()
		}
	}
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Set takes a new or changed pod. The pod is not changed by the manager and
// must not be changed by the caller afterwards.
func (m *Manager) Set(pod *v1.Pod, static bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[pod.UID]
	if w == nil {
		m.add(pod, static)
		return
	}
	w.update(func(s *spec) {
		if s.Orphan || w.leaving {
			w.again = &spec{Pod: pod, Static: static} // ended adds it
			return
		}
		s.Pod, s.Static, s.Removed = pod, static, false
	})
}

// add makes a worker; m.mu is held.
func (m *Manager) add(pod *v1.Pod, static bool) {
	if static {
		for _, w := range m.workers {
			w.mu.Lock()
			same := w.spec.Static && w.uid != pod.UID && nameOf(w.spec.Pod) == nameOf(pod)
			w.mu.Unlock()
			if same {
				m.blocked[nameOf(pod)] = pod
				return
			}
		}
	}
	w := newWorker(m, spec{Pod: pod, Static: static})
	w.mirror = m.mirrors[pod.UID]
	m.workers[pod.UID] = w
	m.begin(w)
}

// Remove tells that no source has the pod any more.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, pod := range m.blocked {
		if pod.UID == uid {
			delete(m.blocked, name)
		}
	}
	delete(m.mirrors, uid)
	if w := m.workers[uid]; w != nil {
		w.update(func(s *spec) {
			s.Removed, w.again = true, nil
			w.mirrored = w.mirror != nil
			w.mirror = nil // its status is not kept any more
		})
	}
}

// SetMirror tells what the API holds as the mirror of a static pod; nil when
// nothing.
func (m *Manager) SetMirror(static types.UID, mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirror == nil {
		delete(m.mirrors, static)
	} else {
		m.mirrors[static] = mirror
	}
	if w := m.workers[static]; w != nil {
		w.update(func(*spec) {
			if !w.leaving { // else it stands for the pod's next life
				w.mirror = mirror
			}
		})
	}
}

// Kill ends a pod for a reason of the node. The channel is closed once nothing
// of the pod runs; it is nil when there is no such pod.
func (m *Manager) Kill(uid types.UID, k Kill) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[uid]
	if w == nil {
		return nil
	}
	w.update(func(s *spec) {
		if s.Kill != nil { // the first reason stays, the grace only shrinks
			first := *s.Kill
			if k.Grace != nil && (first.Grace == nil || *first.Grace > *k.Grace) {
				first.Grace = k.Grace
			}
			first.Now = first.Now || k.Now
			s.Kill = &first
			return
		}
		s.Kill = &k
	})
	return w.quiet
}

// Terminated returns a channel that is closed once nothing runs any more of a pod that
// no source has; nil while a source has it, and when there is no such pod.
func (m *Manager) Terminated(uid types.UID) <-chan struct{} {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.spec.Removed {
		return nil
	}
	return w.quiet
}

// Reported returns a channel that is closed once the pod has ended, its volumes
// are unmounted and the API knows how it ended; nil when there is no such pod.
func (m *Manager) Reported(uid types.UID) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		return w.reported
	}
	return nil
}

// RuntimeChanged tells that the runtime's picture of a pod changed.
func (m *Manager) RuntimeChanged(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		w.enqueue()
	} else if m.ready && m.ctx != nil {
		m.orphan(uid)
	}
}

// Enqueue makes a pod's worker look again, for example because a probe has news.
func (m *Manager) Enqueue(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		w.enqueue()
	}
}

// Retry makes a pod's worker try what failed before now instead of after its
// pause: what it waited for has changed.
func (m *Manager) Retry(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		w.retry.Store(true)
		w.enqueue()
	}
}

// NodeChanged tells that what statuses say of the node may have changed.
func (m *Manager) NodeChanged() {
	n := m.cfg.Node()
	said := fmt.Sprint(n.IPs, n.NotReady)
	m.mu.Lock()
	defer m.mu.Unlock()
	if said == m.nodeSaid {
		return
	}
	m.nodeSaid = said
	for _, w := range m.workers {
		w.enqueue()
	}
}

// SourcesReady tells that every source has reported once: from now on what no
// source knows is removed.
func (m *Manager) SourcesReady() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = true
	m.orphans()
}

// orphans starts the removal of everything without a pod; m.mu is held.
func (m *Manager) orphans() {
	if !m.ready || m.ctx == nil {
		return
	}
	for _, uid := range m.cfg.Runtime.Pods() {
		m.orphan(uid)
	}
	for _, uid := range m.podDirs() {
		m.orphan(uid)
	}
}

func (m *Manager) orphan(uid types.UID) {
	if m.workers[uid] != nil {
		return
	}
	for _, pod := range m.blocked {
		if pod.UID == uid {
			return
		}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	if held := m.cfg.Runtime.Pod(uid); held != nil {
		pod.Namespace, pod.Name = held.Namespace, held.Name
	}
	m.metrics.orphans.Inc()
	w := newWorker(m, spec{Pod: pod, Orphan: true})
	m.workers[uid] = w
	m.begin(w)
}

// List returns all pods with their present status, by UID. Callers must not
// change them.
func (m *Manager) List() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*v1.Pod, 0, len(m.workers))
	for _, w := range m.workers {
		if pod := w.current.Load(); pod.Name != "" && !w.isOrphan() {
			out = append(out, pod)
		}
	}
	slices.SortFunc(out, func(a, b *v1.Pod) int {
		if a.UID < b.UID {
			return -1
		}
		return 1
	})
	return out
}

func (w *worker) isOrphan() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec.Orphan
}

// Get returns one pod with its present status.
func (m *Manager) Get(uid types.UID) (*v1.Pod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		return w.current.Load(), true
	}
	return nil, false
}

// Has tells whether the pod is known, be it on its way out.
func (m *Manager) Has(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.workers[uid] != nil {
		return true
	}
	for _, p := range m.blocked {
		if p.UID == uid {
			return true
		}
	}
	return false
}

// GetByName returns the pod of that name; of several, one that is not ending.
func (m *Manager) GetByName(namespace, name string) (pod *v1.Pod, ok bool) {
	for _, p := range m.List() {
		if p.Namespace == namespace && p.Name == name && (!ok || p.DeletionTimestamp == nil) {
			pod, ok = p, true
		}
	}
	return pod, ok
}

// ContainerID returns the runtime's ID of a container's newest instance, or,
// with previous, of the one before.
func (m *Manager) ContainerID(uid types.UID, container string, previous bool) (string, bool) {
	held := m.cfg.Runtime.Pod(uid)
	if held == nil {
		return "", false
	}
	for _, c := range held.Containers {
		switch {
		case c.Name != container:
		case previous:
			previous = false
		default:
			return c.ID, true
		}
	}
	return "", false
}

// SandboxID returns the pod's current sandbox.
func (m *Manager) SandboxID(uid types.UID) (string, bool) {
	held := m.cfg.Runtime.Pod(uid)
	if held == nil || len(held.Sandboxes) == 0 {
		return "", false
	}
	return held.Sandboxes[0].ID, true
}

// event reports an event about a pod or one of its containers.
func (m *Manager) event(pod *v1.Pod, e event) {
	kind := v1.EventTypeNormal
	if e.Warning {
		kind = v1.EventTypeWarning
	}
	m.cfg.Recorder.Event(Reference(pod, e.Container), kind, e.Reason, e.Message)
}

// Reference is the object of events about a pod, or about the named container.
func Reference(pod *v1.Pod, container string) *v1.ObjectReference {
	ref := &v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
	if container == "" {
		return ref
	}
	for _, m := range allContainers(pod, nil, nil) {
		if m.c.Name == container {
			field := map[role]string{initContainer: "initContainers", sidecarContainer: "initContainers", regularContainer: "containers",
				ephemeralContainer: "ephemeralContainers"}[m.role]
			ref.FieldPath = "spec." + field + "{" + container + "}"
		}
	}
	return ref
}
