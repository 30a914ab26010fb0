// Package pods serves the Pod resource and its subresources: what a pod may
// become, who may bind, evict, resize and look into it.
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
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/api/kinds/core"
	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// Disruptions reads and spends disruption budgets;
// internal/control/api/disruption makes one from a client.
type Disruptions interface {
	// Budgets lists the budgets of a namespace.
	Budgets(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error)
	// Get reads one budget, live.
	Get(ctx context.Context, namespace, name string) (*policyv1.PodDisruptionBudget, error)
	// UpdateStatus writes the status of a budget under its resourceVersion; a
	// Conflict error means another party wrote first.
	UpdateStatus(ctx context.Context, budget *policyv1.PodDisruptionBudget) error
}

// Deps are the collaborators of the pod storage.
type Deps struct {
	Scheme *runtime.Scheme
	// Disruptions guards evictions.
	Disruptions Disruptions
	// Nodes finds the kubelet of a node, for log, exec, attach and portforward.
	Nodes nodelink.Finder
	// Authorizer is asked for create on exec, attach and portforward that start
	// with GET. Required.
	Authorizer authorizer.Authorizer
	// Proxy reaches pod IPs, for pods/proxy. Nil means a transport that does
	// not verify the pod's certificate.
	Proxy http.RoundTripper
	// ProxyLoopback lets pods/proxy reach loopback addresses. Only tests and
	// clusters whose node lives on loopback want it: with it, anyone who may
	// proxy to a pod reaches the API server's own loopback listeners.
	ProxyLoopback bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger
}

var podResource = v1.Resource("pods")

// checkGracefulDelete fills in the grace period. Pods are always deleted
// gracefully, if only with a period of zero.
func checkGracefulDelete(_ context.Context, pod *v1.Pod, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	grace := graceFor(pod, options.GracePeriodSeconds)
	options.GracePeriodSeconds = &grace
	return true
}

// NewStorage builds the endpoints of pods and bindings. The deprecated
// "bindings" resource shares the pod storage.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	deps = withDefaults(deps)
	kind := core.Pod
	kind.PrepareForCreate = func(_ context.Context, pod *v1.Pod) { prepareNew(pod, metav1.Now()) }
	kind.PrepareForUpdate = changeBy(prepareChange)
	kind.WarningsOnCreate = warnings
	kind.CheckGracefulDelete = checkGracefulDelete
	kind.Options = generic.StoreOptions{
		TriggerFunc: storage.IndexerFuncs{"spec.nodeName": nodeName},
		Indexers:    &cache.Indexers{storage.FieldIndex("spec.nodeName"): nodeNameIndex},
	}
	main, err := kind.NewStore(deps.Scheme, opts)
	if err != nil {
		return nil, err
	}
	store := main.Store
	status := kind.NewSubresource(main, registry.Endpoint[*v1.Pod]{
		PrepareForUpdate: changeBy(keepForStatus),
		ValidateUpdate:   func(pod, old *v1.Pod) field.ErrorList { return kind.CheckStatusUpdate(pod, old) },
		ResetFields:      [][]string{{"spec"}, {"metadata", "deletionTimestamp"}, {"metadata", "ownerReferences"}},
	})
	ephemeral := kind.NewSubresource(main, registry.Endpoint[*v1.Pod]{
		PrepareForUpdate: changeBy(onlyEphemeral), ValidateUpdate: validate.PodEphemeralContainers, ResetFields: [][]string{{"status"}},
	})
	resize := kind.NewSubresource(main, registry.Endpoint[*v1.Pod]{
		PrepareForUpdate: changeBy(onlyResources), ValidateUpdate: checkResize, ResetFields: [][]string{{"status"}},
	})

	binding := &bindingREST{store: store, now: deps.Now}
	looker := &looker{store: store, deps: deps}
	return map[string]rest.Storage{
		"pods":                     newShown(main),
		"pods/status":              status,
		"pods/binding":             binding,
		"bindings":                 &legacyBindingREST{binding},
		"pods/eviction":            &evictionREST{store: store, status: status, deps: deps},
		"pods/ephemeralcontainers": ephemeral,
		"pods/resize":              resize,
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

func changeBy(f func(pod, old *v1.Pod)) func(context.Context, *v1.Pod, *v1.Pod) {
	return func(_ context.Context, pod, old *v1.Pod) { f(pod, old) }
}

// checkResize adds to the rules the one that needs the QoS arithmetic of this package.
func checkResize(pod, old *v1.Pod) field.ErrorList {
	errs := validate.PodResize(pod, old)
	if was, is := qos(old), qos(pod); was != is && len(errs) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec"), is, "Pod QOS Class may not change as a result of resizing"))
	}
	return errs
}

func nodeName(obj runtime.Object) string { return obj.(*v1.Pod).Spec.NodeName }

func nodeNameIndex(obj any) ([]string, error) { return []string{obj.(*v1.Pod).Spec.NodeName}, nil }

// getPod reads a pod for a subresource that acts on it.
func getPod(ctx context.Context, store *genericregistry.Store, name string) (*v1.Pod, error) {
	obj, err := store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.Pod), nil
}
