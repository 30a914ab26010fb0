package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	dra "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// schemaOptions are the gates that the rules ask about. All are closed: what is
// behind them is refused.
var schemaOptions = map[string]bool{"DRAPartitionableDevicesType": false}

// schemaRules applies the rules that resource.k8s.io declares in its schema,
// without those that are still behind a gate.
func schemaRules[T any](p *field.Path, changed, old *T, check func(context.Context, operation.Operation, *field.Path, *T,
	*T) field.ErrorList) errs {
	op := operation.Operation{Type: operation.Create, Options: schemaOptions}
	if old != nil {
		op.Type = operation.Update
	}
	var all errs
	for _, e := range check(context.Background(), op, p, changed, old) {
		if !e.IsAlpha() {
			all = append(all, e)
		}
	}
	return all
}

// both adds what the other half found to what the schema's rules found, and
// says nothing twice.
func both(declared, others errs) errs {
	type fault struct {
		field string
		kind  field.ErrorType
	}
	said := map[fault]bool{}
	for _, e := range declared {
		said[fault{e.Field, e.Type}] = true
	}
	for _, e := range others {
		if !said[fault{e.Field, e.Type}] {
			declared = append(declared, e)
		}
	}
	return declared
}

// requestNames are the requests of a claim, each with its subrequests, if it has any.
type requestNames map[string]sets.Set[string]

func namesOfRequests(c *dra.DeviceClaim) requestNames {
	names := requestNames{}
	for i := range c.Requests {
		subs := sets.New[string]()
		for k := range c.Requests[i].FirstAvailable {
			subs.Insert(c.Requests[i].FirstAvailable[k].Name)
		}
		names[c.Requests[i].Name] = subs
	}
	return names
}

// reference wants "request" or "request/subrequest" of those there are.
func (r requestNames) reference(p *field.Path, name string) errs {
	unknown := field.Invalid(p, name,
		"must be the name of a request in the claim or the name of a request and a subrequest separated by '/'")
	request, sub, hasSub := strings.Cut(name, "/")
	if strings.Contains(sub, "/") {
		return errs{unknown}
	}
	all := invalid(p, request, validation.IsDNS1123Label(request))
	if hasSub {
		all = append(all, invalid(p, sub, validation.IsDNS1123Label(sub))...)
	}
	subs, ok := r[request]
	if !ok || (hasSub && !subs.Has(sub)) {
		all = append(all, unknown)
	}
	return all
}

func (r requestNames) references(p *field.Path, list []string) errs {
	var all errs
	for i, name := range list {
		all = append(all, r.reference(p.Index(i), name)...)
	}
	return all
}

func deviceClaim(p *field.Path, c *dra.DeviceClaim) errs {
	var all errs
	if len(c.Requests) > dra.DeviceRequestsMaxSize || len(c.Constraints) > dra.DeviceConstraintsMaxSize ||
		len(c.Config) > dra.DeviceConfigMaxSize {
		return nil // the schema refuses it; compiling hundreds of expressions would help no one
	}
	names := namesOfRequests(c)
	d := derived{constraints: c.Constraints}
	for i := range c.Requests {
		all = append(all, deviceRequest(p.Child("requests").Index(i), &c.Requests[i], &d)...)
	}
	for i, constraint := range c.Constraints {
		at := p.Child("constraints").Index(i)
		all = append(all, names.references(at.Child("requests"), constraint.Requests)...)
		if constraint.MatchAttribute == nil && constraint.DistinctAttribute == nil {
			all = append(all, field.Required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required`))
		}
	}
	for i := range c.Config {
		at := p.Child("config").Index(i)
		all = append(all, names.references(at.Child("requests"), c.Config[i].Requests)...)
		all = append(all, deviceConfig(at, &c.Config[i].DeviceConfiguration, false)...)
	}
	if d.cost > dra.DeviceClaimDerivedAttributeCELMaxCost {
		all = append(all, field.Forbidden(p,
			"too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"))
	}
	return all
}

func deviceRequest(p *field.Path, r *dra.DeviceRequest, d *derived) errs {
	all := invalid(p.Child("name"), r.Name, validation.IsDNS1123Label(r.Name))
	switch exactly, first := r.Exactly != nil, len(r.FirstAvailable) > 0; {
	case exactly && first:
		all = append(all, field.Invalid(p, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	case exactly:
		e := r.Exactly
		all = append(all, deviceAsked(p.Child("exactly"), e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations)...)
		all = append(all, d.check(p.Child("exactly", "derivedAttributes"), r.Name, e.DerivedAttributes)...)
	case first:
		if len(r.FirstAvailable) > dra.FirstAvailableDeviceRequestMaxSize {
			return all
		}
		for i := range r.FirstAvailable {
			at, s := p.Child("firstAvailable").Index(i), &r.FirstAvailable[i]
			all = append(all, invalid(at.Child("name"), s.Name, validation.IsDNS1123Label(s.Name))...)
			all = append(all, deviceAsked(at, s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations)...)
			all = append(all, d.check(at.Child("derivedAttributes"), r.Name+"/"+s.Name, s.DerivedAttributes)...)
		}
	default:
		all = append(all, field.Required(p, "exactly one of `exactly` or `firstAvailable` is required"))
	}
	return all
}

func deviceAsked(p *field.Path, class string, selectors []dra.DeviceSelector, mode dra.DeviceAllocationMode, count int64,
	tolerations []dra.DeviceToleration) errs {
	all := named(p.Child("deviceClassName"), class, validation.IsDNS1123Subdomain)
	all = append(all, deviceSelectors(p.Child("selectors"), selectors)...)
	switch {
	case mode == dra.DeviceAllocationModeAll && count != 0:
		all = append(all, field.Invalid(p.Child("count"), count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
	case mode == dra.DeviceAllocationModeExactCount && count <= 0:
		all = append(all, field.Invalid(p.Child("count"), count, "must be greater than zero"))
	}
	return append(all, deviceTolerations(p.Child("tolerations"), tolerations)...)
}

func deviceTolerations(p *field.Path, list []dra.DeviceToleration) errs {
	var all errs
	for i, t := range list {
		at := p.Index(i).Child("value")
		switch t.Operator {
		case dra.DeviceTolerationOpExists:
			if t.Value != "" {
				all = append(all, field.Invalid(at, t.Value, "must be empty for operator `Exists`"))
			}
		case dra.DeviceTolerationOpEqual:
			all = append(all, invalid(at, t.Value, validation.IsValidLabelValue(t.Value))...)
		}
	}
	return all
}

func deviceSelectors(p *field.Path, list []dra.DeviceSelector) errs {
	var all errs
	if len(list) > dra.DeviceSelectorsMaxSize {
		return nil // the schema refuses it
	}
	for i, s := range list {
		at := p.Index(i).Child("cel")
		if s.CEL == nil {
			all = append(all, field.Required(at, ""))
			continue
		}
		_, bad := deviceExpression(at.Child("expression"), s.CEL.Expression, false)
		all = append(all, bad...)
	}
	return all
}

// deviceFeatures are what the scheduler's allocator knows.
var deviceFeatures = dracel.Features{EnableConsumableCapacity: true}

// deviceExpression compiles an expression over a device and says what it can
// cost at most.
func deviceExpression(p *field.Path, text string, attribute bool) (uint64, errs) {
	if len(text) > dra.CELSelectorExpressionMaxLength {
		return 0, errs{field.TooLong(p, "", dra.CELSelectorExpressionMaxLength)}
	}
	env := environment.NewExpressions
	result := dracel.GetCompiler(deviceFeatures).CompileCELExpression(text, dracel.Options{EnvType: &env, DerivedAttribute: attribute})
	if result.Error == nil {
		if result.MaxCost > dra.CELSelectorExpressionMaxCost {
			return result.MaxCost, errs{field.Forbidden(p, "too complex, exceeds cost limit")}
		}
		return result.MaxCost, nil
	}
	var bad *cel.Error
	if errors.As(result.Error, &bad) {
		switch bad.Type {
		case cel.ErrorTypeRequired:
			return 0, errs{field.Required(p, bad.Detail)}
		case cel.ErrorTypeInvalid:
			return 0, errs{field.Invalid(p, text, bad.Detail)}
		}
	}
	return 0, errs{field.InternalError(p, result.Error)}
}

// derived checks the attributes that requests derive, whose expressions have
// one budget together.
type derived struct {
	constraints []dra.DeviceConstraint
	cost        uint64
}

func (d *derived) check(p *field.Path, request string, list []dra.DeviceDerivedAttribute) errs {
	var all errs
	for i, a := range list {
		at := p.Index(i)
		if a.Name != "" && !d.used(string(a.Name), request) {
			all = append(all, field.Invalid(at.Child("name"), a.Name,
				"must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"))
		}
		if a.Expression != "" {
			cost, bad := deviceExpression(at.Child("expression"), a.Expression, true)
			d.cost += cost
			all = append(all, bad...)
		}
	}
	return all
}

// used says whether a constraint on all requests, on this one or on the one
// above it compares the attribute.
func (d *derived) used(attribute, request string) bool {
	above, _, _ := strings.Cut(request, "/")
	for _, c := range d.constraints {
		names := c.MatchAttribute
		if names == nil {
			names = c.DistinctAttribute
		}
		if names == nil || string(*names) != attribute {
			continue
		}
		if on := sets.New(c.Requests...); on.Len() == 0 || on.HasAny(request, above) {
			return true
		}
	}
	return false
}

// deviceConfig checks parameters for a driver. Those that are stored already
// may be longer than new ones.
func deviceConfig(p *field.Path, c *dra.DeviceConfiguration, stored bool) errs {
	at := p.Child("opaque")
	if c.Opaque == nil {
		return errs{field.Required(at, "")}
	}
	all := csiDriverName(at.Child("driver"), c.Opaque.Driver)
	most := dra.OpaqueParametersMaxLength
	if stored {
		most = len(c.Opaque.Parameters.Raw)
	}
	return append(all, jsonObject(at.Child("parameters"), c.Opaque.Parameters, most)...)
}

// jsonObject wants a JSON object of at most so many bytes.
func jsonObject(p *field.Path, r runtime.RawExtension, most int) errs {
	if len(r.Raw) == 0 {
		return errs{field.Required(p, "")}
	}
	if len(r.Raw) > most {
		return errs{field.TooLong(p, "", most)}
	}
	var v any
	if err := json.Unmarshal(r.Raw, &v); err != nil {
		return errs{field.Invalid(p, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if v == nil {
		return errs{field.Required(p, "")}
	}
	if _, ok := v.(map[string]any); !ok {
		return errs{field.Invalid(p, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

// deviceClass does not judge again what is stored: expressions may come to mean
// less to a newer compiler.
func deviceClass(s, old *dra.DeviceClassSpec) errs {
	var all errs
	if old == nil || !equality.Semantic.DeepEqual(s.Selectors, old.Selectors) {
		all = append(all, deviceSelectors(specPath.Child("selectors"), s.Selectors)...)
	}
	stored := old != nil && equality.Semantic.DeepEqual(s.Config, old.Config)
	for i := range s.Config {
		all = append(all, deviceConfig(specPath.Child("config").Index(i), &s.Config[i].DeviceConfiguration, stored)...)
	}
	return all
}

// device identifies an allocated device, or a share of one.
type device struct{ driver, pool, name, share string }

// claimStatusDRA checks what the scheduler, the claim controller and the drivers write.
func claimStatusDRA(changed, old *dra.ResourceClaim) errs {
	p := field.NewPath("status")
	s := &changed.Status
	var all errs
	for i, user := range s.ReservedFor {
		at := p.Child("reservedFor").Index(i)
		all = append(all, present(at.Child("resource"), user.Resource)...)
		all = append(all, present(at.Child("name"), user.Name)...)
		all = append(all, present(at.Child("uid"), string(user.UID))...)
	}
	allocated := map[device]bool{}
	if s.Allocation != nil {
		for _, r := range s.Allocation.Devices.Results {
			allocated[device{r.Driver, r.Pool, r.Device, string(deref(r.ShareID))}] = true
		}
	}
	for i := range s.Devices {
		all = append(all, deviceStatus(p.Child("devices").Index(i), &s.Devices[i], allocated)...)
	}
	switch {
	case len(s.ReservedFor) == 0:
	case s.Allocation == nil:
		all = append(all, field.Forbidden(p.Child("reservedFor"), "may not be specified when `allocated` is not set"))
	case changed.DeletionTimestamp != nil && sets.New(s.ReservedFor...).Difference(sets.New(old.Status.ReservedFor...)).Len() > 0:
		all = append(all, field.Forbidden(p.Child("reservedFor"),
			"new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
	}
	switch {
	case s.Allocation != nil && old.Status.Allocation != nil:
		all = append(all, immutable(p.Child("allocation"), s.Allocation, old.Status.Allocation)...)
	case s.Allocation != nil:
		all = append(all, allocation(p.Child("allocation"), s.Allocation, namesOfRequests(&changed.Spec.Devices))...)
	}
	return all
}

func allocation(p *field.Path, a *dra.AllocationResult, names requestNames) errs {
	var all errs
	for i := range a.Devices.Results {
		at, r := p.Child("devices", "results").Index(i), &a.Devices.Results[i]
		all = append(all, names.reference(at.Child("request"), r.Request)...)
		all = append(all, csiDriverName(at.Child("driver"), r.Driver)...)
		all = append(all, poolName(at.Child("pool"), r.Pool)...)
		all = append(all, invalid(at.Child("device"), r.Device, validation.IsDNS1123Label(r.Device))...)
		all = append(all, bindingConditions(at, r.BindingConditions, r.BindingFailureConditions)...)
		all = append(all, deviceTolerations(at.Child("tolerations"), r.Tolerations)...)
	}
	for i := range a.Devices.Config {
		at := p.Child("devices", "config").Index(i)
		all = append(all, names.references(at.Child("requests"), a.Devices.Config[i].Requests)...)
		all = append(all, deviceConfig(at, &a.Devices.Config[i].DeviceConfiguration, false)...)
	}
	if a.NodeSelector != nil {
		all = append(all, nodeSelector(p.Child("nodeSelector"), a.NodeSelector)...)
	}
	return all
}

func deviceStatus(p *field.Path, d *dra.AllocatedDeviceStatus, allocated map[device]bool) errs {
	all := csiDriverName(p.Child("driver"), d.Driver)
	all = append(all, poolName(p.Child("pool"), d.Pool)...)
	all = append(all, invalid(p.Child("device"), d.Device, validation.IsDNS1123Label(d.Device))...)
	if id := (device{d.Driver, d.Pool, d.Device, deref(d.ShareID)}); !allocated[id] {
		text := strings.Join([]string{id.driver, id.pool, id.name}, "/")
		if id.share != "" {
			text += "/" + id.share
		}
		all = append(all, field.Invalid(p, text, "must be an allocated device in the claim"))
	}
	if most := dra.AllocatedDeviceStatusMaxConditions; len(d.Conditions) > most {
		all = append(all, field.TooMany(p.Child("conditions"), len(d.Conditions), most))
	}
	all = append(all, metavalidation.ValidateConditions(d.Conditions, p.Child("conditions"))...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		all = append(all, jsonObject(p.Child("data"), *d.Data, dra.AllocatedDeviceStatusDataMaxLength)...)
	}
	if d.NetworkData != nil {
		for i, ip := range d.NetworkData.IPs {
			all = append(all, validation.IsValidInterfaceAddress(p.Child("networkData", "ips").Index(i), ip)...)
		}
	}
	return all
}

// The rules of resource.k8s.io come in two halves: those that its schema
// declares (schemaRules) and those of this file and draslice.go, which a schema
// cannot say.

func ResourceClaim(c *dra.ResourceClaim) errs {
	return both(schemaRules(specPath, &c.Spec, nil, dra.Validate_ResourceClaimSpec), deviceClaim(specPath.Child("devices"),
		&c.Spec.Devices))
}

func ResourceClaimUpdate(changed, old *dra.ResourceClaim) errs {
	return immutable(specPath, changed.Spec, old.Spec)
}

func ResourceClaimStatusUpdate(changed, old *dra.ResourceClaim) errs {
	return both(schemaRules(field.NewPath("status"), &changed.Status, &old.Status, dra.Validate_ResourceClaimStatus),
		claimStatusDRA(changed, old))
}

func ResourceClaimTemplate(t *dra.ResourceClaimTemplate) errs {
	all := templateMeta(specPath.Child("metadata"), &t.Spec.ObjectMeta)
	all = append(all, deviceClaim(specPath.Child("spec", "devices"), &t.Spec.Spec.Devices)...)
	return both(schemaRules(specPath, &t.Spec, nil, dra.Validate_ResourceClaimTemplateSpec), all)
}

func ResourceClaimTemplateUpdate(changed, old *dra.ResourceClaimTemplate) errs {
	return immutable(specPath, changed.Spec, old.Spec)
}

func DeviceClass(c *dra.DeviceClass) errs {
	return both(schemaRules(specPath, &c.Spec, nil, dra.Validate_DeviceClassSpec), deviceClass(&c.Spec, nil))
}

func DeviceClassUpdate(changed, old *dra.DeviceClass) errs {
	return both(schemaRules(specPath, &changed.Spec, &old.Spec, dra.Validate_DeviceClassSpec), deviceClass(&changed.Spec, &old.Spec))
}

func ResourceSlice(s *dra.ResourceSlice) errs {
	return both(schemaRules(specPath, &s.Spec, nil, dra.Validate_ResourceSliceSpec), resourceSlice(&s.Spec, nil))
}

func ResourceSliceUpdate(changed, old *dra.ResourceSlice) errs {
	return both(schemaRules(specPath, &changed.Spec, &old.Spec, dra.Validate_ResourceSliceSpec), resourceSlice(&changed.Spec, &old.Spec))
}
