package metrics

import (
	"context"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Versions are the served versions, the preferred one first (KEP-5207).
var Versions = []string{metricsv1.SchemeGroupVersion.Version, metricsv1beta1.SchemeGroupVersion.Version}

// Scheme knows the types of the group.
var Scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	s.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	return s
}()

// Source is where the storages read from.
type Source struct {
	Feed  *Feed
	Nodes corelisters.NodeLister
	Pods  corelisters.PodLister
}

// Group is what an API server installs.
func Group(src Source) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, Scheme, metav1.ParameterCodec, serializer.NewCodecFactory(Scheme))
	for _, v := range Versions {
		info.VersionedResourcesStorageMap[v] = map[string]rest.Storage{"nodes": &nodeREST{src: src}, "pods": &podREST{src: src}}
	}
	return &info
}

// ask bounds how long a request waits for the first scrapes.
const ask = 8 * time.Second

func (s Source) states(ctx context.Context) map[string]state {
	ctx, cancel := context.WithTimeout(ctx, ask)
	defer cancel()
	return s.Feed.States(ctx)
}

// selectors are those of a list; both choose by the pod or node, not by its
// metrics.
func selectors(o *metainternal.ListOptions) (labels.Selector, fields.Selector) {
	l, f := labels.Everything(), fields.Everything()
	if o != nil && o.LabelSelector != nil {
		l = o.LabelSelector
	}
	if o != nil && o.FieldSelector != nil {
		f = o.FieldSelector
	}
	return l, f
}

type nodeREST struct{ src Source }

var (
	_ rest.Getter               = (*nodeREST)(nil)
	_ rest.Lister               = (*nodeREST)(nil)
	_ rest.Scoper               = (*nodeREST)(nil)
	_ rest.SingularNameProvider = (*nodeREST)(nil)
	_ rest.KindProvider         = (*nodeREST)(nil)
)

func (*nodeREST) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (*nodeREST) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (*nodeREST) Destroy()                {}
func (*nodeREST) Kind() string            { return "NodeMetrics" }
func (*nodeREST) NamespaceScoped() bool   { return false }
func (*nodeREST) GetSingularName() string { return "" }

func (r *nodeREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	n, err := r.src.Nodes.Get(name)
	if err != nil {
		return nil, err
	}
	if m := nodeMetrics(n, r.src.states(ctx)[name], time.Now()); m != nil {
		return m, nil
	}
	return nil, apierrors.NewNotFound(metrics.Resource("nodemetrics"), name)
}

func (r *nodeREST) List(ctx context.Context, o *metainternal.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(o)
	nodes, err := r.src.Nodes.List(byLabel)
	if err != nil {
		return nil, err
	}
	states, now, out := r.src.states(ctx), time.Now(), &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for _, n := range nodes {
		if m := nodeMetrics(n, states[n.Name], now); m != nil && byField.Matches(fields.Set{"metadata.name": n.Name}) {
			out.Items = append(out.Items, *m)
		}
	}
	slices.SortFunc(out.Items, func(a, b metrics.NodeMetrics) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

type podREST struct{ src Source }

var (
	_ rest.Getter               = (*podREST)(nil)
	_ rest.Lister               = (*podREST)(nil)
	_ rest.Scoper               = (*podREST)(nil)
	_ rest.SingularNameProvider = (*podREST)(nil)
	_ rest.KindProvider         = (*podREST)(nil)
)

func (*podREST) New() runtime.Object     { return &metrics.PodMetrics{} }
func (*podREST) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (*podREST) Destroy()                {}
func (*podREST) Kind() string            { return "PodMetrics" }
func (*podREST) NamespaceScoped() bool   { return true }
func (*podREST) GetSingularName() string { return "" }

func (r *podREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	ns := genericapirequest.NamespaceValue(ctx)
	p, err := r.src.Pods.Pods(ns).Get(name)
	if err != nil {
		return nil, err
	}
	if m := podMetrics(p, r.src.states(ctx)[p.Spec.NodeName], time.Now()); m != nil {
		return m, nil
	}
	return nil, apierrors.NewNotFound(metrics.Resource("podmetrics"), ns+"/"+name)
}

func (r *podREST) List(ctx context.Context, o *metainternal.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(o)
	pods, err := r.src.Pods.Pods(genericapirequest.NamespaceValue(ctx)).List(byLabel)
	if err != nil {
		return nil, err
	}
	states, now, out := r.src.states(ctx), time.Now(), &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for _, p := range pods {
		if m := podMetrics(p, states[p.Spec.NodeName], now); m != nil && byField.Matches(podFields(p)) {
			out.Items = append(out.Items, *m)
		}
	}
	slices.SortFunc(out.Items, func(a, b metrics.PodMetrics) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

func podFields(p *v1.Pod) fields.Set {
	return fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName,
		"status.phase": string(p.Status.Phase)}
}
