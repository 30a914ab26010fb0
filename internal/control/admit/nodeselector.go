package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

// PodNodeSelector adds the node selector of a namespace to its pods and keeps
// them within it.
const PodNodeSelector = "PodNodeSelector"

const (
	// selectorAnnotation of a namespace holds its node selector ("a=b,c=d").
	selectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
	// defaultSelectorKey in the configuration is for namespaces without one.
	defaultSelectorKey = "clusterDefaultNodeSelector"
)

type podNodeSelector struct {
	namespaces
	// selectors are the default and, by namespace, the labels that pods may
	// select at all.
	selectors map[string]string
}

func newPodNodeSelector(configuration io.Reader) (admission.Interface, error) {
	p := &podNodeSelector{namespaces: namespaces{Handler: admission.NewHandler(admission.Create), name: PodNodeSelector}}
	if configuration == nil {
		return p, nil
	}
	var file struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := decodeStrictly(configuration, &file); err != nil {
		return nil, fmt.Errorf("reading the configuration of %s: %w", PodNodeSelector, err)
	}
	p.selectors = file.Selectors
	for key, text := range p.selectors {
		if _, err := labels.ConvertSelectorToLabelsMap(text); err != nil {
			return nil, fmt.Errorf("reading the configuration of %s: podNodeSelectorPluginConfig[%s]: %w", PodNodeSelector, key, err)
		}
	}
	return p, nil
}

// decodeStrictly reads YAML or JSON; a field that is not known is an error.
func decodeStrictly(from io.Reader, into any) error {
	data, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	return yaml.UnmarshalStrict(data, into)
}

func (p *podNodeSelector) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ofNamespace, err := p.podAndSelector(ctx, a)
	if pod == nil || err != nil {
		return err
	}
	if len(ofNamespace) > 0 && pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	maps.Copy(pod.Spec.NodeSelector, ofNamespace)
	return p.Validate(ctx, a, nil)
}

func (p *podNodeSelector) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, _, err := p.podAndSelector(ctx, a)
	if pod == nil || err != nil {
		return err
	}
	allowed, err := labels.ConvertSelectorToLabelsMap(p.selectors[a.GetNamespace()])
	if err != nil {
		return err
	}
	if len(allowed) == 0 {
		return nil
	}
	for key, value := range pod.Spec.NodeSelector {
		if allowed[key] != value || !allowed.Has(key) {
			return admission.NewForbidden(a,
				fmt.Errorf("pod node label selector labels conflict with its namespace whitelist: spec.nodeSelector[%s]=%s is not among %s",
					key, value, allowed))
		}
	}
	return nil
}

// podAndSelector are the pod of a request, nil if it is about none, and what
// its namespace demands, which the pod does not contradict.
func (p *podNodeSelector) podAndSelector(ctx context.Context, a admission.Attributes) (*corev1.Pod, labels.Set, error) {
	pod := podOf(a)
	if pod == nil {
		return nil, nil, nil
	}
	ofNamespace, err := p.selectorOf(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	return pod, ofNamespace, agree(a, pod, ofNamespace)
}

func agree(a admission.Attributes, pod *corev1.Pod, ofNamespace labels.Set) error {
	if labels.Conflicts(ofNamespace, labels.Set(pod.Spec.NodeSelector)) {
		return admission.NewForbidden(a, errors.New("pod node label selector conflicts with its namespace node label selector "+
			ofNamespace.String()))
	}
	return nil
}

func (p *podNodeSelector) selectorOf(ctx context.Context, a admission.Attributes) (labels.Set, error) {
	namespace, err := p.get(ctx, a)
	if err != nil {
		return nil, err
	}
	text, own := namespace.Annotations[selectorAnnotation]
	if !own {
		text = p.selectors[defaultSelectorKey]
	}
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("annotation %s of namespace %s: %w", selectorAnnotation, namespace.Name, err))
	}
	return selector, nil
}
