// Package admit looks at every write before it is stored: it fills in what
// the cluster decides (identity, priority, tolerations, classes) and refuses
// what the cluster does not allow.
package admit

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/admit/quota"
)

// RecommendedOrder is the order in which plugins run. Mutating ones go first
// as a whole, so the order matters within each half: quota is last, since it
// counts only what all others let through.
var RecommendedOrder = []string{
	lifecycle.PluginName,
	Limits,
	Account,
	Restriction,
	NotReadyTaint,
	PodSecurity,
	Priority,
	Tolerations,
	StorageClass,
	InUse,
	Resize,
	RuntimeClass,
	PodResize,
	Attest,
	Approval,
	Signing,
	PodSigning,
	Subject,
	IngressClass,
	Topology,
	AdminAccess,
	Escalation,
	mutatingPolicies,
	mutatingWebhooks,
	validatingPolicies,
	validatingWebhooks,
	resourcequota.PluginName,
}

// DefaultOn are the plugins that run unless disabled: all.
var DefaultOn = sets.New(RecommendedOrder...)

// Register makes every plugin known by name.
func Register(plugins *admission.Plugins) {
	lifecycle.Register(plugins)
	for name, factory := range map[string]admission.Factory{
		Account: newAccount, NotReadyTaint: newNotReadyTaint, PodSecurity: newPodSecurity, Priority: newPriority,
		Tolerations: newTolerations, StorageClass: newStorageClass, InUse: newInUse, Resize: newResize,
		RuntimeClass: newRuntimeClass, Attest: newAttest, Approval: newApproval, Signing: newSigning, PodSigning: newPodSigning, Subject: newSubject,
		IngressClass: newIngressClass, Topology: newTopology, Escalation: newEscalation, Restriction: newRestriction,
		Limits: newLimits, AdminAccess: newAdminAccess, PodResize: newPodResize,
	} {
		plugins.Register(name, factory)
	}
	for name, factory := range extensible() {
		plugins.Register(name, factory)
	}
	resourcequota.Register(plugins)
}

// Config is what New needs. All but the last group is required.
type Config struct {
	// Client is the server's loopback client; Informers are made from it and
	// started by the caller after New.
	Client     kubernetes.Interface
	Informers  informers.SharedInformerFactory
	Dynamic    dynamic.Interface
	RESTMapper meta.RESTMapper
	Authorizer authorizer.Authorizer
	Roles      Roles
	// Drained closes when the server has finished its last request.
	Drained <-chan struct{}

	// Enable and Disable change which plugins run.
	Enable, Disable []string
	// ServerID names this server in metrics.
	ServerID string
	// Services finds the address behind a webhook's service; nil: by DNS name.
	Services webhook.ServiceResolver
	// WebhookAuth adds credentials to webhook calls; may be nil.
	WebhookAuth webhook.AuthenticationInfoResolverWrapper
}

// New builds the chain of admission plugins.
func New(cfg Config) (admission.Interface, error) {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Dynamic == nil || cfg.RESTMapper == nil ||
		cfg.Authorizer == nil || cfg.Roles == nil || cfg.Drained == nil {
		return nil, errors.New("setting up admission: Client, Informers, Dynamic, RESTMapper, Authorizer, Roles and Drained are required")
	}
	plugins := admission.NewPlugins()
	Register(plugins)
	names, err := selected(cfg.Enable, cfg.Disable)
	if err != nil {
		return nil, err
	}
	mine := &own{cfg: cfg}
	initializers := admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(cfg.ServerID),
		initializer.New(cfg.Client, cfg.Dynamic, cfg.Informers, cfg.Authorizer, utilfeature.DefaultFeatureGate,
			compatibility.DefaultBuildEffectiveVersion(), cfg.Drained, cfg.RESTMapper),
		webhookinit.NewPluginInitializer(cfg.WebhookAuth, cfg.Services),
		mine,
	}
	mine.all = initializers
	chain, err := plugins.NewFromPlugins(names, noConfig{}, initializers,
		admission.Decorators{admission.DecoratorFunc(admissionmetrics.WithControllerMetrics)})
	if err != nil {
		return nil, fmt.Errorf("setting up admission: %w", err)
	}
	return admissionmetrics.WithStepMetrics(chain), nil
}

func selected(enable, disable []string) ([]string, error) {
	for _, name := range slices.Concat(enable, disable) {
		if !slices.Contains(RecommendedOrder, name) {
			return nil, fmt.Errorf("setting up admission: there is no plugin %q; there are %q", name, RecommendedOrder)
		}
	}
	on := DefaultOn.Clone().Insert(enable...).Delete(disable...)
	return slices.DeleteFunc(slices.Clone(RecommendedOrder), func(name string) bool { return !on.Has(name) }), nil
}

// noConfig gives every plugin its defaults.
type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// own hands out what the library's initializers do not know.
type own struct {
	cfg Config
	all admission.PluginInitializers
}

// virtual resources are answered, not stored: webhooks and policies could only
// lock everyone out by them.
var virtual = []schema.GroupResource{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
}

func (o *own) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(wantsLazySetup); ok {
		wants.setLazySetup(lazySetup{o.cfg.Informers, o.all, o.cfg.Drained})
	}
	if wants, ok := plugin.(wantsRoles); ok {
		wants.setRoles(o.cfg.Roles)
	}
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(quota.NewConfiguration(quota.Config{}))
	}
	if wants, ok := plugin.(initializer.WantsExcludedAdmissionResources); ok {
		wants.SetExcludedAdmissionResources(virtual)
	}
}
