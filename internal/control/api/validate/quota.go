package validate

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// quotaResources are the names without a domain that can be limited.
var quotaResources = sets.New(v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourceRequestsCPU,
	v1.ResourceRequestsMemory,
	v1.ResourceRequestsStorage, v1.ResourceRequestsEphemeralStorage, v1.ResourceLimitsCPU, v1.ResourceLimitsMemory,
	v1.ResourceLimitsEphemeralStorage, v1.ResourcePods, v1.ResourceQuotas, v1.ResourceServices, v1.ResourceReplicationControllers,
	v1.ResourceSecrets, v1.ResourcePersistentVolumeClaims, v1.ResourceConfigMaps, v1.ResourceServicesNodePorts,
	v1.ResourceServicesLoadBalancers)

// counted are those of them that are whole numbers.
var counted = sets.New(v1.ResourcePods, v1.ResourceQuotas, v1.ResourceServices, v1.ResourceReplicationControllers, v1.ResourceSecrets,
	v1.ResourcePersistentVolumeClaims, v1.ResourceConfigMaps, v1.ResourceServicesNodePorts, v1.ResourceServicesLoadBalancers)

func quotaName(p *field.Path, name v1.ResourceName) errs {
	if bad := validation.IsQualifiedName(string(name)); len(bad) > 0 {
		return invalid(p, name, bad)
	}
	huge := isHugePage(name) || strings.HasPrefix(string(name), v1.ResourceRequestsHugePagesPrefix)
	if !strings.Contains(string(name), "/") && !quotaResources.Has(name) && !huge {
		return errs{field.Invalid(p, name, "must be a standard resource for quota")}
	}
	return nil
}

func quotaAmounts(p *field.Path, list v1.ResourceList) errs {
	var all errs
	for _, name := range sorted(list) {
		at, q := p.Key(string(name)), list[name]
		all = append(all, quotaName(at, name)...)
		all = append(all, quantity(at, name, q)...)
		if (counted.Has(name) || strings.HasPrefix(string(name), "count/")) && q.MilliValue()%1000 != 0 {
			all = append(all, field.Invalid(at, q.String(), "must be an integer"))
		}
	}
	return all
}

var quotaScopes = []v1.ResourceQuotaScope{v1.ResourceQuotaScopeTerminating, v1.ResourceQuotaScopeNotTerminating,
	v1.ResourceQuotaScopeBestEffort,
	v1.ResourceQuotaScopeNotBestEffort, v1.ResourceQuotaScopePriorityClass, v1.ResourceQuotaScopeCrossNamespacePodAffinity,
	v1.ResourceQuotaScopeVolumeAttributesClass}

func ResourceQuota(q *v1.ResourceQuota) errs {
	all := quotaAmounts(specPath.Child("hard"), q.Spec.Hard)
	at := specPath.Child("scopes")
	have := sets.New[v1.ResourceQuotaScope]()
	for _, s := range q.Spec.Scopes {
		if !sets.New(quotaScopes...).Has(s) {
			all = append(all, field.Invalid(at, q.Spec.Scopes, "unsupported scope"))
		}
		have.Insert(s)
	}
	for _, pair := range [][2]v1.ResourceQuotaScope{{v1.ResourceQuotaScopeBestEffort, v1.ResourceQuotaScopeNotBestEffort},
		{v1.ResourceQuotaScopeTerminating, v1.ResourceQuotaScopeNotTerminating}} {
		if have.HasAll(pair[0], pair[1]) {
			all = append(all, field.Invalid(at, q.Spec.Scopes, "conflicting scopes"))
		}
	}
	if q.Spec.ScopeSelector == nil {
		return all
	}
	for i, r := range q.Spec.ScopeSelector.MatchExpressions {
		one := specPath.Child("scopeSelector", "matchExpressions").Index(i)
		all = append(all, oneOf(one.Child("scopeName"), r.ScopeName, append([]v1.ResourceQuotaScope(nil), quotaScopes...)...)...)
		all = append(all, oneOf(one.Child("operator"), r.Operator, v1.ScopeSelectorOpIn, v1.ScopeSelectorOpNotIn, v1.ScopeSelectorOpExists,
			v1.ScopeSelectorOpDoesNotExist)...)
		listed := r.Operator == v1.ScopeSelectorOpIn || r.Operator == v1.ScopeSelectorOpNotIn
		switch {
		case listed && len(r.Values) == 0:
			all = append(all, field.Required(one.Child("values"),
				"must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
		case !listed && len(r.Values) > 0:
			all = append(all, field.Invalid(one.Child("values"), r.Values,
				"must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
		}
	}
	return all
}

func ResourceQuotaUpdate(changed, old *v1.ResourceQuota) errs {
	all := ResourceQuota(changed)
	if !sets.New(changed.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		all = append(all, field.Invalid(specPath.Child("scopes"), changed.Spec.Scopes, "field is immutable"))
	}
	return all
}

func ResourceQuotaStatusUpdate(changed, _ *v1.ResourceQuota) errs {
	at := field.NewPath("status")
	return append(quotaAmounts(at.Child("hard"), changed.Status.Hard), quotaAmounts(at.Child("used"), changed.Status.Used)...)
}

func LimitRange(l *v1.LimitRange) errs {
	var all errs
	types := unique[v1.LimitType]{}
	for i := range l.Spec.Limits {
		at, item := specPath.Child("limits").Index(i), &l.Spec.Limits[i]
		all = append(all, limitType(at.Child("type"), item.Type)...)
		all = append(all, types.add(at.Child("type"), item.Type)...)
		if item.Type == v1.LimitTypePod {
			all = append(all, forbid(at, "may not be specified when `type` is 'Pod'", []given{
				{"default", len(item.Default) > 0}, {"defaultRequest", len(item.DefaultRequest) > 0}})...)
		}
		if item.Type == v1.LimitTypePersistentVolumeClaim {
			_, low := item.Min[v1.ResourceStorage]
			_, high := item.Max[v1.ResourceStorage]
			if !low && !high {
				all = append(all, field.Required(at.Child("limits"),
					"either minimum or maximum storage value is required, but neither was provided"))
			}
		}
		all = append(all, limitItem(at, item)...)
	}
	return all
}

// limitType wants a type that is limited here, or one of another party's domain.
func limitType(p *field.Path, t v1.LimitType) errs {
	if bad := validation.IsQualifiedName(string(t)); len(bad) > 0 {
		return invalid(p, t, bad)
	}
	if !strings.Contains(string(t), "/") && t != v1.LimitTypePod && t != v1.LimitTypeContainer && t != v1.LimitTypePersistentVolumeClaim {
		return errs{field.Invalid(p, t, "must be a standard limit type or fully qualified")}
	}
	return nil
}

// limitItem wants min <= default request <= default <= max for each resource.
func limitItem(p *field.Path, item *v1.LimitRangeItem) errs {
	var all errs
	names := sets.New[v1.ResourceName]()
	for _, part := range []struct {
		name string
		list v1.ResourceList
	}{{"max", item.Max}, {"min", item.Min}, {"default", item.Default}, {"defaultRequest", item.DefaultRequest},
		{"maxLimitRequestRatio", item.MaxLimitRequestRatio}} {
		for _, name := range sorted(part.list) {
			names.Insert(name)
			at := p.Child(part.name).Key(string(name))
			all = append(all, invalid(at, name, validation.IsQualifiedName(string(name)))...)
			if item.Type == v1.LimitTypeContainer {
				all = append(all, containerResourceName(at, name)...)
			}
			if part.name != "min" {
				all = append(all, quantity(at, name, part.list[name])...)
			}
		}
	}
	for _, name := range sets.List(names) {
		ordered := func(part string, low, high v1.ResourceList, lowText, highText string) {
			l, haveLow := low[name]
			h, haveHigh := high[name]
			if haveLow && haveHigh && l.Cmp(h) > 0 {
				all = append(all, field.Invalid(p.Child(part).Key(string(name)), l.String(),
					fmt.Sprintf("%s value %s is greater than %s value %s", lowText, l.String(), highText, h.String())))
			}
		}
		ordered("min", item.Min, item.Max, "min", "max")
		ordered("defaultRequest", item.Min, item.DefaultRequest, "min", "default request")
		ordered("defaultRequest", item.DefaultRequest, item.Max, "default request", "max")
		ordered("defaultRequest", item.DefaultRequest, item.Default, "default request", "default limit")
		ordered("default", item.Min, item.Default, "min", "default")
		ordered("default", item.Default, item.Max, "default", "max")
		if ratio, ok := item.MaxLimitRequestRatio[name]; ok && ratio.Cmp(resource.MustParse("1")) < 0 {
			all = append(all, field.Invalid(p.Child("maxLimitRequestRatio").Key(string(name)), ratio.String(),
				fmt.Sprintf("ratio %s is less than 1", ratio.String())))
		}
	}
	return all
}
