package validate

import (
	"fmt"
	"slices"
	"strings"

	flow "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

func flowConditions[C any](list []C, kind func(C) string) errs {
	var all errs
	seen := unique[string]{}
	for i, c := range list {
		at := field.NewPath("status", "conditions").Index(i).Child("type")
		all = append(all, seen.add(at, kind(c))...)
		if kind(c) == "" {
			all = append(all, field.Required(at, "must not be empty"))
		}
	}
	return all
}

// maxPrecedence is the precedence of the last of all schemas to be asked.
const maxPrecedence = 10000

func FlowSchema(f *flow.FlowSchema) errs {
	var all errs
	at := specPath.Child("matchingPrecedence")
	switch p := f.Spec.MatchingPrecedence; {
	case p <= 0:
		all = append(all, field.Invalid(at, p, "must be a positive value"))
	case p > maxPrecedence:
		all = append(all, field.Invalid(at, p, fmt.Sprintf("must not be greater than %v", maxPrecedence)))
	case p == 1 && f.Name != flow.FlowSchemaNameExempt:
		all = append(all, field.Invalid(at, p, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := f.Spec.DistinguisherMethod; m != nil {
		all = append(all, oneOf(specPath.Child("distinguisherMethod", "type"), m.Type, flow.FlowDistinguisherMethodByUserType,
			flow.FlowDistinguisherMethodByNamespaceType)...)
	}
	if level := specPath.Child("priorityLevelConfiguration", "name"); f.Spec.PriorityLevelConfiguration.Name == "" {
		all = append(all, field.Required(level, "must reference a priority level"))
	} else {
		all = append(all, invalid(level, f.Spec.PriorityLevelConfiguration.Name, isSubdomain(f.Spec.PriorityLevelConfiguration.Name))...)
	}
	for i := range f.Spec.Rules {
		all = append(all, flowRule(specPath.Child("rules").Index(i), &f.Spec.Rules[i])...)
	}
	for _, mandatory := range bootstrap.MandatoryFlowSchemas {
		if mandatory.Name == f.Name && !equality.Semantic.DeepEqual(mandatory.Spec, f.Spec) {
			all = append(all, field.Invalid(specPath, f.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", f.Name)))
		}
	}
	return all
}

func flowRule(p *field.Path, r *flow.PolicyRulesWithSubjects) errs {
	var all errs
	if len(r.Subjects) == 0 {
		all = append(all, field.Required(p.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		all = append(all, flowSubject(p.Child("subjects").Index(i), &r.Subjects[i])...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		all = append(all, field.Required(p, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		all = append(all, flowResources(p.Child("resourceRules").Index(i), &r.ResourceRules[i])...)
	}
	for i, rule := range r.NonResourceRules {
		at := p.Child("nonResourceRules").Index(i)
		all = append(all, flowVerbs(at.Child("verbs"), rule.Verbs)...)
		urls := at.Child("nonResourceURLs")
		switch {
		case len(rule.NonResourceURLs) == 0:
			all = append(all, field.Required(urls, "nonResourceURLs must contain at least one value"))
		case slices.Contains(rule.NonResourceURLs, "*"):
			if len(rule.NonResourceURLs) > 1 {
				all = append(all, field.Invalid(urls, rule.NonResourceURLs, "if '*' is present, must not specify other non-resource URLs"))
			}
		default:
			for k, url := range rule.NonResourceURLs {
				all = append(all, flowURL(urls.Index(k), url)...)
			}
		}
	}
	return all
}

// flowSubject wants the member that the kind names, and no other.
func flowSubject(p *field.Path, s *flow.Subject) errs {
	if bad := oneOf(p.Child("kind"), s.Kind, flow.SubjectKindGroup, flow.SubjectKindServiceAccount, flow.SubjectKindUser); len(bad) > 0 {
		return bad
	}
	var all errs
	for _, m := range []struct {
		kind  flow.SubjectKind
		name  string
		set   bool
		check func(*field.Path) errs
	}{
		{flow.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil,
			func(at *field.Path) errs { return flowAccount(at, s.ServiceAccount) }},
		{flow.SubjectKindUser, "user", s.User != nil, func(at *field.Path) errs { return present(at.Child("name"), s.User.Name) }},
		{flow.SubjectKindGroup, "group", s.Group != nil, func(at *field.Path) errs { return present(at.Child("name"), s.Group.Name) }},
	} {
		at := p.Child(m.name)
		switch {
		case m.kind == s.Kind && m.set:
			all = append(all, m.check(at)...)
		case m.kind == s.Kind:
			all = append(all, field.Required(at, fmt.Sprintf("%s is required when subject kind is '%s'", m.name, m.kind)))
		case m.set:
			all = append(all, field.Forbidden(at, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", m.name, m.kind)))
		}
	}
	return all
}

func flowAccount(p *field.Path, a *flow.ServiceAccountSubject) errs {
	var all errs
	if a.Name != flow.NameAll {
		all = append(all, named(p.Child("name"), a.Name, isName(apivalidation.ValidateServiceAccountName))...)
	}
	if a.Namespace == "" {
		return append(all, field.Required(p.Child("namespace"), "must specify namespace for service account"))
	}
	return append(all, invalid(p.Child("namespace"), a.Namespace, apivalidation.ValidateNamespaceName(a.Namespace, false))...)
}

var flowVerbsKnown = sets.New("get", "list", "create", "update", "delete", "deletecollection", "patch", "watch", "proxy")

func flowVerbs(p *field.Path, verbs []string) errs {
	switch {
	case len(verbs) == 0:
		return errs{field.Required(p, "verbs must contain at least one value")}
	case slices.Contains(verbs, "*"):
		if len(verbs) > 1 {
			return errs{field.Invalid(p, verbs, "if '*' is present, must not specify other verbs")}
		}
	case !flowVerbsKnown.HasAll(verbs...):
		return errs{field.NotSupported(p, verbs, sets.List(flowVerbsKnown))}
	}
	return nil
}

func flowResources(p *field.Path, r *flow.ResourcePolicyRule) errs {
	all := flowVerbs(p.Child("verbs"), r.Verbs)
	for _, list := range []struct {
		name, one, others string
		values            []string
	}{{"apiGroups", "api group", "api groups", r.APIGroups}, {"resources", "resource", "resources", r.Resources}} {
		switch at := p.Child(list.name); {
		case len(list.values) == 0:
			all = append(all, field.Required(at, "resource rules must supply at least one "+list.one))
		case len(list.values) > 1 && slices.Contains(list.values, "*"):
			all = append(all, field.Invalid(at, list.values, "if '*' is present, must not specify other "+list.others))
		}
	}
	at := p.Child("namespaces")
	switch {
	case len(r.Namespaces) == 0 && !r.ClusterScope:
		all = append(all, field.Required(at, "resource rules that are not cluster scoped must supply at least one namespace"))
	case slices.Contains(r.Namespaces, flow.NamespaceEvery):
		if len(r.Namespaces) > 1 {
			all = append(all, field.Invalid(at, r.Namespaces, "if '*' is present, must not specify other namespaces"))
		}
	default:
		for i, ns := range r.Namespaces {
			for _, message := range apivalidation.ValidateNamespaceName(ns, false) {
				all = append(all, field.Invalid(at.Index(i), ns, "each member of this list must be '*' or a DNS-1123 label; "+message))
			}
		}
	}
	return all
}

// flowURL wants a path, or the beginning of paths with "/*" at its end.
func flowURL(p *field.Path, url string) errs {
	bad := func(why string) errs { return errs{field.Invalid(p, url, why)} }
	switch stars := strings.Count(url, "*"); {
	case url == "":
		return bad("must not be empty")
	case url == "/":
		return nil
	case !strings.HasPrefix(url, "/"):
		return bad("must start with slash")
	case strings.Contains(url, " "):
		return bad("must not contain white-space")
	case strings.Contains(url, "//"):
		return bad("must not contain double slash")
	case stars > 1 || (stars == 1 && !strings.HasSuffix(url, "/*")):
		return bad("wildcard can only do suffix matching")
	}
	return nil
}

// maxQueues bounds the queues of a priority level.
const maxQueues = 10 * 1000 * 1000

func PriorityLevelConfiguration(p *flow.PriorityLevelConfiguration) errs {
	s := &p.Spec
	var all errs
	if (p.Name == flow.PriorityLevelConfigurationNameExempt) != (s.Type == flow.PriorityLevelEnablementExempt) {
		all = append(all, field.Invalid(specPath.Child("type"), s.Type, "type must be 'Exempt' if and only if name is 'exempt'"))
	}
	all = append(all, oneOf(specPath.Child("type"), s.Type, flow.PriorityLevelEnablementExempt, flow.PriorityLevelEnablementLimited)...)
	switch s.Type {
	case flow.PriorityLevelEnablementExempt:
		if s.Limited != nil {
			all = append(all, field.Forbidden(specPath.Child("limited"), "must be nil if the type is not Limited"))
		}
		if e := s.Exempt; e != nil {
			all = append(all, levelShares(specPath.Child("exempt"), e.NominalConcurrencyShares, e.LendablePercent)...)
		}
	case flow.PriorityLevelEnablementLimited:
		if s.Exempt != nil {
			all = append(all, field.Forbidden(specPath.Child("exempt"), "must be nil if the type is Limited"))
		}
		if s.Limited == nil {
			all = append(all, field.Required(specPath.Child("limited"), "must not be empty when type is Limited"))
		} else {
			all = append(all, levelLimit(specPath.Child("limited"), s.Limited)...)
		}
	}
	for _, mandatory := range bootstrap.MandatoryPriorityLevelConfigurations {
		if mandatory.Name == p.Name && !sameLevel(p.Name, mandatory.Spec, *s) {
			all = append(all, field.Invalid(specPath, *s, fmt.Sprintf("spec of '%s' must equal the fixed value", p.Name)))
		}
	}
	return all
}

// sameLevel compares with a mandatory level; how much the exempt one may lend
// and borrow is the administrator's.
func sameLevel(name string, want, have flow.PriorityLevelConfigurationSpec) bool {
	if name == flow.PriorityLevelConfigurationNameExempt {
		want.Exempt, have.Exempt = nil, nil
	}
	return equality.Semantic.DeepEqual(want, have)
}

func levelShares(p *field.Path, shares, lendable *int32) errs {
	var all errs
	if shares != nil && *shares < 0 {
		all = append(all, field.Invalid(p.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		all = append(all, field.Invalid(p.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return all
}

func levelLimit(p *field.Path, l *flow.LimitedPriorityLevelConfiguration) errs {
	all := levelShares(p, l.NominalConcurrencyShares, l.LendablePercent)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		all = append(all, field.Invalid(p.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	response := p.Child("limitResponse")
	all = append(all, oneOf(response.Child("type"), l.LimitResponse.Type, flow.LimitResponseTypeQueue, flow.LimitResponseTypeReject)...)
	at, q := response.Child("queuing"), l.LimitResponse.Queuing
	switch l.LimitResponse.Type {
	case flow.LimitResponseTypeReject:
		if q != nil {
			all = append(all, field.Forbidden(at, "must be nil if limited.limitResponse.type is not Limited"))
		}
	case flow.LimitResponseTypeQueue:
		if q == nil {
			return append(all, field.Required(at, "must not be empty if limited.limitResponse.type is Limited"))
		}
		all = append(all, levelQueues(at, q)...)
	}
	return all
}

func levelQueues(p *field.Path, q *flow.QueuingConfiguration) errs {
	var all errs
	if q.QueueLengthLimit <= 0 {
		all = append(all, field.Invalid(p.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch {
	case q.Queues <= 0:
		all = append(all, field.Invalid(p.Child("queues"), q.Queues, "must be positive"))
	case q.Queues > maxQueues:
		all = append(all, field.Invalid(p.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	hand := p.Child("handSize")
	switch {
	case q.HandSize <= 0:
		all = append(all, field.Invalid(hand, q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		all = append(all, field.Invalid(hand, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	default:
		if bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); bits > shufflesharding.MaxHashBits {
			all = append(all, field.Invalid(hand, q.HandSize,
				fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
					q.Queues, q.HandSize, shufflesharding.MaxHashBits)))
		}
	}
	return all
}

func FlowSchemaStatusUpdate(changed, _ *flow.FlowSchema) errs {
	return flowConditions(changed.Status.Conditions, func(c flow.FlowSchemaCondition) string { return string(c.Type) })
}

func PriorityLevelConfigurationStatusUpdate(changed, _ *flow.PriorityLevelConfiguration) errs {
	return flowConditions(changed.Status.Conditions, func(c flow.PriorityLevelConfigurationCondition) string { return string(c.Type) })
}
