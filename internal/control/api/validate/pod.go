package validate

import (
	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// specPath is where the spec of most objects is.
var specPath = field.NewPath("spec")

// Pod checks what is checked only of a pod that is new.
func Pod(p *v1.Pod) errs {
	all := append(podGood(p), annotationsAgree(p)...)
	if len(p.Spec.EphemeralContainers) > 0 {
		all = append(all, field.Forbidden(specPath.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		all = append(all, field.Forbidden(specPath.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return all
}

// podGood checks a pod by itself, new or changed.
func podGood(p *v1.Pod) errs {
	all := podAnnotations(field.NewPath("metadata", "annotations"), p.Annotations, &p.Spec)
	all = append(all, podSpec(specPath, &p.Spec, true)...)
	return append(all, ownClaims(p)...)
}

// ownClaims refuses that a volume names the claim that another volume of the
// pod is made with: the claim belongs to the ephemeral volume.
func ownClaims(p *v1.Pod) errs {
	made := map[string]bool{}
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Ephemeral != nil && p.Name != "" {
			made[p.Name+"-"+p.Spec.Volumes[i].Name] = true
		}
	}
	var all errs
	for i := range p.Spec.Volumes {
		if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil && made[c.ClaimName] {
			all = append(all, field.Invalid(specPath.Child("volumes").Index(i).Child("persistentVolumeClaim", "claimName"), c.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume"))
		}
	}
	return all
}

// podTemplate checks the template inside a workload.
func podTemplate(p *field.Path, t *v1.PodTemplateSpec) errs {
	meta := p.Child("metadata")
	all := metavalidation.ValidateLabels(t.Labels, meta.Child("labels"))
	all = append(all, apivalidation.ValidateAnnotations(t.Annotations, meta.Child("annotations"))...)
	all = append(all, podAnnotations(p.Child("annotations"), t.Annotations, &t.Spec)...)
	all = append(all, podSpec(p.Child("spec"), &t.Spec, false)...)
	if len(t.Spec.EphemeralContainers) > 0 {
		all = append(all, field.Forbidden(p.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return all
}

// PodBinding checks a Binding that assigns a pod to a node.
func PodBinding(b *v1.Binding) field.ErrorList {
	target := field.NewPath("target")
	var all errs
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		all = append(all, field.NotSupported(target.Child("kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	return append(all, present(target.Child("name"), b.Target.Name)...)
}
