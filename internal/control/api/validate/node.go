package validate

import (
	"encoding/json"
	"net/netip"
	"regexp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func Node(n *v1.Node) errs {
	all := taints(specPath.Child("taints"), n.Spec.Taints)
	all = append(all, podCIDRs(&n.Spec)...)
	all = append(all, avoided(n)...)
	return append(all, capacity(n)...)
}

func taints(p *field.Path, list []v1.Taint) errs {
	type pair struct {
		key    string
		effect v1.TaintEffect
	}
	var all errs
	seen := map[pair]bool{}
	for i, t := range list {
		at := p.Index(i)
		all = append(all, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		all = append(all, invalid(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		if t.Effect == "" {
			all = append(all, field.Required(at.Child("effect"), ""))
		} else {
			all = append(all, taintEffect(at.Child("effect"), t.Effect)...)
		}
		if k := (pair{t.Key, t.Effect}); seen[k] {
			duplicate := field.Duplicate(at, t)
			duplicate.Detail = "taints must be unique by key and effect pair"
			all = append(all, duplicate)
		} else {
			seen[k] = true
		}
	}
	return all
}

// avoidPodsAnnotation lists controllers whose pods a node would rather not
// have. Nothing reads it any more.
const avoidPodsAnnotation = "scheduler.alpha.kubernetes.io/preferAvoidPods"

func avoided(n *v1.Node) errs {
	text, ok := n.Annotations[avoidPodsAnnotation]
	if !ok {
		return nil
	}
	at := field.NewPath("metadata", "annotations")
	var list v1.AvoidPods
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return errs{field.Invalid(at.Child("AvoidPods"), avoidPodsAnnotation, err.Error())}
	}
	var all errs
	for i, entry := range list.PreferAvoidPods {
		signature := at.Child(avoidPodsAnnotation).Index(i).Child("PodSignature")
		if c := entry.PodSignature.PodController; c == nil {
			all = append(all, field.Required(signature, ""))
		} else if c.Controller == nil || !*c.Controller {
			all = append(all, field.Invalid(signature.Child("PodController"), deref(c.Controller), "must point to a controller"))
		}
	}
	return all
}

func podCIDRs(s *v1.NodeSpec) errs {
	at := specPath.Child("podCIDRs")
	var all errs
	if len(s.PodCIDRs) > 0 && s.PodCIDR != s.PodCIDRs[0] {
		all = append(all, field.Invalid(specPath.Child("podCIDR"), s.PodCIDR, "must be the first of `podCIDRs`"))
	}
	families := map[bool]int{}
	for i, cidr := range s.PodCIDRs {
		if cidr == "" {
			continue
		}
		all = append(all, legacyCIDR(at.Index(i), cidr)...)
		if prefix, err := netip.ParsePrefix(cidr); err == nil {
			families[prefix.Addr().Is4()]++
		}
	}
	if families[true] > 1 || families[false] > 1 {
		all = append(all, field.Invalid(at, s.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	return all
}

// capacity wants amounts that can be, and not more to give than there is.
func capacity(n *v1.Node) errs {
	status := field.NewPath("status")
	var all errs
	for _, name := range sorted(n.Status.Capacity) {
		at := status.Child("capacity").Key(string(name))
		all = append(all, invalid(at, name, validation.IsQualifiedName(string(name)))...)
		all = append(all, quantity(at, name, n.Status.Capacity[name])...)
	}
	for _, name := range sorted(n.Status.Allocatable) {
		at := status.Child("allocatable").Key(string(name))
		all = append(all, invalid(at, name, validation.IsQualifiedName(string(name)))...)
		all = append(all, quantity(at, name, n.Status.Allocatable[name])...)
	}
	return all
}

// NodeUpdate lets a node's spec change its taints and whether it is
// schedulable; its CIDRs and provider are set once.
func NodeUpdate(changed, old *v1.Node) errs {
	all := Node(changed)
	if len(old.Spec.PodCIDRs) > 0 && !equality.Semantic.DeepEqual(changed.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		all = append(all, field.Forbidden(specPath.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if old.Spec.ProviderID != "" && changed.Spec.ProviderID != old.Spec.ProviderID {
		all = append(all, field.Forbidden(specPath.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	return all
}

func NodeStatusUpdate(changed, _ *v1.Node) errs {
	all := capacity(changed)
	all = append(all, features(changed.Status.DeclaredFeatures)...)
	seen := unique[v1.NodeAddress]{}
	for i, a := range changed.Status.Addresses {
		all = append(all, seen.add(field.NewPath("status", "addresses").Index(i), a)...)
	}
	return all
}

// featureName is a name of a feature, or of parts of one.
var featureName = regexp.MustCompile(`^([A-Z][a-zA-Z0-9]*)(/[A-Z][a-zA-Z0-9]*)*$`)

// features wants names in order, each once.
func features(list []string) errs {
	p := field.NewPath("status", "declaredFeatures")
	var all errs
	for i, name := range list {
		if !featureName.MatchString(name) {
			all = append(all, field.Invalid(p.Index(i), name, "must be a feature name in CamelCase"))
		}
		switch {
		case i == 0:
		case list[i-1] == name:
			all = append(all, field.Duplicate(p.Index(i), name))
		case list[i-1] > name:
			all = append(all, field.Invalid(p, list, "list must be sorted"))
		}
	}
	return all
}

var finalizersPath = specPath.Child("finalizers")

func Namespace(n *v1.Namespace) errs {
	var all errs
	for _, f := range n.Spec.Finalizers {
		all = append(all, namespaceFinalizer(finalizersPath, string(f))...)
	}
	return all
}

func namespaceFinalizer(p *field.Path, name string) errs {
	return append(apivalidation.ValidateFinalizerName(name, p), finalizerOwner(p, name)...)
}

func NamespaceStatusUpdate(changed, _ *v1.Namespace) errs {
	at := field.NewPath("status", "Phase")
	switch leaving := changed.DeletionTimestamp != nil; {
	case !leaving && changed.Status.Phase != v1.NamespaceActive:
		return errs{field.Invalid(at, changed.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case leaving && changed.Status.Phase != v1.NamespaceTerminating:
		return errs{field.Invalid(at, changed.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}

// NamespaceFinalize checks a change through the finalize subresource.
func NamespaceFinalize(changed, old *v1.Namespace) field.ErrorList {
	all := ObjectMetaUpdate(changed, old)
	for i, f := range changed.Spec.Finalizers {
		all = append(all, namespaceFinalizer(finalizersPath.Index(i), string(f))...)
	}
	return all
}
