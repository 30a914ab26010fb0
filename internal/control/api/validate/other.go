package validate

import (
	"fmt"
	"strings"

	flow "k8s.io/api/flowcontrol/v1"
	node "k8s.io/api/node/v1"
	scheduling "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var otherKinds = []row{
	kind[scheduling.PriorityClass, *scheduling.PriorityClass]{scope: cluster, create: priorityGood, update: priorityUpdate},
	kind[node.RuntimeClass, *node.RuntimeClass]{scope: cluster, create: runtimeClassGood, update: func(changed, old *node.RuntimeClass) errs {
		return append(runtimeClassGood(changed), immutable(field.NewPath("handler"), changed.Handler, old.Handler)...)
	}},
	kind[flow.FlowSchema, *flow.FlowSchema]{scope: cluster, create: flowSchemaGood, update: again(flowSchemaGood)},
	kind[flow.PriorityLevelConfiguration, *flow.PriorityLevelConfiguration]{scope: cluster, create: priorityLevelGood, update: again(priorityLevelGood)},
}

const systemPrefix = "system-"

// systemPriorities are the classes above what users may have.
var systemPriorities = map[string]int32{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}

const highestUserPriority = 1000000000

func priorityGood(c *scheduling.PriorityClass) errs {
	all := oneOfIfSet(field.NewPath("preemptionPolicy"), c.PreemptionPolicy, "PreemptLowerPriority", "Never")
	if value, known := systemPriorities[c.Name]; known && value == c.Value {
		return all
	}
	if strings.HasPrefix(c.Name, systemPrefix) {
		return append(all, field.Forbidden(field.NewPath("metadata", "name"),
			fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %s is not a known system priority class, or its value differs", systemPrefix, c.Name)))
	}
	if c.Value > highestUserPriority {
		all = append(all, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestUserPriority)))
	}
	return all
}

func priorityUpdate(changed, old *scheduling.PriorityClass) errs {
	var all errs
	if changed.Value != old.Value {
		all = append(all, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(all, immutable(field.NewPath("preemptionPolicy"), changed.PreemptionPolicy, old.PreemptionPolicy)...)
}

func runtimeClassGood(c *node.RuntimeClass) errs {
	all := invalid(field.NewPath("handler"), c.Handler, validation.IsDNS1123Label(c.Handler))
	if c.Overhead != nil {
		for _, name := range sorted(c.Overhead.PodFixed) {
			at := field.NewPath("overhead", "podFixed").Key(string(name))
			all = append(all, containerResourceName(at, name)...)
			all = append(all, quantity(at, name, c.Overhead.PodFixed[name])...)
		}
	}
	if c.Scheduling != nil {
		all = append(all, labels(field.NewPath("scheduling", "nodeSelector"), c.Scheduling.NodeSelector)...)
		all = append(all, tolerations(field.NewPath("scheduling", "tolerations"), c.Scheduling.Tolerations)...)
	}
	return all
}

func flowSchemaGood(f *flow.FlowSchema) errs {
	all := between(specPath.Child("matchingPrecedence"), f.Spec.MatchingPrecedence, 1, 10000)
	all = append(all, named(specPath.Child("priorityLevelConfiguration", "name"), f.Spec.PriorityLevelConfiguration.Name, isSubdomain)...)
	if m := f.Spec.DistinguisherMethod; m != nil {
		all = append(all, oneOf(specPath.Child("distinguisherMethod", "type"), m.Type, flow.FlowDistinguisherMethodByUserType, flow.FlowDistinguisherMethodByNamespaceType)...)
	}
	for i, r := range f.Spec.Rules {
		at := specPath.Child("rules").Index(i)
		if len(r.Subjects) == 0 {
			all = append(all, field.Required(at.Child("subjects"), "subjects must contain at least one value"))
		}
		for k, s := range r.Subjects {
			all = append(all, oneOf(at.Child("subjects").Index(k).Child("kind"), s.Kind, flow.SubjectKindGroup, flow.SubjectKindServiceAccount, flow.SubjectKindUser)...)
		}
		if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
			all = append(all, field.Required(at, "at least one of resourceRules and nonResourceRules has to be non-empty"))
		}
	}
	return all
}

func priorityLevelGood(p *flow.PriorityLevelConfiguration) errs {
	s := &p.Spec
	all := oneOf(specPath.Child("type"), s.Type, flow.PriorityLevelEnablementExempt, flow.PriorityLevelEnablementLimited)
	switch {
	case s.Type == flow.PriorityLevelEnablementExempt && s.Limited != nil:
		all = append(all, field.Forbidden(specPath.Child("limited"), "must be nil if the type is not Limited"))
	case s.Type == flow.PriorityLevelEnablementLimited && s.Exempt != nil:
		all = append(all, field.Forbidden(specPath.Child("exempt"), "must be nil if the type is Limited"))
	case s.Type == flow.PriorityLevelEnablementLimited && s.Limited == nil:
		return append(all, field.Required(specPath.Child("limited"), "must not be empty when type is Limited"))
	}
	l := s.Limited
	if l == nil {
		return all
	}
	at := specPath.Child("limited")
	all = append(all, notNegativeIfSet(at.Child("nominalConcurrencyShares"), l.NominalConcurrencyShares)...)
	all = append(all, between(at.Child("lendablePercent"), deref(l.LendablePercent), 0, 100)...)
	response := at.Child("limitResponse")
	all = append(all, oneOf(response.Child("type"), l.LimitResponse.Type, flow.LimitResponseTypeQueue, flow.LimitResponseTypeReject)...)
	q := l.LimitResponse.Queuing
	switch queue := l.LimitResponse.Type == flow.LimitResponseTypeQueue; {
	case queue && q == nil:
		all = append(all, field.Required(response.Child("queuing"), "must not be empty if limited.limitResponse.type is Queue"))
	case !queue && q != nil:
		all = append(all, field.Forbidden(response.Child("queuing"), "must be nil if limited.limitResponse.type is not Queue"))
	case q != nil:
		at := response.Child("queuing")
		all = append(all, positive(at.Child("queueLengthLimit"), q.QueueLengthLimit)...)
		all = append(all, positive(at.Child("queues"), q.Queues)...)
		all = append(all, positive(at.Child("handSize"), q.HandSize)...)
		if q.HandSize > q.Queues {
			all = append(all, field.Invalid(at.Child("handSize"), q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
		}
	}
	return all
}
