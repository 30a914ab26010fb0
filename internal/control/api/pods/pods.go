// Package pods serves the Pod resource and its subresources: what a pod may become, who may bind, evict, resize and
// look into it.
package pods

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/control/api/storebase"
)

// Disruptions reads and spends disruption budgets; internal/control/api/disruption makes one from a client.
type Disruptions interface {
	// Budgets lists the budgets of a namespace.
	Budgets(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error)
	// Get reads one budget, live.
	Get(ctx context.Context, namespace, name string) (*policyv1.PodDisruptionBudget, error)
	// Spend writes the status of a budget under its resourceVersion; a Conflict error means somebody else wrote first.
	Spend(ctx context.Context, budget *policyv1.PodDisruptionBudget) error
}

// Deps are the collaborators of the pod storage.
type Deps struct {
	Kit storebase.Kit
	// Resize and Ephemeral validate writes to those subresources; the kit validates all others.
	Resize, Ephemeral storebase.ChangeCheck
	// Disruptions guards evictions.
	Disruptions Disruptions
	// Nodes finds the kubelet of a node, for log, exec, attach and portforward.
	Nodes nodelink.Finder
	// Authorizer is asked for create on exec, attach and portforward that start with GET. Required.
	Authorizer authorizer.Authorizer
	// Proxy reaches pod IPs, for pods/proxy. Nil means a transport that does not verify the pod's certificate.
	Proxy http.RoundTripper
	// ProxyLoopback lets pods/proxy reach loopback addresses. Only tests and clusters whose node lives on loopback
	// want it: with it, whoever may proxy to a pod reaches the API server's own loopback listeners.
	ProxyLoopback bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger
}

var podResource = v1.Resource("pods")

// strategy adds graceful deletion to the ordinary strategy.
type strategy struct{ storebase.Strategy }

// CheckGracefulDelete fills in the grace period. Pods are always deleted gracefully, if only with a period of zero.
func (strategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	grace := graceFor(obj.(*v1.Pod), options.GracePeriodSeconds)
	options.GracePeriodSeconds = &grace
	return true
}

// NewStorage builds the endpoints of pods and bindings. The deprecated "bindings" resource shares the pod storage.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	deps = withDefaults(deps)
	base := deps.Kit.Base(true)
	base.PrepareNew = func(_ context.Context, obj runtime.Object) { prepareNew(obj.(*v1.Pod), metav1.Now()) }
	base.PrepareChange = changeBy(prepareChange)
	base.WarnNew = warnings
	base.Reset = storebase.Fields("v1", []string{"status"})

	store, err := deps.Kit.NewStore(opts, storebase.Spec{
		Resource: podResource, Singular: "pod",
		New:           func() runtime.Object { return &v1.Pod{} },
		NewList:       func() runtime.Object { return &v1.PodList{} },
		Strategy:      strategy{base},
		ReturnDeleted: true,
		Options: generic.StoreOptions{
			TriggerFunc: storage.IndexerFuncs{"spec.nodeName": nodeName},
			Indexers:    &cache.Indexers{storage.FieldIndex("spec.nodeName"): nodeNameIndex},
		},
	})
	if err != nil {
		return nil, err
	}

	status := deps.Kit.StatusOf(base, changeBy(keepForStatus),
		storebase.Fields("v1", []string{"spec"}, []string{"metadata", "deletionTimestamp"}, []string{"metadata", "ownerReferences"}))
	statusREST := storebase.NewSubresource(store, strategy{status})

	ephemeral := deps.Kit.StatusOf(base, changeBy(onlyEphemeral), storebase.Fields("v1", []string{"status"}))
	ephemeral.CheckChange = deps.Ephemeral
	resize := deps.Kit.StatusOf(base, changeBy(onlyResources), storebase.Fields("v1", []string{"status"}))
	resize.CheckChange = checkResize(deps.Resize)

	binding := &bindingREST{store: store, now: deps.Now}
	looker := &looker{store: store, deps: deps}
	return map[string]rest.Storage{
		"pods":                     newShown(&storebase.Resource{Store: store, Short: []string{"po"}, In: []string{"all"}}),
		"pods/status":              statusREST,
		"pods/binding":             binding,
		"bindings":                 &legacyBindingREST{binding},
		"pods/eviction":            &evictionREST{store: store, status: statusREST, deps: deps},
		"pods/ephemeralcontainers": storebase.NewSubresource(store, strategy{ephemeral}),
		"pods/resize":              storebase.NewSubresource(store, strategy{resize}),
		"pods/log":                 &logREST{looker},
		"pods/exec":                newExec(looker),
		"pods/attach":              newAttach(looker),
		"pods/portforward":         newPortForward(looker),
		"pods/proxy":               newProxy(looker),
	}, nil
}

func withDefaults(d Deps) Deps {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Proxy == nil {
		d.Proxy = nodelink.InsecureTransport()
	}
	return d
}

func changeBy(f func(pod, old *v1.Pod)) func(context.Context, runtime.Object, runtime.Object) {
	return func(_ context.Context, obj, old runtime.Object) { f(obj.(*v1.Pod), old.(*v1.Pod)) }
}

// checkResize adds to the kit's rules the one that needs the QoS arithmetic of this package.
func checkResize(more storebase.ChangeCheck) storebase.ChangeCheck {
	return func(obj, old runtime.Object) field.ErrorList {
		var errs field.ErrorList
		if more != nil {
			errs = more(obj, old)
		}
		if was, is := QOS(old.(*v1.Pod)), QOS(obj.(*v1.Pod)); was != is && len(errs) == 0 {
			errs = append(errs, field.Invalid(field.NewPath("spec"), is, "Pod QOS Class may not change as a result of resizing"))
		}
		return errs
	}
}

func nodeName(obj runtime.Object) string { return obj.(*v1.Pod).Spec.NodeName }

func nodeNameIndex(obj any) ([]string, error) { return []string{obj.(*v1.Pod).Spec.NodeName}, nil }

// getPod reads a pod for a subresource that acts on it.
func getPod(ctx context.Context, store *registry.Store, name string) (*v1.Pod, error) {
	obj, err := store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.Pod), nil
}
