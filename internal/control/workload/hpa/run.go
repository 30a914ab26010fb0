package hpa

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	listers "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Period is the time between two looks at an autoscaler:
// --horizontal-pod-autoscaler-sync-period.
const Period = 15 * time.Second

// concurrent is how many autoscalers are looked at in parallel:
// --concurrent-horizontal-pod-autoscaler-syncs.
const concurrent = 5

type reconciler struct {
	controller.Env
	queue   *controller.Queue
	scalers listers.HorizontalPodAutoscalerLister
	pods    corelisters.PodLister
	scales  scale.ScalesGetter
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	reader  reader

	mu     sync.Mutex
	memory map[string]*remembered // by key
}

// remembered is what one autoscaler's rounds leave to the next.
type remembered struct {
	uid      types.UID
	history  history
	selector labels.Selector // of the target, as last seen
}

// Run scales until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	client := e.Client.Discovery().RESTClient()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(e.Client.Discovery()))
	scalers := e.Informers.Autoscaling().V2().HorizontalPodAutoscalers()
	pods := e.Informers.Core().V1().Pods()
	r := &reconciler{Env: e, queue: controller.NewQueue(), scalers: scalers.Lister(), pods: pods.Lister(), mapper: mapper,
		scales: scale.New(client, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(e.Client.Discovery())),
		reader: reader{api: client, mapper: mapper}, memory: map[string]*remembered{}}
	a, err1 := controller.On(ctx, scalers.Informer(), func(old, h *autoscalingv2.HorizontalPodAutoscaler, gone bool) {
		// Its own status is what changes most.
		if old == nil || gone || old.Generation != h.Generation || old.UID != h.UID {
			r.queue.Add(controller.Key(h))
		}
	})
	b, err2 := controller.On(ctx, pods.Informer(), func(_, _ *v1.Pod, _ bool) {})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	return e.Run(ctx, r.queue, concurrent, r.sync)
}

func (r *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name := controller.Split(key)
	h, err := r.scalers.HorizontalPodAutoscalers(ns).Get(name)
	if apierrors.IsNotFound(err) {
		r.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if h.DeletionTimestamp != nil {
		return 0, nil
	}
	in := input{HPA: h, Settings: DefaultSettings, Now: time.Now(), History: r.remember(key, h.UID)}
	target, resource, err := r.target(ctx, h)
	if err != nil {
		in.ScaleError = err
	} else {
		in.Scale = &targetScale{Spec: target.Spec.Replicas, Status: target.Status.Replicas, Selector: target.Status.Selector}
		if err := r.gather(ctx, key, &in); err != nil {
			return 0, err
		}
	}
	return Period, r.act(ctx, key, in, resource, target)
}

// target reads the scale of an autoscaler's target.
func (r *reconciler) target(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.Scale, schema.GroupResource,
	error) {
	ref := h.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, schema.GroupResource{}, fmt.Errorf("invalid API version in scale target reference: %w", err)
	}
	kind := schema.GroupKind{Group: gv.Group, Kind: ref.Kind}
	mappings, err := r.mapper.RESTMappings(kind)
	if meta.IsNoMatchError(err) {
		r.mapper.Reset() // a kind may have come since
		mappings, err = r.mapper.RESTMappings(kind)
	}
	if err != nil {
		return nil, schema.GroupResource{}, fmt.Errorf("unable to determine resource for scale target reference: %w", err)
	}
	var first error
	for _, m := range mappings {
		gr := m.Resource.GroupResource()
		s, err := r.scales.Scales(h.Namespace).Get(ctx, gr, ref.Name, metav1.GetOptions{})
		if err == nil {
			return s, gr, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, schema.GroupResource{}, first
}

// gather reads the pods of the target, and the metrics unless the size alone
// decides.
func (r *reconciler) gather(ctx context.Context, key string, in *input) error {
	selector, err := labels.Parse(in.Scale.Selector)
	if err != nil || in.Scale.Selector == "" {
		return nil // Plan says so
	}
	h := in.HPA
	if in.Pods, err = r.pods.Pods(h.Namespace).List(selector); err != nil {
		return err
	}
	in.Rivals = r.rivals(key, selector, in.Pods)
	if len(in.Rivals) > 0 || in.Scale.Spec > h.Spec.MaxReplicas {
		return nil
	}
	for i := range h.Spec.Metrics {
		in.Readings = append(in.Readings, r.reader.read(ctx, h.Namespace, in.Scale.Selector, &h.Spec.Metrics[i]))
	}
	in.Now = time.Now()
	return ctx.Err()
}

// act does what the plan says.
func (r *reconciler) act(ctx context.Context, key string, in input, resource schema.GroupResource, target *autoscalingv1.Scale) error {
	h := in.HPA
	out := plan(in)
	if out.Rescale {
		current := target.Spec.Replicas
		target.Spec.Replicas = out.Replicas
		_, err := r.scales.Scales(h.Namespace).Update(ctx, resource, target, metav1.UpdateOptions{})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			r.Note("HorizontalPodAutoscaler", h, fmt.Sprintf("scaled %s %s from %d to %d", h.Spec.ScaleTargetRef.Kind,
				h.Spec.ScaleTargetRef.Name, current, out.Replicas),
				journal.Fact{Name: "reason", Value: out.Reason})
		}
		out = out.Rescaled(time.Now(), current, err)
	}
	r.store(key, h.UID, out.History)
	_, _, err := kube.PatchStatus(ctx, r.Client.AutoscalingV2().HorizontalPodAutoscalers(h.Namespace), h, h.Status, out.Status)
	if err != nil && !kube.Gone(err) {
		return fmt.Errorf("writing the status of HorizontalPodAutoscaler %s: %w", key, err)
	}
	for _, ev := range out.Events {
		to := controller.Event{To: r.Recorder("horizontal-pod-autoscaler"), Reason: ev.Reason, Message: ev.Message}
		if ev.Warning {
			to.Type = v1.EventTypeWarning
		}
		r.Tell(controller.Note{Kind: "HorizontalPodAutoscaler", APIVersion: "autoscaling/v2", Object: h, Event: to})
	}
	return nil
}

// remember is the history of an autoscaler; one made again under an old name
// has none.
func (r *reconciler) remember(key string, uid types.UID) history {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memory[key]
	if m == nil || m.uid != uid {
		m = &remembered{uid: uid}
		r.memory[key] = m
	}
	return m.history
}

func (r *reconciler) store(key string, uid types.UID, h history) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.memory[key]; m != nil && m.uid == uid {
		m.history = h
	}
}

func (r *reconciler) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, key)
}

// rivals names other autoscalers of the namespace whose targets choose one of
// the pods; two that change one set of pods would never come to rest.
func (r *reconciler) rivals(key string, selector labels.Selector, pods []*v1.Pod) []string {
	ns, _ := controller.Split(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.memory[key]; m != nil {
		m.selector = selector
	}
	var out []string
	for other, m := range r.memory {
		otherNS, name := controller.Split(other)
		if other == key || otherNS != ns || m.selector == nil {
			continue
		}
		if slices.ContainsFunc(pods, func(p *v1.Pod) bool { return m.selector.Matches(labels.Set(p.Labels)) }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
