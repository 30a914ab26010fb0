package validate

import (
	"fmt"
	"slices"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/util/webhook"
)

// hook is what both kinds of webhook have.
type hook struct {
	name        string
	client      *admission.WebhookClientConfig
	rules       []admission.RuleWithOperations
	failure     *admission.FailurePolicyType
	match       *admission.MatchPolicyType
	namespaces  *metav1.LabelSelector
	objects     *metav1.LabelSelector
	sideEffects *admission.SideEffectClass
	timeout     *int32
	versions    []string
	conditions  []admission.MatchCondition
}

// reviewVersions are the versions of AdmissionReview that this server speaks.
var reviewVersions = []string{"v1", "v1beta1"}

func (h hook) check(p *field.Path, names unique[string]) errs {
	all := validation.IsFullyQualifiedName(p.Child("name"), h.name)
	all = append(all, names.add(p.Child("name"), h.name)...)
	for i := range h.rules {
		all = append(all, admissionRule(p.Child("rules").Index(i), &h.rules[i])...)
	}
	all = append(all, oneOfIfSet(p.Child("failurePolicy"), h.failure, admission.Fail, admission.Ignore)...)
	all = append(all, oneOfIfSet(p.Child("matchPolicy"), h.match, admission.Exact, admission.Equivalent)...)
	if h.sideEffects == nil {
		all = append(all, field.Required(p.Child("sideEffects"), "must specify one of None, NoneOnDryRun"))
	}
	all = append(all, oneOfIfSet(p.Child("sideEffects"), h.sideEffects, admission.SideEffectClassNone,
		admission.SideEffectClassNoneOnDryRun)...)
	if t := h.timeout; t != nil && (*t < 1 || *t > 30) {
		all = append(all, field.Invalid(p.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	all = append(all, selector(p.Child("namespaceSelector"), h.namespaces)...)
	all = append(all, selector(p.Child("objectSelector"), h.objects)...)
	all = append(all, h.reviews(p.Child("admissionReviewVersions"))...)
	all = append(all, matchConditions(p.Child("matchConditions"), h.conditions, false)...)
	at, c := p.Child("clientConfig"), h.client
	switch {
	case (c.URL == nil) == (c.Service == nil):
		all = append(all, field.Required(at, "exactly one of url or service is required"))
	case c.URL != nil:
		all = append(all, webhook.ValidateWebhookURL(at.Child("url"), *c.URL, true)...)
	default:
		all = append(all, webhook.ValidateWebhookService(at.Child("service"), c.Service.Name, c.Service.Namespace, c.Service.Path,
			deref(c.Service.Port))...)
	}
	return all
}

func (h hook) reviews(p *field.Path) errs {
	if len(h.versions) == 0 {
		return errs{field.Required(p, fmt.Sprintf("must specify one of %v", strings.Join(reviewVersions, ", ")))}
	}
	var all errs
	seen := unique[string]{}
	for i, v := range h.versions {
		all = append(all, seen.add(p.Index(i), v)...)
		all = append(all, invalid(p.Index(i), v, validation.IsDNS1035Label(v))...)
	}
	if !slices.ContainsFunc(h.versions, func(v string) bool { return slices.Contains(reviewVersions, v) }) {
		all = append(all, field.Invalid(p, h.versions, fmt.Sprintf("must include at least one of %v", strings.Join(reviewVersions, ", "))))
	}
	return all
}

func admissionRule(p *field.Path, r *admission.RuleWithOperations) errs {
	var all errs
	if len(r.Operations) == 0 {
		all = append(all, field.Required(p.Child("operations"), ""))
	}
	for i, o := range r.Operations {
		all = append(all, oneOf(p.Child("operations").Index(i), o, admission.OperationAll, admission.Create, admission.Update,
			admission.Delete, admission.Connect)...)
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admission.OperationAll) {
		all = append(all, field.Invalid(p.Child("operations"), r.Operations, "if '*' is present, must not specify other operations"))
	}
	for _, list := range []struct {
		name   string
		values []string
		empty  bool
	}{{"apiGroups", r.APIGroups, true}, {"apiVersions", r.APIVersions, false}, {"resources", r.Resources, false}} {
		at := p.Child(list.name)
		if len(list.values) == 0 {
			all = append(all, field.Required(at, ""))
		}
		if list.name == "resources" {
			all = append(all, ruleResources(at, list.values)...)
			continue
		}
		if len(list.values) > 1 && slices.Contains(list.values, "*") {
			all = append(all, field.Invalid(at, list.values, "if '*' is present, must not specify other values"))
		}
		for i, v := range list.values {
			if v == "" && !list.empty {
				all = append(all, field.Required(at.Index(i), ""))
			}
		}
	}
	return append(all, oneOfIfSet(p.Child("scope"), r.Scope, admission.ClusterScope, admission.NamespacedScope, admission.AllScopes)...)
}

// ruleResources wants each resource, subresource or pattern of them once: "*"
// stands for all resources without their subresources, "*/*" for everything,
// "a/*" for all of a's and "*/b" for every resource's b.
func ruleResources(p *field.Path, list []string) errs {
	var all errs
	resources, subresources := map[string]bool{}, map[string]bool{}
	for i, text := range list {
		at := p.Index(i)
		if text == "" {
			all = append(all, field.Required(at, ""))
			continue
		}
		if text == "*/*" {
			if len(list) > 1 {
				all = append(all, field.Invalid(p, list, "if '*/*' is present, must not specify other resources"))
			}
			continue
		}
		resource, sub, ok := strings.Cut(text, "/")
		if !ok {
			continue
		}
		switch {
		case strings.Contains(sub, "/"):
			all = append(all, field.Invalid(at, text, fmt.Sprintf("subresource must not contain '/': %q", text)))
		case resources[resource]:
			all = append(all, field.Invalid(at, text, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, text)))
		case subresources[sub]:
			all = append(all, field.Invalid(at, text, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, text)))
		}
		if sub == "*" {
			resources[resource] = true
		}
		if resource == "*" {
			subresources[sub] = true
		}
	}
	if len(list) > 1 && slices.Contains(list, "*") && !slices.ContainsFunc(list, func(v string) bool { return strings.Contains(v, "/") }) {
		all = append(all, field.Invalid(p, list, "if '*' is present, must not specify other resources without subresources"))
	}
	return all
}

var webhooksPath = field.NewPath("webhooks")

func ValidatingWebhookConfiguration(c *admission.ValidatingWebhookConfiguration) errs {
	var all errs
	names := unique[string]{}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		all = append(all, hook{w.Name, &w.ClientConfig, w.Rules, w.FailurePolicy, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector,
			w.SideEffects, w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions}.check(webhooksPath.Index(i), names)...)
	}
	return all
}

func MutatingWebhookConfiguration(c *admission.MutatingWebhookConfiguration) errs {
	var all errs
	names := unique[string]{}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		all = append(all, hook{w.Name, &w.ClientConfig, w.Rules, w.FailurePolicy, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector,
			w.SideEffects, w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions}.check(webhooksPath.Index(i), names)...)
		all = append(all, oneOfIfSet(webhooksPath.Index(i).Child("reinvocationPolicy"), w.ReinvocationPolicy,
			admission.NeverReinvocationPolicy, admission.IfNeededReinvocationPolicy)...)
	}
	return all
}

func matchResources(p *field.Path, m *admission.MatchResources) errs {
	if m == nil {
		return nil
	}
	all := oneOfIfSet(p.Child("matchPolicy"), m.MatchPolicy, admission.Exact, admission.Equivalent)
	all = append(all, selector(p.Child("namespaceSelector"), m.NamespaceSelector)...)
	all = append(all, selector(p.Child("objectSelector"), m.ObjectSelector)...)
	all = append(all, namedRules(p.Child("resourceRules"), m.ResourceRules)...)
	return append(all, namedRules(p.Child("excludeResourceRules"), m.ExcludeResourceRules)...)
}

func namedRules(p *field.Path, rules []admission.NamedRuleWithOperations) errs {
	var all errs
	for i := range rules {
		at := p.Index(i)
		all = append(all, admissionRule(at, &rules[i].RuleWithOperations)...)
		names := unique[string]{}
		for k, name := range rules[i].ResourceNames {
			one := at.Child("resourceNames").Index(k)
			all = append(all, invalid(one, name, isPathSegment(name))...)
			all = append(all, names.add(one, name)...)
		}
	}
	return all
}

// constraints wants a policy to say what it is about.
func constraints(m *admission.MatchResources) errs {
	at := specPath.Child("matchConstraints")
	if m == nil {
		return errs{field.Required(at, "")}
	}
	all := matchResources(at, m)
	if len(m.ResourceRules) == 0 {
		all = append(all, field.Required(at.Child("resourceRules"), ""))
	}
	return all
}

func paramKind(k *admission.ParamKind) errs {
	if k == nil {
		return nil
	}
	at := specPath.Child("paramKind")
	var all errs
	if k.APIVersion == "" {
		all = append(all, field.Required(at.Child("apiVersion"), ""))
	} else if gv, err := schema.ParseGroupVersion(k.APIVersion); err != nil {
		all = append(all, field.Invalid(at.Child("apiVersion"), k.APIVersion, err.Error()))
	} else {
		if gv.Group != "" {
			all = append(all, invalid(at.Child("apiVersion"), gv.Group, validation.IsDNS1123Subdomain(gv.Group))...)
		}
		all = append(all, invalid(at.Child("apiVersion"), gv.Version, validation.IsDNS1035Label(gv.Version))...)
	}
	return append(all, named(at.Child("kind"), k.Kind, func(v string) []string { return validation.IsDNS1035Label(strings.ToLower(v)) })...)
}

func ValidatingAdmissionPolicy(o *admission.ValidatingAdmissionPolicy) errs {
	s := &o.Spec
	all := oneOfIfSet(specPath.Child("failurePolicy"), s.FailurePolicy, admission.Fail, admission.Ignore)
	all = append(all, paramKind(s.ParamKind)...)
	all = append(all, constraints(s.MatchConstraints)...)
	all = append(all, matchConditions(specPath.Child("matchConditions"), s.MatchConditions, s.ParamKind != nil)...)
	c, bad := newExpressions(s.Variables, s.ParamKind != nil)
	all = append(all, bad...)
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		all = append(all, field.Required(specPath.Child("validations"), "validations or auditAnnotations must be specified"))
	}
	for i, v := range s.Validations {
		at := specPath.Child("validations").Index(i)
		all = append(all, c.check(at.Child("expression"), v.Expression, wantBool)...)
		if v.MessageExpression != "" {
			all = append(all, c.check(at.Child("messageExpression"), v.MessageExpression, wantText)...)
		}
		if strings.Contains(strings.TrimSpace(v.Message), "\n") {
			all = append(all, field.Invalid(at.Child("message"), v.Message, "message must not contain line breaks"))
		}
		all = append(all, oneOfIfSet(at.Child("reason"), v.Reason, metav1.StatusReasonForbidden, metav1.StatusReasonInvalid,
			metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnauthorized)...)
	}
	names := unique[string]{}
	for i, a := range s.AuditAnnotations {
		at := specPath.Child("auditAnnotations").Index(i)
		all = append(all, named(at.Child("key"), a.Key, validation.IsQualifiedName)...)
		all = append(all, names.add(at.Child("key"), a.Key)...)
		all = append(all, c.check(at.Child("valueExpression"), a.ValueExpression, wantTextOrNull)...)
	}
	return all
}

// ValidatingAdmissionPolicyStatusUpdate checks what type checking found.
func ValidatingAdmissionPolicyStatusUpdate(changed, _ *admission.ValidatingAdmissionPolicy) errs {
	p := field.NewPath("status")
	var all errs
	if t := changed.Status.TypeChecking; t != nil {
		for i, w := range t.ExpressionWarnings {
			at := p.Child("typeChecking", "expressionWarnings").Index(i)
			all = append(all, present(at.Child("warning"), w.Warning)...)
			if w.FieldRef == "" {
				all = append(all, field.Required(at.Child("fieldRef"), ""))
			}
		}
	}
	return append(all, metavalidation.ValidateConditions(changed.Status.Conditions, p.Child("conditions"))...)
}

func MutatingAdmissionPolicy(o *admission.MutatingAdmissionPolicy) errs {
	s := &o.Spec
	all := oneOfIfSet(specPath.Child("failurePolicy"), s.FailurePolicy, admission.Fail, admission.Ignore)
	all = append(all, paramKind(s.ParamKind)...)
	all = append(all, constraints(s.MatchConstraints)...)
	all = append(all, matchConditions(specPath.Child("matchConditions"), s.MatchConditions, s.ParamKind != nil)...)
	all = append(all, mustBeOneOf(specPath.Child("reinvocationPolicy"), s.ReinvocationPolicy, admission.NeverReinvocationPolicy,
		admission.IfNeededReinvocationPolicy)...)
	if len(s.Mutations) == 0 {
		all = append(all, field.Required(specPath.Child("mutations"), "mutations must contain at least one item"))
	}
	// Expressions were not compiled at first: a stored policy may keep one that does not.
	c, bad := newExpressions(s.Variables, s.ParamKind != nil)
	all = append(all, bad.WithOrigin(laterOrigin)...)
	for i := range s.Mutations {
		all = append(all, mutation(specPath.Child("mutations").Index(i), &s.Mutations[i], c)...)
	}
	return all
}

// mutation wants the patch that its type names, and only that.
func mutation(p *field.Path, m *admission.Mutation, c *expressions) errs {
	type form struct {
		name       string
		set        bool
		expression string
		compiled   plugin.ExpressionAccessor
	}
	apply, list := form{name: "applyConfiguration"}, form{name: "jsonPatch"}
	if a := m.ApplyConfiguration; a != nil {
		apply.set, apply.expression, apply.compiled = true, a.Expression, &patch.ApplyConfigurationCondition{Expression: a.Expression}
	}
	if j := m.JSONPatch; j != nil {
		list.set, list.expression, list.compiled = true, j.Expression, &patch.JSONPatchCondition{Expression: j.Expression}
	}
	wanted, other := apply, list
	switch m.PatchType {
	case admission.PatchTypeApplyConfiguration:
	case admission.PatchTypeJSONPatch:
		wanted, other = list, apply
	default:
		return mustBeOneOf(p.Child("patchType"), m.PatchType, admission.PatchTypeApplyConfiguration, admission.PatchTypeJSONPatch)
	}
	var all errs
	switch at := p.Child(wanted.name, "expression"); {
	case !wanted.set:
		all = append(all, field.Required(p.Child(wanted.name), fmt.Sprintf("must be specified when patchType is %s", m.PatchType)))
	case strings.TrimSpace(wanted.expression) == "":
		all = append(all, field.Required(at, "expression is not specified"))
	default:
		all = append(all, c.checkPatch(at, wanted.expression, wanted.compiled).WithOrigin(laterOrigin)...)
	}
	if other.set {
		all = append(all, errs{field.Invalid(p.Child(other.name), "{"+other.name+"}",
			fmt.Sprintf("must not be specified when patchType is %s", m.PatchType))}.WithOrigin(laterOrigin)...)
	}
	return all
}

func paramRef(r *admission.ParamRef) errs {
	if r == nil {
		return nil
	}
	at := specPath.Child("paramRef")
	var all errs
	switch {
	case r.Name != "" && r.Selector != nil:
		for _, one := range []string{"name", "selector"} {
			all = append(all, field.Forbidden(at.Child(one), "name and selector are mutually exclusive"))
		}
	case r.Name == "" && r.Selector == nil:
		all = append(all, field.Required(at, "one of name or selector must be specified"))
	}
	if r.Name != "" {
		all = append(all, invalid(at.Child("name"), r.Name, isPathSegment(r.Name))...)
	}
	all = append(all, selector(at.Child("selector"), r.Selector)...)
	if r.ParameterNotFoundAction == nil {
		all = append(all, field.Required(at.Child("parameterNotFoundAction"), ""))
	}
	return append(all, oneOfIfSet(at.Child("parameterNotFoundAction"), r.ParameterNotFoundAction, admission.AllowAction,
		admission.DenyAction)...)
}

func ValidatingAdmissionPolicyBinding(b *admission.ValidatingAdmissionPolicyBinding) errs {
	all := named(specPath.Child("policyName"), b.Spec.PolicyName, isSubdomain)
	all = append(all, paramRef(b.Spec.ParamRef)...)
	all = append(all, matchResources(specPath.Child("matchResources"), b.Spec.MatchResources)...)
	at := specPath.Child("validationActions")
	if len(b.Spec.ValidationActions) == 0 {
		return append(all, field.Required(at, "at least one validation action is required"))
	}
	seen := unique[admission.ValidationAction]{}
	for i, a := range b.Spec.ValidationActions {
		all = append(all, oneOf(at.Index(i), a, admission.Deny, admission.Warn, admission.Audit)...)
		all = append(all, seen.add(at.Index(i), a)...)
	}
	if seen[admission.Deny] && seen[admission.Warn] {
		all = append(all, field.Invalid(at, b.Spec.ValidationActions,
			"must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers "+
				"serves no purpose)"))
	}
	return all
}

func MutatingAdmissionPolicyBinding(b *admission.MutatingAdmissionPolicyBinding) errs {
	all := named(specPath.Child("policyName"), b.Spec.PolicyName, isSubdomain)
	all = append(all, paramRef(b.Spec.ParamRef)...)
	return append(all, matchResources(specPath.Child("matchResources"), b.Spec.MatchResources)...)
}

func ValidatingAdmissionPolicyBindingUpdate(changed, old *admission.ValidatingAdmissionPolicyBinding) errs {
	return append(ValidatingAdmissionPolicyBinding(changed), immutable(specPath.Child("policyName"), changed.Spec.PolicyName,
		old.Spec.PolicyName)...)
}
