package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// ImagePolicyWebhook asks a service whether a pod's images may run.
const ImagePolicyWebhook = "ImagePolicyWebhook"

// Names in and around the answers of the webhook.
const (
	imagePolicyPrefix  = "imagepolicywebhook.image-policy.k8s.io/"
	imagePolicyMark    = ".image-policy.k8s.io/"
	rememberedPolicies = 1024
)

// imagePolicyFile is upstream's configuration; times are in seconds, the
// backoff in milliseconds, and -1 turns one off.
type imagePolicyFile struct {
	ImagePolicy struct {
		KubeConfigFile string        `json:"kubeConfigFile"`
		RetryBackoff   time.Duration `json:"retryBackoff"`
		AllowTTL       time.Duration `json:"allowTTL"`
		DenyTTL        time.Duration `json:"denyTTL"`
		DefaultAllow   bool          `json:"defaultAllow"`
	} `json:"imagePolicy"`
}

type imagePolicy struct {
	*admission.Handler
	webhook           *webhook.GenericWebhook
	answers           *cache.LRUExpireCache
	allowTTL, denyTTL time.Duration
	defaultAllow      bool
}

func newImagePolicyWebhook(configuration io.Reader) (admission.Interface, error) {
	if configuration == nil {
		return nil, fmt.Errorf("%s needs a configuration: give --admission-control-config-file with imagePolicy.kubeConfigFile",
			ImagePolicyWebhook)
	}
	var file imagePolicyFile
	if err := decodeStrictly(configuration, &file); err != nil {
		return nil, fmt.Errorf("reading the configuration of %s: %w", ImagePolicyWebhook, err)
	}
	c := &file.ImagePolicy
	backoff, err := ofUnits(c.RetryBackoff, time.Millisecond, 500*time.Millisecond, 5*time.Minute)
	allow, err2 := ofUnits(c.AllowTTL, time.Second, 5*time.Minute, 30*time.Minute)
	deny, err3 := ofUnits(c.DenyTTL, time.Second, 30*time.Second, 30*time.Minute)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("reading the configuration of %s: retryBackoff, allowTTL or denyTTL: %w", ImagePolicyWebhook, err)
	}
	config, err := webhook.LoadKubeconfig(c.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("reading imagePolicy.kubeConfigFile %q of %s: %w", c.KubeConfigFile, ImagePolicyWebhook, err)
	}
	scheme := runtime.NewScheme()
	if err := imagepolicyv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	hook, err := webhook.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), config,
		[]schema.GroupVersion{imagepolicyv1alpha1.SchemeGroupVersion}, webhook.DefaultRetryBackoffWithInitialDelay(backoff))
	if err != nil {
		return nil, fmt.Errorf("setting up %s: %w", ImagePolicyWebhook, err)
	}
	return &imagePolicy{
		Handler: admission.NewHandler(admission.Create, admission.Update), webhook: hook,
		answers: cache.NewLRUExpireCache(rememberedPolicies), allowTTL: allow, denyTTL: deny, defaultAllow: c.DefaultAllow,
	}, nil
}

// ofUnits reads a time in units of the file: 0 is the default, -1 none.
func ofUnits(given, unit, otherwise, most time.Duration) (time.Duration, error) {
	switch {
	case given == 0:
		return otherwise, nil
	case given == -1:
		return 0, nil
	case given < 0 || given > most/unit:
		return 0, fmt.Errorf("%d: must be -1 or from 1 to %d", given, most/unit)
	}
	return given * unit, nil
}

func (p *imagePolicy) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podWithNewImages(a)
	if pod == nil {
		return nil
	}
	review := reviewOf(a.GetNamespace(), pod)
	key, err := json.Marshal(review.Spec)
	if err != nil {
		return err
	}
	if known, ok := p.answers.Get(string(key)); ok {
		return p.evaluate(a, known.(imagepolicyv1alpha1.ImageReviewStatus))
	}
	result := p.webhook.WithExponentialBackoff(ctx, func() rest.Result {
		return p.webhook.RestClient.Post().Body(review).Do(ctx)
	})
	answered := &imagepolicyv1alpha1.ImageReview{}
	if err := result.Into(answered); err != nil {
		if p.defaultAllow {
			return a.AddAnnotation(imagePolicyPrefix+"failed-open", "true")
		}
		return admission.NewForbidden(a, fmt.Errorf("asking the image policy webhook: %w", err))
	}
	ttl := p.denyTTL
	if answered.Status.Allowed {
		ttl = p.allowTTL
	}
	p.answers.Add(string(key), answered.Status, ttl)
	return p.evaluate(a, answered.Status)
}

func (p *imagePolicy) evaluate(a admission.Attributes, status imagepolicyv1alpha1.ImageReviewStatus) error {
	for key, value := range status.AuditAnnotations {
		if err := a.AddAnnotation(imagePolicyPrefix+key, value); err != nil {
			return fmt.Errorf("recording what the image policy webhook says: %w", err)
		}
	}
	switch {
	case status.Allowed:
		return nil
	case status.Reason != "":
		return admission.NewForbidden(a, fmt.Errorf("image policy webhook backend denied one or more images: %s", status.Reason))
	}
	return admission.NewForbidden(a, errors.New("one or more images rejected by webhook backend"))
}

func reviewOf(namespace string, pod *corev1.Pod) *imagepolicyv1alpha1.ImageReview {
	review := &imagepolicyv1alpha1.ImageReview{Spec: imagepolicyv1alpha1.ImageReviewSpec{Namespace: namespace}}
	for key, value := range pod.Annotations {
		if strings.Contains(key, imagePolicyMark) {
			if review.Spec.Annotations == nil {
				review.Spec.Annotations = map[string]string{}
			}
			review.Spec.Annotations[key] = value
		}
	}
	for _, image := range slices.Sorted(slices.Values(imagesOf(pod).UnsortedList())) {
		review.Spec.Containers = append(review.Spec.Containers, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: image})
	}
	return review
}
