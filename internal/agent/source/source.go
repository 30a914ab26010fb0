// Package source tells the agent which pods it should run: those the API binds
// to its node, and static ones from a directory, a file or a URL. For each
// static pod it keeps a mirror in the API.
package source

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/controller"
)

// Annotations that name a pod's source.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationSeen   = "kubernetes.io/config.seen"
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationMirror = v1.MirrorPodAnnotationKey
)

// sink takes the news. Calls come from several goroutines and must not block.
// Objects handed over are shared and never changed.
type sink interface {
	// Set takes a new or changed pod.
	Set(pod *v1.Pod, static bool)
	// Gone tells that no source has the pod any more.
	Remove(uid types.UID)
	// SetMirror tells what the API holds as mirror of a static pod, or nil.
	SetMirror(static types.UID, mirror *v1.Pod)
	// SourcesReady is called once, when every source has delivered all it has.
	SourcesReady()
}

// WhenReady calls f once every source has delivered all it has, behind the sink.
func WhenReady(sink sink, f func()) sink { return readySink{sink, f} }

type readySink struct {
	sink
	then func()
}

func (s readySink) SourcesReady() {
	s.sink.SourcesReady()
	s.then()
}

// Config says where pods come from. NodeName, Sink and Log are required.
type Config struct {
	NodeName string
	// Client is the API; nil runs static pods alone.
	Client kubernetes.Interface
	// Node returns the Node's UID for mirror pods, "" while it is not known.
	Node func() types.UID
	// NodeReady is closed when Node knows; nil: it knows from the start.
	NodeReady <-chan struct{}
	// Ending returns a channel that is closed once nothing runs any more of a pod
	// that no source has, nil if there is no such pod: its mirror stays so long.
	// Nil: mirrors go at once.
	Ending func(types.UID) <-chan struct{}
	// Path is a manifest file or a directory of them; empty for none.
	Path string
	// PathPeriod is the net under inotify (20 s when zero).
	PathPeriod time.Duration
	// URL of a Pod or PodList, with extra request headers; empty for none.
	URL    string
	Header http.Header
	// URLPeriod is how often the URL is asked (20 s when zero).
	URLPeriod time.Duration
	// StatePath is the file that keeps the UIDs of static pods; empty for none.
	StatePath string
	// Runtime tells under which UIDs static pods run already; nil: under none.
	Runtime Runtime
	Sink    sink
	// Recorder gets an event for each manifest that is refused.
	Recorder record.EventRecorder
	Log      *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Run feeds the sink until ctx ends. Every source works by itself: static pods
// run while the API is away.
func Run(ctx context.Context, cfg Config) error {
	if cfg.NodeName == "" || cfg.Sink == nil || cfg.Log == nil {
		return errors.New("running the pod sources: NodeName, Sink and Log are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &set{cfg: cfg, statics: map[types.UID]*v1.Pod{}, mirrors: map[types.NamespacedName]*v1.Pod{},
		bySource: map[string]map[types.UID]bool{}, awaited: map[types.NamespacedName]bool{}, met: make(chan struct{})}
	var err error
	if s.ids, err = openIdentities(cfg.StatePath); err != nil {
		cfg.Log.Warn("static pods get their UIDs from the runtime, or new ones", "err", err)
	}
	var wg sync.WaitGroup
	if cfg.Path != "" || cfg.URL != "" {
		wg.Go(func() { s.meetRuntime(ctx) })
	}
	s.expect("api", cfg.Client != nil)
	s.expect("file", cfg.Path != "")
	s.expect("url", cfg.URL != "")
	if cfg.Client != nil {
		s.queue = newMirrorQueue()
		wg.Go(func() { s.runAPI(ctx) })
		wg.Go(func() { s.runMirrors(ctx) })
	}
	if cfg.Path != "" {
		wg.Go(func() { s.runFiles(ctx) })
	}
	if cfg.URL != "" {
		wg.Go(func() { s.runURL(ctx) })
	}
	s.checkReady()
	wg.Wait()
	return ctx.Err()
}

// set is what all sources together have.
type set struct {
	cfg   Config
	queue *controller.Queue
	ids   *identities
	met   chan struct{} // closed when the runtime has reported its static pods

	mu       sync.Mutex
	waiting  map[string]bool // sources that have not reported
	told     bool
	statics  map[types.UID]*v1.Pod
	mirrors  map[types.NamespacedName]*v1.Pod
	bySource map[string]map[types.UID]bool
	awaited  map[types.NamespacedName]bool // mirrors that wait for their pod's end
}

func (s *set) expect(name string, there bool) {
	if s.waiting == nil {
		s.waiting = map[string]bool{}
	}
	if there {
		s.waiting[name] = true
	}
}

// reported marks a source as complete.
func (s *set) reported(name string) {
	s.mu.Lock()
	first := s.waiting[name]
	delete(s.waiting, name)
	var names []types.NamespacedName
	if name == "api" && first {
		for _, p := range s.statics {
			names = append(names, nameOf(p))
		}
	}
	s.mu.Unlock()
	for _, n := range names { // only now is a missing mirror known to be missing
		s.touchMirror(n)
	}
	s.checkReady()
}

func (s *set) checkReady() {
	s.mu.Lock()
	ready := len(s.waiting) == 0 && !s.told
	if ready {
		s.told = true
	}
	names := make([]types.NamespacedName, 0, len(s.mirrors))
	if ready {
		for n := range s.mirrors {
			names = append(names, n)
		}
	}
	s.mu.Unlock()
	if !ready {
		return
	}
	s.cfg.Sink.SourcesReady()
	for _, n := range names { // mirrors without a static pod can go now
		s.touchMirror(n)
	}
}

// runtimeRetry are the pauses before the runtime is asked again.
var runtimeRetry = controller.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}

// meetRuntime asks what static pods run already. A pod must not be given another
// UID because the runtime was slow, so it is asked until it answers.
func (s *set) meetRuntime(ctx context.Context) {
	retry := controller.Retry{Backoff: runtimeRetry}
	for {
		err := s.ids.meet(ctx, s.cfg.Runtime)
		if err == nil {
			close(s.met)
			return
		}
		pause := retry.Failed()
		s.cfg.Log.Warn("static pods wait", "err", err, "retry", pause)
		if !controller.Sleep(ctx, pause) {
			return
		}
	}
}

// awaitRuntime waits for the runtime's answer; false if ctx ends first.
func (s *set) awaitRuntime(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.met:
		return true
	}
}

// keepIdentities keeps the UIDs of one source's static pods on disk.
func (s *set) keepIdentities(kind string, keys []string) {
	if err := s.ids.keep(kind, keys); err != nil {
		s.cfg.Log.Warn("keeping the UIDs of static pods", "err", err)
	}
}

// replace takes in all static pods that one source has.
func (s *set) replace(source string, pods []*v1.Pod) {
	s.mu.Lock()
	next := map[types.UID]bool{}
	names := map[types.NamespacedName]bool{}
	var fresh []*v1.Pod
	for _, p := range pods {
		if name := nameOf(p); names[name] {
			s.refuse(p, "a pod of this name is already defined by the same source")
			continue
		}
		names[nameOf(p)] = true
		next[p.UID] = true
		if have := s.statics[p.UID]; have == nil {
			fresh = append(fresh, p)
		}
	}
	var gone []*v1.Pod
	for uid := range s.bySource[source] {
		if !next[uid] {
			gone = append(gone, s.statics[uid])
			delete(s.statics, uid)
		}
	}
	for _, p := range fresh {
		s.statics[p.UID] = p
	}
	s.bySource[source] = next
	s.mu.Unlock()

	for _, p := range gone {
		s.cfg.Sink.Remove(p.UID)
	}
	for _, p := range fresh {
		s.cfg.Sink.Set(p, true)
	}
	for _, p := range append(gone, fresh...) {
		s.touchMirror(nameOf(p))
		s.reportMirror(nameOf(p))
	}
}

// refuse reports a static pod that is not run.
func (s *set) refuse(p *v1.Pod, why string) {
	s.cfg.Log.Error("refusing a static pod", "pod", p.Namespace+"/"+p.Name, "why", why)
	if s.cfg.Recorder != nil {
		s.cfg.Recorder.Event(p, v1.EventTypeWarning, "FailedValidation", "Error validating pod "+p.Namespace+"/"+p.Name+": "+why+
			", ignoring")
	}
}

func nameOf(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// staticNamed returns the static pod of a name; s.mu is held.
func (s *set) staticNamed(n types.NamespacedName) *v1.Pod {
	for _, p := range s.statics {
		if nameOf(p) == n {
			return p
		}
	}
	return nil
}

// reportMirror passes on what the API holds for a static pod.
func (s *set) reportMirror(n types.NamespacedName) {
	s.mu.Lock()
	p, m := s.staticNamed(n), s.mirrors[n]
	s.mu.Unlock()
	if p == nil {
		return
	}
	if m != nil && (m.Annotations[AnnotationMirror] != p.Annotations[AnnotationHash] || m.DeletionTimestamp != nil) {
		m = nil // the mirror of an older definition: its status is not ours
	}
	s.cfg.Sink.SetMirror(p.UID, m)
}

var zero = ptr.To(int64(0))
