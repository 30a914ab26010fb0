package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurityadmission "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	podsecurityapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	podsecuritypolicy "k8s.io/pod-security-admission/policy"
)

// PodSecurity applies the Pod Security Standards a namespace asks for.
const PodSecurity = "PodSecurity"

// securityMetrics is shared by all servers of a process: the registry is
// process-wide.
var securityMetrics = sync.OnceValue(func() *metrics.PrometheusRecorder {
	r := metrics.NewPrometheusRecorder(podsecurityapi.GetAPIVersion())
	r.MustRegister(legacyregistry.MustRegister)
	return r
})

// podSecurity adapts the library, which speaks of admission reviews, to the
// server's admission chain.
type podSecurity struct {
	*admission.Handler
	client   kubernetes.Interface
	delegate *podsecurityadmission.Admission
}

func newPodSecurity(configuration io.Reader) (admission.Interface, error) {
	config, err := load.LoadFromReader(configuration)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of %s: %w", PodSecurity, err)
	}
	evaluator, err := podsecuritypolicy.NewEvaluator(podsecuritypolicy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("preparing the checks of %s: %w", PodSecurity, err)
	}
	return &podSecurity{
		Handler: admission.NewHandler(admission.Create, admission.Update),
		delegate: &podsecurityadmission.Admission{
			Configuration: config, Evaluator: evaluator, Metrics: securityMetrics(),
			PodSpecExtractor: podsecurityadmission.DefaultPodSpecExtractor{},
		},
	}, nil
}

func (p *podSecurity) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

func (p *podSecurity) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	namespaces, pods := f.Core().V1().Namespaces(), f.Core().V1().Pods()
	p.delegate.PodLister = podsecurityadmission.PodListerFromInformer(pods.Lister())
	p.delegate.NamespaceGetter = podsecurityadmission.NamespaceGetterFromListerAndClient(namespaces.Lister(), p.client)
	p.SetReadyFunc(allSynced(namespaces.Informer(), pods.Informer()))
}

func (p *podSecurity) ValidateInitialization() error {
	if p.client == nil {
		return errors.New(PodSecurity + " needs a client and an informer factory")
	}
	if err := p.delegate.CompleteConfiguration(); err != nil {
		return fmt.Errorf("completing the configuration of %s: %w", PodSecurity, err)
	}
	return p.delegate.ValidateConfiguration()
}

func (p *podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if !p.delegate.PodSpecExtractor.HasPodSpec(resource) && (resource.Group != "" || resource.Resource != "namespaces") {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	result := p.delegate.Validate(ctx, &podsecurityapi.AttributesRecord{
		Name: a.GetName(), Namespace: a.GetNamespace(), Kind: a.GetKind(), Resource: a.GetResource(), Subresource: a.GetSubresource(),
		Operation: admissionv1.Operation(a.GetOperation()), Object: a.GetObject(), OldObject: a.GetOldObject(),
		Username: a.GetUserInfo().GetName(),
	})
	for _, text := range result.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	for k, v := range result.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, podsecurityapi.AuditAnnotationPrefix+k, v)
	}
	if result.Allowed {
		return nil
	}
	// A forbidden answer takes the chain's form; other failures keep theirs.
	if result.Result != nil && result.Result.Code != http.StatusForbidden && result.Result.Code != 0 {
		return &apierrors.StatusError{ErrStatus: *result.Result}
	}
	var refused *apierrors.StatusError
	err := admission.NewForbidden(a, errors.New("not allowed by "+PodSecurity))
	if errors.As(err, &refused) && result.Result != nil && result.Result.Message != "" {
		refused.ErrStatus.Message = result.Result.Message // the whole sentence, with the object
	}
	return err
}
