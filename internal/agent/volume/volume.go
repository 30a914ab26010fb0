// Package volume gives pods their volumes: it sets them up before containers
// start, keeps their contents fresh while the pod runs, and takes them down
// after it, across crashes of the agent at any instruction.
//
// What is on disk below the root directory and in the kernel's mount table is
// the only record; recovery reads nothing else.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// Mounted is one volume of a pod, ready on this node.
type Mounted = container.Volume

// imageVolume is an image that the runtime mounts as a volume.
type imageVolume = container.ImageVolume

// Config configures a Manager. Client and RootDir are required unless the
// agent runs without an API server, when Client may be nil and pods that refer
// to API objects fail.
type Config struct {
	// RootDir is the agent's data directory.
	RootDir  string
	Client   kubernetes.Interface
	NodeName string
	// Allocatable returns what the node offers, for memory volumes and
	// resource fields. It may be nil.
	Allocatable func() v1.ResourceList
	// Node returns the node's own object as last seen, nil while unknown. It
	// is needed for volumes that the cluster attaches.
	Node func() *v1.Node
	// Event reports to the pod's user. It must not block. It may be nil.
	Event func(pod *v1.Pod, eventType, reason, message string)
	// Wake says that a pod whose Mount failed should try again now: what it
	// waited for has changed. It must not block. It may be nil.
	Wake func(uid types.UID)
	// Drivers are the CSI drivers registered on this node; nil without CSI.
	Drivers *Drivers
	// InUse gets the attachable volumes in use whenever they change, for
	// the node's status. It must not block. It may be nil.
	InUse func([]v1.UniqueVolumeName)
	// ControllerAttach waits for the cluster to attach volumes that need it
	// (enableControllerAttachDetach).
	ControllerAttach bool

	Clock   clock.WithTicker
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Journal journal.Sink

	// step is called before each change to the file system.
	step func(string)
}

func (c *Config) allocatable() v1.ResourceList {
	if c.Allocatable == nil {
		return nil
	}
	return c.Allocatable()
}

func (c *Config) event(pod *v1.Pod, eventType, reason, message string) {
	if c.Event != nil {
		c.Event(pod, eventType, reason, message)
	}
}

// Manager owns the volumes of this node's pods. All methods may be called
// concurrently; what one pod waits for never delays another.
type Manager struct {
	cfg     Config
	k       kernel
	layout  layout
	objects *objects
	tokens  *tokens
	bundles *bundles
	certs   *certs
	csi     *csi
	metrics *metrics

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
	// refreshes bounds how many pods are refreshed at a time.
	refreshes chan struct{}
	// sole is held while a pod takes a volume that only one pod may use.
	sole sync.Mutex

	mu   sync.Mutex
	pods map[types.UID]*podState
	// due is signalled when an earlier deadline was set.
	due chan struct{}
}

// The life of a pod's volumes. What is on disk and mounted decides where it
// begins after a crash; every step may be repeated.
//
//	unknown --Mount--> mounting --all there--> mounted --Update, deadline--> refreshing
//	   ^                 |  ^                     |  ^                           |
//	   |          failed |  | change, pod's retry |  +---------------------------+
//	   |                 v  |                     |
//	   |               waiting                    |
//	   |                                          | Unmount: no container is alive
//	   +------- forgotten <--nothing left--- unmounting (repeated until it succeeds)

// podState is what is known of one pod. busy is a lock that a context can
// give up on; the fields below it are guarded by busy, those above by
// Manager.mu.
type podState struct {
	refs  int
	dirty bool
	// waiting says that the last Mount failed and a change should wake the pod.
	waiting bool
	// refreshAt is when contents must be collected again; zero for never.
	refreshAt time.Time
	// grow has the next refresh look at the claims too.
	grow bool

	busy    chan struct{}
	pod     *v1.Pod
	mounted map[string]Mounted
	// failures counts failed mounts in a row.
	failures int
}

// New makes a Manager. Run must be running for contents to be refreshed.
func New(cfg Config) *Manager {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	m := &Manager{
		cfg: cfg, k: kernel{hook: cfg.step}, layout: layout{cfg.RootDir},
		pods: map[types.UID]*podState{}, due: make(chan struct{}, 1), refreshes: make(chan struct{}, 8),
		metrics: newMetrics(cfg.Metrics),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	if cfg.Client != nil {
		m.objects = newObjects(cfg.Client, cfg.Clock, cfg.Log, m.objectChanged)
		m.tokens = newTokens(cfg.Client, cfg.Clock)
		m.bundles = newBundles(m)
		m.certs = newCerts(m)
	}
	m.csi = newCSI(m)
	if cfg.Drivers != nil {
		cfg.Drivers.mu.Lock()
		cfg.Drivers.changed, cfg.Drivers.called = m.driverCame, m.metrics.called
		cfg.Drivers.mu.Unlock()
	}
	return m
}

// Close ends all background work and waits for it. Volumes stay as they are.
func (m *Manager) Close() {
	m.mu.Lock()
	m.stop()
	m.mu.Unlock()
	if m.objects != nil {
		m.objects.close()
	}
	m.wg.Wait()
}

// mountRetry are upstream's pauses before a mount that failed is tried again.
var mountRetry = controller.Backoff{First: 500 * time.Millisecond, Most: 2*time.Minute + 2*time.Second}

// MountError is why a pod's volumes are not all ready. Events have been
// reported already.
type MountError struct {
	// Volumes that are not ready, sorted, and the cause of each.
	Volumes []string
	Errs    []error
	// RetryAfter is how long to wait unless Wake says otherwise.
	RetryAfter time.Duration
}

func (e *MountError) Error() string {
	texts := make([]string, 0, len(e.Errs))
	for _, err := range e.Errs {
		texts = append(texts, err.Error())
	}
	return fmt.Sprintf("unmounted volumes=[%s], unattached volumes=[], failed to process volumes=[]: %s",
		strings.Join(e.Volumes, " "), strings.Join(texts, "; "))
}

func (e *MountError) Unwrap() []error { return e.Errs }

// Mount makes every volume that a container of the pod uses ready and returns
// them by name. It may be called any number of times; volumes that are ready
// are left alone. On failure the error is a *MountError and the volumes that
// are ready are returned with it. A ctx that ends stops the waiting, and calls
// to the kernel that hang go on alone, holding only this pod.
func (m *Manager) Mount(ctx context.Context, pod *v1.Pod) (map[string]Mounted, error) {
	var out map[string]Mounted
	err := m.exclusive(ctx, pod.UID, func(ctx context.Context, st *podState) error {
		result, err := m.mount(ctx, st, pod)
		out = result
		return err
	})
	if errors.Is(err, errAbandoned) {
		// The map may still be written by the abandoned call.
		return nil, err
	}
	return out, err
}

func (m *Manager) mount(ctx context.Context, st *podState, pod *v1.Pod) (map[string]Mounted, error) {
	start := m.cfg.Clock.Now()
	st.pod = pod
	if m.objects != nil {
		m.objects.refer(pod.UID, keysOf(pod))
	}
	m.setWaiting(st, true)
	if err := m.k.mkdirAll(m.layout.pod(pod.UID), 0o750); err != nil {
		return nil, err
	}
	used := usedVolumes(pod)
	var mu sync.Mutex
	ready := map[string]Mounted{}
	failed := map[string]error{}
	var due time.Time
	var wg sync.WaitGroup
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !used[v.Name] {
			continue
		}
		wg.Go(func() {
			mounted, next, err := m.setUp(ctx, pod, v)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[v.Name] = err
				return
			}
			ready[v.Name] = mounted
			due = earliest(due, next)
		})
	}
	wg.Wait()
	st.mounted = ready
	m.setDue(st, earliest(due, m.growAt(pod.UID)))
	if len(failed) == 0 {
		st.failures = 0
		m.setWaiting(st, false)
		m.metrics.observe("volume_mount", m.cfg.Clock.Since(start), nil)
		return clone(ready), nil
	}
	st.failures++
	err := &MountError{RetryAfter: mountRetry.Delay(st.failures)}
	for name := range failed {
		err.Volumes = append(err.Volumes, name)
	}
	sort.Strings(err.Volumes)
	for _, name := range err.Volumes {
		err.Errs = append(err.Errs, failed[name])
		m.report(pod, name, failed[name])
	}
	m.metrics.observe("volume_mount", m.cfg.Clock.Since(start), err)
	return clone(ready), err
}

// report tells the user why a volume is not ready. A caller that gave up is
// not news, and waiting for the cluster to do its part is no failure.
func (m *Manager) report(pod *v1.Pod, name string, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Canceled {
		return
	}
	m.record(pod, "volume not ready", journal.Fact{Name: "volume", Value: name}, journal.Fact{Name: "cause", Value: err.Error()})
	if errors.Is(err, errNotAttached) {
		return
	}
	reason := "FailedMount"
	message := fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", name, err)
	var typed *eventError
	if errors.As(err, &typed) {
		reason, message = typed.reason, fmt.Sprintf(typed.format, name, typed.err)
	}
	m.cfg.event(pod, v1.EventTypeWarning, reason, message)
}

func (m *Manager) record(pod *v1.Pod, decision string, because ...journal.Fact) {
	m.cfg.Journal.Append(journal.Record{
		Time: m.cfg.Clock.Now(), Part: "agent", Decision: decision, Because: because,
		Object: journal.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
	})
}

// eventError is a failure with an event of its own; format takes the volume's
// name and the cause.
type eventError struct {
	reason, format string
	err            error
}

func (e *eventError) Error() string { return e.err.Error() }
func (e *eventError) Unwrap() error { return e.err }

// usedVolumes are the volumes that some container mounts or opens.
func usedVolumes(pod *v1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, c := range container.All(pod) {
		for _, m := range c.VolumeMounts {
			out[m.Name] = true
		}
		for _, d := range c.VolumeDevices {
			out[d.Name] = true
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.FileKeyRef != nil {
				out[e.ValueFrom.FileKeyRef.VolumeName] = true
			}
		}
	}
	return out
}

// setUp makes one volume ready and says when it must be refreshed.
func (m *Manager) setUp(ctx context.Context, pod *v1.Pod, v *v1.Volume) (Mounted, time.Time, error) {
	switch {
	case v.EmptyDir != nil:
		out, err := m.emptyDir(pod, v)
		return out, time.Time{}, err
	case v.HostPath != nil:
		return Mounted{HostPath: v.HostPath.Path}, time.Time{}, m.k.hostPath(v.HostPath)
	case isPayload(v):
		return m.payload(ctx, pod, v)
	case v.Image != nil:
		return Mounted{ReadOnly: true, Image: &imageVolume{Reference: v.Image.Reference, Ref: v.Image.Reference}}, time.Time{}, nil
	case v.NFS != nil:
		out, err := m.nfs(ctx, pod, v.Name, v.NFS.Server, v.NFS.Path, v.NFS.ReadOnly, nil)
		return out, time.Time{}, err
	case v.CSI != nil:
		out, err := m.csi.inline(ctx, pod, v)
		return out, m.republishAt(pod, v.Name), err
	case v.PersistentVolumeClaim != nil:
		out, err := m.claim(ctx, pod, v, v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly)
		return out, m.republishAt(pod, v.Name), err
	case v.Ephemeral != nil:
		out, err := m.claim(ctx, pod, v, pod.Name+"-"+v.Name, false)
		return out, m.republishAt(pod, v.Name), err
	}
	return Mounted{}, time.Time{}, fmt.Errorf("volume kind %s is not supported by berth: use a CSI driver", kindName(&v.VolumeSource))
}

// payload sets up or refreshes a volume whose contents the agent writes.
func (m *Manager) payload(ctx context.Context, pod *v1.Pod, v *v1.Volume) (Mounted, time.Time, error) {
	plugin := payloadPlugin(v)
	dir := m.layout.volume(pod.UID, plugin, v.Name)
	out := Mounted{HostPath: dir, ReadOnly: true, SELinuxRelabel: true}
	if m.objects == nil && v.DownwardAPI == nil {
		return out, time.Time{},
			errors.New("the node agent runs without an API server: only volumes that do not refer to API objects are possible")
	}
	c := &collector{
		pod: pod, volume: v.Name, dir: dir, tokens: m.tokens, bundles: m.bundles, certs: m.certs,
		allocatable: m.cfg.allocatable(), facts: container.FieldFacts{NodeName: m.cfg.NodeName},
	}
	if m.objects != nil {
		c.get = m.objects.get
	}
	want, err := c.collect(ctx, v)
	if err != nil {
		// While the API server cannot be asked, or a signer has no certificate
		// for an agent that started again, what the volume holds is the best
		// there is; a pod that ran goes on.
		answer := errors.Is(err, errNotIssued)
		if held, herr := m.holds(dir, plugin); held && herr == nil && (answer || unavailable(err)) {
			m.cfg.Log.Info("keeping volume contents", "pod", pod.Namespace+"/"+pod.Name, "volume", v.Name, "because", err)
			if answer {
				return out, c.due, nil // the signer's word wakes the pod
			}
			return out, m.cfg.Clock.Now().Add(10 * time.Second), nil
		}
		return out, time.Time{}, err
	}
	if c.degraded != nil {
		m.cfg.Log.Warn("volume contents are not fresh", "pod", pod.Namespace+"/"+pod.Name, "volume", v.Name, "err", c.degraded)
	}
	if err := m.k.mkdirAll(dir, 0o750); err != nil {
		return out, time.Time{}, err
	}
	if plugin != pluginConfigMap {
		if err := m.k.tmpfs(dir, 0); err != nil {
			return out, time.Time{}, err
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return out, time.Time{}, err
	}
	group := podGroup(pod, true)
	w := writer{k: m.k, dir: dir, now: m.cfg.Clock.Now, own: group.apply}
	changed, err := w.write(want)
	if err == nil && group != nil {
		err = group.top(dir)
	}
	if err != nil {
		return out, time.Time{}, err
	}
	if changed {
		m.metrics.written.Inc()
	}
	return out, c.due, nil
}

// holds says whether a volume was written before and is still there.
func (m *Manager) holds(dir, plugin string) (bool, error) {
	if _, err := os.Lstat(dir + "/" + dataDir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, err
	}
	if plugin == pluginConfigMap {
		return true, nil
	}
	return isMount(dir)
}

func payloadPlugin(v *v1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return pluginConfigMap
	case v.Secret != nil:
		return pluginSecret
	case v.DownwardAPI != nil:
		return pluginDownward
	}
	return pluginProjected
}

func clone(in map[string]Mounted) map[string]Mounted {
	out := make(map[string]Mounted, len(in))
	for k, v := range in {
		out[k] = v
	}
	return out
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
