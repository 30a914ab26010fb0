// Package admit looks at every write before it is stored: it fills in what
// the cluster decides (identity, priority, tolerations, classes) and refuses
// what the cluster does not allow.
package admit

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/options"
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
	NamespaceAutoProvision,
	lifecycle.PluginName,
	NamespaceExists,
	LimitRanger,
	ServiceAccount,
	NodeRestriction,
	TaintNodesByCondition,
	AlwaysPullImages,
	ImagePolicyWebhook,
	PodSecurity,
	PodNodeSelector,
	Priority,
	DefaultTolerationSeconds,
	PodTolerationRestriction,
	EventRateLimit,
	DefaultStorageClass,
	StorageObjectInUseProtection,
	OwnerReferencesPermissionEnforcement,
	PersistentVolumeClaimResize,
	RuntimeClass,
	PodResizeValidator,
	ClusterTrustBundleAttest,
	CertificateApproval,
	CertificateSigning,
	PodCertificateSigning,
	CertificateSubjectRestriction,
	DefaultIngressClass,
	DenyServiceExternalIPs,
	ServiceLoadBalancerIngressRestriction,
	EndpointAddressRestriction,
	PodTopologyLabels,
	DeviceAdminAccess,
	RBACEscalation,
	mutatingPolicies,
	mutatingWebhooks,
	validatingPolicies,
	validatingWebhooks,
	resourcequota.PluginName,
}

// DefaultOff are the plugins that run only if enabled: upstream's, without
// DenyServiceExternalIPs (see there).
var DefaultOff = sets.New(NamespaceAutoProvision, NamespaceExists, AlwaysPullImages, ImagePolicyWebhook, PodNodeSelector,
	PodTolerationRestriction,
	EventRateLimit, OwnerReferencesPermissionEnforcement)

// DefaultOn are the plugins that run unless disabled.
var DefaultOn = sets.New(RecommendedOrder...).Difference(DefaultOff)

// register makes every plugin known by name.
func register(plugins *admission.Plugins) {
	lifecycle.Register(plugins)
	for name, factory := range map[string]admission.Factory{
		ServiceAccount: newServiceAccount, TaintNodesByCondition: newTaintNodesByCondition, PodSecurity: newPodSecurity,
		Priority:                 newPriority,
		DefaultTolerationSeconds: newDefaultTolerationSeconds, DefaultStorageClass: newDefaultStorageClass,
		StorageObjectInUseProtection: newStorageObjectInUseProtection, PersistentVolumeClaimResize: newPersistentVolumeClaimResize,
		RuntimeClass: newRuntimeClass, ClusterTrustBundleAttest: newClusterTrustBundleAttest, CertificateApproval: newCertificateApproval,
		CertificateSigning: newCertificateSigning, PodCertificateSigning: newPodCertificateSigning,
		CertificateSubjectRestriction: newCertificateSubjectRestriction, DefaultIngressClass: newDefaultIngressClass,
		PodTopologyLabels: newPodTopologyLabels, RBACEscalation: newRBACEscalation, NodeRestriction: newNodeRestriction,
		LimitRanger: newLimitRanger, DeviceAdminAccess: newDeviceAdminAccess, PodResizeValidator: newPodResizeValidator,
		NamespaceExists: newNamespaceExists, NamespaceAutoProvision: newNamespaceAutoProvision, AlwaysPullImages: newAlwaysPullImages,
		ImagePolicyWebhook: newImagePolicyWebhook, PodNodeSelector: newPodNodeSelector,
		PodTolerationRestriction: newPodTolerationRestriction,
		EventRateLimit:           newEventRateLimit, OwnerReferencesPermissionEnforcement: newOwnerReferencesPermissionEnforcement,
		DenyServiceExternalIPs: newDenyServiceExternalIPs, ServiceLoadBalancerIngressRestriction: newServiceLoadBalancerIngressRestriction,
		EndpointAddressRestriction: newEndpointAddressRestriction,
	} {
		plugins.Register(name, factory)
	}
	for name, factory := range extensible() {
		plugins.Register(name, factory)
	}
	resourcequota.Register(plugins)
}

// NewOptions are the choices of an administrator, with the library's flags:
// --enable-admission-plugins, --disable-admission-plugins and
// --admission-control-config-file.
func NewOptions() *options.AdmissionOptions {
	o := &options.AdmissionOptions{Plugins: admission.NewPlugins(), RecommendedPluginOrder: RecommendedOrder, DefaultOffPlugins: DefaultOff}
	register(o.Plugins)
	return o
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

	// Enable and Disable change which plugins run; ConfigFile is an
	// AdmissionConfiguration for those that take one, or empty.
	Enable, Disable []string
	ConfigFile      string
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
	register(plugins)
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
	provider, err := admission.ReadAdmissionConfiguration(names, cfg.ConfigFile, configScheme())
	if err != nil {
		return nil, fmt.Errorf("setting up admission: --admission-control-config-file %s: %w", cfg.ConfigFile, err)
	}
	chain, err := plugins.NewFromPlugins(names, provider, initializers,
		admission.Decorators{admission.DecoratorFunc(withRemedy), admission.DecoratorFunc(admissionmetrics.WithControllerMetrics)})
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
	for _, name := range enable {
		if slices.Contains(disable, name) {
			return nil, fmt.Errorf("setting up admission: plugin %q is both enabled and disabled", name)
		}
	}
	on := DefaultOn.Clone().Insert(enable...).Delete(disable...)
	return slices.DeleteFunc(slices.Clone(RecommendedOrder), func(name string) bool { return !on.Has(name) }), nil
}

// configScheme knows the kind of --admission-control-config-file.
func configScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(apiserverapi.AddToScheme(s))
	utilruntime.Must(apiserverv1alpha1.AddToScheme(s))
	utilruntime.Must(apiserverv1.AddToScheme(s))
	return s
}

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
	if wants, ok := plugin.(wantsRESTMapper); ok {
		wants.setRESTMapper(o.cfg.RESTMapper)
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
