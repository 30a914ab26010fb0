package validate

import (
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Deprecated annotations that say what fields say today, and the values they know.
const (
	appArmorPrefix = v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	localhost      = "localhost/"
	unconfined     = "unconfined"
	runtimeDefault = "runtime/default"
)

// podAnnotations checks the annotations of a pod, or of the template of one,
// that mean something to Kubernetes.
func podAnnotations(p *field.Path, annotations map[string]string, s *v1.PodSpec) errs {
	var all errs
	if value, mirror := annotations[v1.MirrorPodAnnotationKey]; mirror && s.NodeName == "" {
		all = append(all, field.Invalid(p.Key(v1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set"))
	}
	for _, key := range sorted(annotations) {
		value := annotations[key]
		switch {
		case key == v1.PodDeletionCost:
			if cost, err := strconv.ParseInt(value, 10, 32); err != nil || strconv.FormatInt(cost, 10) != value {
				all = append(all, field.Invalid(p.Key(key), value, "must be a 32bit integer"))
			}
		case key == v1.SeccompPodAnnotationKey || strings.HasPrefix(key, v1.SeccompContainerAnnotationKeyPrefix):
			all = append(all, seccompAnnotation(p.Child(key), value)...)
		case strings.HasPrefix(key, appArmorPrefix):
			if name := strings.TrimPrefix(key, appArmorPrefix); !hasContainer(s, name) {
				all = append(all, field.Invalid(p.Key(key), name, "container not found"))
			}
			if value != "" && value != runtimeDefault && value != unconfined && !strings.HasPrefix(value, localhost) {
				all = append(all, field.Invalid(p.Key(key), value, fmt.Sprintf("invalid AppArmor profile name: %q", value)))
			}
		}
	}
	return all
}

func seccompAnnotation(p *field.Path, value string) errs {
	switch {
	case value == runtimeDefault, value == v1.DeprecatedSeccompProfileDockerDefault, value == unconfined:
		return nil
	case strings.HasPrefix(value, localhost):
		return localPath(p, strings.TrimPrefix(value, localhost))
	}
	return errs{field.Invalid(p, value, "must be a valid seccomp profile")}
}

func hasContainer(s *v1.PodSpec, name string) bool {
	for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	for i := range s.EphemeralContainers {
		if s.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// podAnnotationsUpdate keeps what the node decides by when it first sees a pod:
// an annotation that makes a running pod the mirror of a static one would hide
// its containers from everybody, and one that names an AppArmor profile would
// undo what PodSecurity allowed when the pod was made.
func podAnnotationsUpdate(changed, old *v1.Pod) errs {
	p := field.NewPath("metadata", "annotations")
	var all errs
	kinds := func(key string) string {
		switch {
		case strings.HasPrefix(key, appArmorPrefix):
			return "AppArmor annotations"
		case key == v1.MirrorPodAnnotationKey:
			return "mirror pod annotation"
		}
		return ""
	}
	for _, key := range sorted(old.Annotations) {
		value, kept := changed.Annotations[key]
		if what := kinds(key); what != "" && (!kept || value != old.Annotations[key]) {
			all = append(all, field.Forbidden(p.Key(key), "may not remove or update "+what))
		}
	}
	for _, key := range sorted(changed.Annotations) {
		_, had := old.Annotations[key]
		if what := kinds(key); what != "" && !had {
			all = append(all, field.Forbidden(p.Key(key), "may not add "+what))
		}
	}
	return all
}

// annotationsAgree wants the deprecated annotations of a new pod to say the
// same as its fields.
func annotationsAgree(p *v1.Pod) errs {
	if p.Spec.OS != nil && p.Spec.OS.Name == v1.Windows {
		return nil
	}
	var all errs
	if sc := p.Spec.SecurityContext; sc != nil {
		if value, ok := p.Annotations[v1.SeccompPodAnnotationKey]; ok && sc.SeccompProfile != nil {
			f := sc.SeccompProfile
			all = append(all, sameProfile(specPath.Child("securityContext", "seccompProfile"), "seccomp", value, string(f.Type),
				f.LocalhostProfile)...)
		}
	}
	check := func(at *field.Path, c *v1.Container) {
		sc := c.SecurityContext
		if sc == nil {
			return
		}
		at = at.Child("securityContext")
		if value, ok := p.Annotations[v1.SeccompContainerAnnotationKeyPrefix+c.Name]; ok && sc.SeccompProfile != nil {
			f := sc.SeccompProfile
			all = append(all, sameProfile(at.Child("seccompProfile"), "seccomp", value, string(f.Type), f.LocalhostProfile)...)
		}
		if value, ok := p.Annotations[appArmorPrefix+c.Name]; ok && sc.AppArmorProfile != nil {
			f := sc.AppArmorProfile
			all = append(all, sameProfile(at.Child("appArmorProfile"), "apparmor", value, string(f.Type), f.LocalhostProfile)...)
		}
	}
	for i := range p.Spec.InitContainers {
		check(specPath.Child("initContainers").Index(i), &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		check(specPath.Child("containers").Index(i), &p.Spec.Containers[i])
	}
	return all
}

// sameProfile compares an annotation with the field; the three types are called
// the same for seccomp and AppArmor.
func sameProfile(p *field.Path, what, annotation, kind string, profile *string) errs {
	name, named := strings.CutPrefix(annotation, localhost)
	said := ""
	switch {
	case named:
		said = string(v1.SeccompProfileTypeLocalhost)
	case annotation == unconfined:
		said = string(v1.SeccompProfileTypeUnconfined)
	case annotation == runtimeDefault, annotation == v1.DeprecatedSeccompProfileDockerDefault && what == "seccomp":
		said = string(v1.SeccompProfileTypeRuntimeDefault)
	}
	switch {
	case kind != said:
		return errs{field.Forbidden(p.Child("type"), what+" type in annotation and field must match")}
	case named && (profile == nil || *profile != name):
		return errs{field.Forbidden(p.Child("localhostProfile"), what+" profile in annotation and field must match")}
	}
	return nil
}
