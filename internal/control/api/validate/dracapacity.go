package validate

import (
	"fmt"
	"math"

	dra "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// requestPolicy checks which amounts of a capacity may be asked for: a list or
// a range of them, with a default.
func requestPolicy(p *field.Path, whole resource.Quantity, r *dra.CapacityRequestPolicy) errs {
	switch list, span := len(r.ValidValues) > 0, r.ValidRange != nil; {
	case list && span:
		return errs{field.Forbidden(p, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the `+
			`same time`)}
	case list && r.Default == nil:
		return errs{field.Required(p.Child("default"), "required when validValues is defined")}
	case list:
		return requestValues(p.Child("validValues"), whole, *r.Default, r.ValidValues)
	case span && r.Default == nil:
		return errs{field.Required(p.Child("default"), "required when validRange is defined")}
	case span:
		return requestRange(p.Child("validRange"), whole, *r.Default, r.ValidRange)
	}
	return nil
}

func requestValues(p *field.Path, whole, preset resource.Quantity, list []resource.Quantity) errs {
	var all errs
	found := false
	seen := map[int64]bool{}
	for i, q := range list {
		at := p.Index(i)
		if i > 0 && list[i-1].Cmp(q) > 0 {
			all = append(all, field.Invalid(at, q.String(), "values must be sorted in ascending order"))
		}
		if q.Cmp(whole) > 0 {
			all = append(all, field.Invalid(at, q.String(), fmt.Sprintf("option is larger than capacity value: %s", whole.String())))
		}
		if seen[q.Value()] {
			all = append(all, field.Duplicate(at, q.String()))
		}
		seen[q.Value()] = true
		found = found || q.Cmp(preset) == 0
	}
	if !found {
		all = append(all, field.Invalid(p, preset.String(), "default value is not valid according to the requestPolicy"))
	}
	return all
}

func requestRange(p *field.Path, whole, preset resource.Quantity, r *dra.CapacityRequestPolicyRange) errs {
	if r.Min == nil {
		return errs{field.Required(p.Child("min"), "required when validRange is defined")}
	}
	var all errs
	if r.Min.Cmp(whole) > 0 {
		all = append(all, field.Invalid(p.Child("min"), r.Min.String(), fmt.Sprintf("min is larger than capacity value: %s",
			whole.String())))
	}
	if preset.Cmp(*r.Min) < 0 {
		all = append(all, field.Invalid(p.Child("default"), preset.String(), fmt.Sprintf("default is less than min: %s", r.Min.String())))
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			all = append(all, field.Invalid(p.Child("max"), r.Min.String(), fmt.Sprintf("min is larger than max: %s", r.Max.String())))
		}
		if r.Max.Cmp(whole) > 0 {
			all = append(all, field.Invalid(p.Child("max"), r.Max.String(), fmt.Sprintf("max is larger than capacity value: %s",
				whole.String())))
		}
		if preset.Cmp(*r.Max) > 0 {
			all = append(all, field.Invalid(p.Child("default"), preset.String(), fmt.Sprintf("default is more than max: %s",
				r.Max.String())))
		}
	}
	return append(all, requestStep(p, whole, preset, r)...)
}

// requestStep wants the default and the maximum to be whole steps above the
// minimum. Amounts that do not fit into an integer are refused before they are
// computed with.
func requestStep(p *field.Path, whole, preset resource.Quantity, r *dra.CapacityRequestPolicyRange) errs {
	if r.Step == nil {
		return nil
	}
	at := p.Child("step")
	if r.Step.Sign() <= 0 {
		return errs{field.Invalid(at, r.Step.String(), "must be greater than zero")}
	}
	var all errs
	first := r.Min.DeepCopy()
	first.Add(*r.Step)
	if first.Cmp(whole) > 0 {
		all = append(all, field.Invalid(at, r.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s", first.String(),
			whole.String())))
	}
	unsafe := false
	for _, amount := range []struct {
		name string
		q    *resource.Quantity
	}{{"default", &preset}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}} {
		switch {
		case amount.q == nil:
		case amount.q.Sign() < 0:
			unsafe = true
			all = append(all, field.Invalid(p.Child(amount.name), amount.q.String(), "must be greater than or equal to 0"))
		case amount.q.CmpInt64(math.MaxInt64) > 0:
			unsafe = true
			all = append(all, field.Invalid(p.Child(amount.name), amount.q.String(), "must not be larger than 9223372036854775807"))
		}
	}
	if unsafe {
		return all
	}
	for _, q := range []*resource.Quantity{&preset, r.Max} {
		if q != nil && (q.Value()-r.Min.Value())%r.Step.Value() != 0 {
			all = append(all, field.Invalid(at, q.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)",
				r.Step.String(), r.Min.String())))
		}
	}
	return all
}
