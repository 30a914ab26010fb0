package volume

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/controller"
)

// kind is a kind of object whose contents pods see.
type kind string

const (
	configMaps kind = "configmaps"
	secrets    kind = "secrets"
)

// key names one object.
type key struct {
	kind            kind
	namespace, name string
}

// content is what is kept of an object: enough for volumes, environments and
// pull secrets, and nothing else.
type content struct {
	configMap *v1.ConfigMap
	secret    *v1.Secret
	version   string
	immutable bool
}

// objects keeps the ConfigMaps and Secrets that this node's pods refer to up
// to date, and tells when one changes.
//
// An identity that may list and watch a whole kind (the cluster's own admin)
// gets one watch for it, which starts at a version and so transfers only
// changes; an identity held by the Node authorizer gets one watch per
// referenced object, because that is all it may have. Objects no one refers to
// are never kept.
type objects struct {
	client kubernetes.Interface
	clock  clock.WithTicker
	log    *slog.Logger
	// changed is called, without locks, with the pods that refer to an object
	// whose contents changed.
	changed func(k key, pods []types.UID)

	ctx  context.Context // ends all watches
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	entries map[key]*entry
	byPod   map[types.UID]map[key]bool
	shared  map[kind]*sharing
}

// sharing is how a kind is watched; all is valid once decided is closed. Until
// then err is why that could not be found out, for those who wait.
type sharing struct {
	decided chan struct{}
	all     bool
	err     error // guarded by objects.mu
}

// entry is one referenced object.
type entry struct {
	pods map[types.UID]bool
	// loaded closes when the first answer is known.
	loaded chan struct{}
	done   bool
	value  *content
	err    error
	// touched counts answers, so that a slow read cannot overwrite a newer event.
	touched int
	cancel  context.CancelFunc
}

func newObjects(client kubernetes.Interface, clk clock.WithTicker, log *slog.Logger, changed func(key, []types.UID)) *objects {
	ctx, stop := context.WithCancel(context.Background())
	return &objects{
		client: client, clock: clk, log: log, changed: changed, ctx: ctx, stop: stop,
		entries: map[key]*entry{}, byPod: map[types.UID]map[key]bool{}, shared: map[kind]*sharing{},
	}
}

// close ends all watches and waits for them.
func (o *objects) close() {
	o.stop()
	o.wg.Wait()
}

// refer declares that a pod needs exactly these objects.
func (o *objects) refer(uid types.UID, keys []key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	want := make(map[key]bool, len(keys))
	for _, k := range keys {
		want[k] = true
	}
	for k := range o.byPod[uid] {
		if !want[k] {
			o.dropLocked(uid, k)
		}
	}
	if len(want) == 0 {
		delete(o.byPod, uid)
		return
	}
	o.byPod[uid] = want
	for k := range want {
		e := o.entries[k]
		if e == nil {
			e = &entry{pods: map[types.UID]bool{}, loaded: make(chan struct{})}
			o.entries[k] = e
			o.startLocked(k, e)
		}
		e.pods[uid] = true
	}
}

// forget drops all references of a pod.
func (o *objects) forget(uid types.UID) { o.refer(uid, nil) }

func (o *objects) dropLocked(uid types.UID, k key) {
	e := o.entries[k]
	if e == nil {
		return
	}
	delete(e.pods, uid)
	if len(e.pods) == 0 {
		e.cancel()
		delete(o.entries, k)
	}
}

// startLocked begins to follow one object.
func (o *objects) startLocked(k key, e *entry) {
	ctx, cancel := context.WithCancel(o.ctx)
	e.cancel = cancel
	if o.ctx.Err() != nil {
		return
	}
	sh := o.shared[k.kind]
	if sh == nil {
		sh = &sharing{decided: make(chan struct{})}
		o.shared[k.kind] = sh
		o.wg.Go(func() { o.runKind(k.kind, sh) })
	}
	undecided := sh.err
	o.wg.Go(func() {
		if undecided != nil {
			o.set(k, e, nil, undecided)
		}
		select {
		case <-sh.decided:
		case <-ctx.Done():
			return
		}
		if sh.all {
			o.readUntil(ctx, k, e)
			return
		}
		o.runOne(ctx, k, e)
	})
}

// get is the present content of an object. For one that a pod refers to it
// waits for the first answer and then never asks the API; any other is read.
func (o *objects) get(ctx context.Context, k key) (*content, error) {
	o.mu.Lock()
	e := o.entries[k]
	o.mu.Unlock()
	if e == nil {
		return o.read(ctx, k)
	}
	select {
	case <-e.loaded:
	case <-ctx.Done():
		return nil, fmt.Errorf("reading %s %s/%s: %w", k.kind, k.namespace, k.name, ctx.Err())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.value, e.err
}

// set records an answer and reports whether contents changed.
func (o *objects) set(k key, e *entry, value *content, err error) {
	o.mu.Lock()
	if o.entries[k] != e || stale(e.value, value) {
		o.mu.Unlock()
		return
	}
	// A failed read says nothing about contents that are known already.
	if err != nil && !apierrors.IsNotFound(err) && e.done && e.err == nil {
		o.mu.Unlock()
		return
	}
	news := e.done && (value != nil) != (e.value != nil) || value != nil && e.value != nil && value.version != e.value.version
	e.value, e.err = value, err
	e.touched++
	if !e.done {
		e.done = true
		close(e.loaded)
	}
	var pods []types.UID
	if news {
		for uid := range e.pods {
			pods = append(pods, uid)
		}
	}
	o.mu.Unlock()
	if len(pods) > 0 {
		o.changed(k, pods)
	}
}

// read asks the API for one object.
func (o *objects) read(ctx context.Context, k key) (*content, error) {
	value, err := o.ask(ctx, k)
	if apierrors.IsNotFound(err) {
		err = notFound(k)
	}
	return value, err
}

func (o *objects) ask(ctx context.Context, k key) (*content, error) {
	switch k.kind {
	case configMaps:
		obj, err := o.client.CoreV1().ConfigMaps(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return contentOf(obj), nil
	case secrets:
		obj, err := o.client.CoreV1().Secrets(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return contentOf(obj), nil
	}
	return nil, fmt.Errorf("reading %s: not a kind that pods refer to", k.kind)
}

// contentOf keeps what pods can see of an object.
func contentOf(obj any) *content {
	switch t := obj.(type) {
	case *v1.ConfigMap:
		return &content{version: t.ResourceVersion, immutable: t.Immutable != nil && *t.Immutable, configMap: &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Name, UID: t.UID, ResourceVersion: t.ResourceVersion},
			Data:       t.Data, BinaryData: t.BinaryData,
		}}
	case *v1.Secret:
		return &content{version: t.ResourceVersion, immutable: t.Immutable != nil && *t.Immutable, secret: &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Name, UID: t.UID, ResourceVersion: t.ResourceVersion},
			Data:       t.Data, Type: t.Type,
		}}
	}
	return nil
}

// undecided tells everybody who waits for objects of a kind that the API
// server could not be asked.
func (o *objects) undecided(kd kind, sh *sharing, err error) {
	o.mu.Lock()
	sh.err = err
	waiting := map[key]*entry{}
	for k, e := range o.entries {
		if k.kind == kd {
			waiting[k] = e
		}
	}
	o.mu.Unlock()
	for k, e := range waiting {
		o.set(k, e, nil, err)
	}
}

// notFound says that an object does not exist, in a kubelet's words: it names
// one object where the API server names the resource.
func notFound(k key) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: strings.TrimSuffix(string(k.kind), "s")}, k.name)
}

// mayWatchAll asks whether this identity may follow a whole kind.
func (o *objects) mayWatchAll(ctx context.Context, kd kind) (bool, error) {
	for _, verb := range []string{"list", "watch"} {
		r, err := o.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorization.ResourceAttributes{Verb: verb, Resource: string(kd), Version: "v1"},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		if !r.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// objectRetry are the pauses between attempts against an API server that is away.
var objectRetry = controller.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
