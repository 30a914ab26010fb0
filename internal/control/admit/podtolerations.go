package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// PodTolerationRestriction adds the tolerations of a namespace to its pods and
// refuses others than it lists.
const PodTolerationRestriction = "PodTolerationRestriction"

// Annotations of a namespace, each a JSON list of tolerations.
const (
	defaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

type podTolerations struct {
	namespaces
	// standard and allowed are for namespaces without the annotation.
	standard, allowed []corev1.Toleration
}

func newPodTolerationRestriction(configuration io.Reader) (admission.Interface, error) {
	p := &podTolerations{namespaces: namespaces{Handler: admission.NewHandler(admission.Create, admission.Update),
		name: PodTolerationRestriction}}
	if configuration == nil {
		return p, nil
	}
	var file struct {
		APIVersion string              `json:"apiVersion"`
		Kind       string              `json:"kind"`
		Default    []corev1.Toleration `json:"default"`
		Whitelist  []corev1.Toleration `json:"whitelist"`
	}
	if err := decodeStrictly(configuration, &file); err != nil {
		return nil, fmt.Errorf("reading the configuration of %s: %w", PodTolerationRestriction, err)
	}
	if file.Kind != "Configuration" || file.APIVersion != "podtolerationrestriction.admission.k8s.io/v1alpha1" {
		return nil, fmt.Errorf("reading the configuration of %s: %s %s: want kind Configuration of "+
			"podtolerationrestriction.admission.k8s.io/v1alpha1",
			PodTolerationRestriction, file.APIVersion, file.Kind)
	}
	p.standard, p.allowed = file.Default, file.Whitelist
	return p, nil
}

func (p *podTolerations) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	if a.GetOperation() == admission.Create {
		extra, err := p.listOf(ctx, a, defaultTolerationsAnnotation, p.standard)
		if err != nil {
			return err
		}
		pod.Spec.Tolerations = joinTolerations(pod.Spec.Tolerations, extra)
		if !bestEffort(pod) {
			pod.Spec.Tolerations = joinTolerations(pod.Spec.Tolerations, []corev1.Toleration{
				{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}})
		}
	}
	return p.Validate(ctx, a, nil)
}

func (p *podTolerations) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	allowed, err := p.listOf(ctx, a, allowedTolerationsAnnotation, p.allowed)
	if err != nil || len(allowed) == 0 {
		return err
	}
	var had []corev1.Toleration
	if old, ok := a.GetOldObject().(*corev1.Pod); ok {
		had = old.Spec.Tolerations
	}
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		same := func(o corev1.Toleration) bool { return o == *t || covers(&o, t) }
		if !slices.ContainsFunc(allowed, same) && !slices.ContainsFunc(had, same) && !ownToleration(t) {
			return admission.NewForbidden(a,
				fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist: "+
					"spec.tolerations[%d]: key %q, effect %q is in no entry of annotation %s", i, t.Key, t.Effect,
					allowedTolerationsAnnotation))
		}
	}
	return nil
}

// ownToleration says whether the server itself adds the toleration to pods.
func ownToleration(t *corev1.Toleration) bool {
	switch t.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		return t.Effect == corev1.TaintEffectNoExecute && t.TolerationSeconds != nil
	case corev1.TaintNodeMemoryPressure:
		return t.Effect == corev1.TaintEffectNoSchedule
	}
	return false
}

func (p *podTolerations) listOf(ctx context.Context, a admission.Attributes, annotation string,
	otherwise []corev1.Toleration) ([]corev1.Toleration, error) {
	namespace, err := p.get(ctx, a)
	if err != nil {
		return nil, err
	}
	text, own := namespace.Annotations[annotation]
	if !own {
		return otherwise, nil
	}
	if text == "" {
		return nil, nil
	}
	var list []corev1.Toleration
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, admission.NewForbidden(a, errors.Join(fmt.Errorf("annotation %s of namespace %s is no JSON list of tolerations",
			annotation, namespace.Name), err))
	}
	return list, nil
}

// joinTolerations adds what have does not cover yet.
func joinTolerations(have, more []corev1.Toleration) []corev1.Toleration {
	for i := range more {
		if !slices.ContainsFunc(have, func(h corev1.Toleration) bool { return covers(&h, &more[i]) }) {
			have = append(have, more[i])
		}
	}
	return have
}

// covers says whether wide tolerates at least what narrow does, and as long.
func covers(wide, narrow *corev1.Toleration) bool {
	if wide.Key != narrow.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists) {
		return false
	}
	if wide.Effect != narrow.Effect && wide.Effect != "" {
		return false
	}
	if wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(narrow.TolerationSeconds == nil || *narrow.TolerationSeconds > *wide.TolerationSeconds) {
		return false
	}
	if wide.Operator == corev1.TolerationOpExists {
		return true
	}
	equal := func(t *corev1.Toleration) bool { return t.Operator == corev1.TolerationOpEqual || t.Operator == "" }
	return equal(wide) && equal(narrow) && wide.Value == narrow.Value
}

// bestEffort says whether no container of the pod asks for or limits CPU or
// memory.
func bestEffort(pod *corev1.Pod) bool {
	opts := resource.PodResourcesOptions{}
	sum := []corev1.ResourceList{resource.PodRequests(pod, opts), resource.PodLimits(pod, opts)}
	for _, list := range sum {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q := list[name]; ptr.To(q).Sign() > 0 {
				return false
			}
		}
	}
	return true
}
