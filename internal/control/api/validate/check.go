package validate

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// invalid makes one error of each message about v.
func invalid(p *field.Path, v any, messages []string) errs {
	var all errs
	for _, m := range messages {
		all = append(all, field.Invalid(p, v, m))
	}
	return all
}

// oneOf wants v to be one of allowed.
func oneOf[T ~string](p *field.Path, v T, allowed ...T) errs {
	if slices.Contains(allowed, v) {
		return nil
	}
	slices.Sort(allowed)
	return errs{field.NotSupported(p, v, allowed)}
}

// mustBeOneOf wants v to be there and one of allowed.
func mustBeOneOf[T ~string](p *field.Path, v T, allowed ...T) errs {
	if v == "" {
		return errs{field.Required(p, "")}
	}
	return oneOf(p, v, allowed...)
}

// oneOfIfSet wants v, where set, to be one of allowed.
func oneOfIfSet[T ~string](p *field.Path, v *T, allowed ...T) errs {
	if v == nil {
		return nil
	}
	return oneOf(p, *v, allowed...)
}

// present wants text.
func present(p *field.Path, v string) errs {
	if v == "" {
		return errs{field.Required(p, "")}
	}
	return nil
}

// named wants text that messages has nothing to say about.
func named(p *field.Path, v string, messages func(string) []string) errs {
	if v == "" {
		return errs{field.Required(p, "")}
	}
	return invalid(p, v, messages(v))
}

// isName turns the name rule of a kind into a check of a reference to it.
func isName(rule apivalidation.ValidateNameFunc) func(string) []string {
	return func(v string) []string { return rule(v, false) }
}

var isSubdomain = isName(apivalidation.NameIsDNSSubdomain)

func notNegative[T int32 | int64](p *field.Path, v T) errs {
	return apivalidation.ValidateNonnegativeField(int64(v), p)
}

func notNegativeIfSet[T int32 | int64](p *field.Path, v *T) errs {
	if v == nil {
		return nil
	}
	return notNegative(p, *v)
}

func positive[T int32 | int64](p *field.Path, v T) errs {
	if v <= 0 {
		return errs{field.Invalid(p, v, "must be greater than 0")}
	}
	return nil
}

func between[T int32 | int64](p *field.Path, v T, low, high int) errs {
	if int64(v) < int64(low) || int64(v) > int64(high) {
		return errs{field.Invalid(p, v, validation.InclusiveRangeError(low, high))}
	}
	return nil
}

// immutable wants both to be the same.
func immutable(p *field.Path, changed, old any) errs {
	return apivalidation.ValidateImmutableField(changed, old, p)
}

func selector(p *field.Path, s *metav1.LabelSelector) errs {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, p)
}

// unique reports each repetition of a key.
type unique[K comparable] map[K]bool

func (u unique[K]) add(p *field.Path, k K) errs {
	if u[k] {
		return errs{field.Duplicate(p, k)}
	}
	u[k] = true
	return nil
}

func portNumber(p *field.Path, port int32) errs {
	return invalid(p, port, validation.IsValidPortNum(int(port)))
}

// portOrName wants a port number or the name of a port.
func portOrName(p *field.Path, port intstr.IntOrString) errs {
	switch port.Type {
	case intstr.Int:
		return invalid(p, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
	case intstr.String:
		return invalid(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return errs{field.InternalError(p, fmt.Errorf("port of unknown type %v", port.Type))}
}

// amount wants a count that is not negative, or a percentage; limited to 100 %
// where the caller says so.
func amount(p *field.Path, v *intstr.IntOrString, atMostAll bool) errs {
	if v == nil {
		return nil
	}
	if v.Type == intstr.Int {
		return notNegative(p, v.IntVal)
	}
	if bad := validation.IsValidPercent(v.StrVal); len(bad) > 0 {
		return invalid(p, *v, bad)
	}
	if percent, _ := percentage(v); atMostAll && percent > 100 {
		return errs{field.Invalid(p, *v, "must not be greater than 100%")}
	}
	return nil
}

// percentage is the number before the percent sign. A number too large to hold
// counts as more than all.
func percentage(v *intstr.IntOrString) (int, bool) {
	if v == nil || v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n := 0
	for _, digit := range strings.TrimSuffix(v.StrVal, "%") {
		if n = n*10 + int(digit-'0'); n > math.MaxInt32 {
			return math.MaxInt32, true
		}
	}
	return n, true
}

// isNone reports an amount of 0 or 0%.
func isNone(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if v.Type == intstr.Int {
		return v.IntVal == 0
	}
	n, ok := percentage(v)
	return ok && n == 0
}

// localPath wants a relative path that does not climb.
func localPath(p *field.Path, v string) errs {
	var all errs
	if path.IsAbs(v) {
		all = append(all, field.Invalid(p, v, "must be a relative path"))
	}
	return append(all, noBacksteps(p, v)...)
}

func noBacksteps(p *field.Path, v string) errs {
	if slices.Contains(strings.Split(strings.ReplaceAll(v, `\`, "/"), "/"), "..") {
		return errs{field.Invalid(p, v, "must not contain '..'")}
	}
	return nil
}

// localFile wants the path of a file inside a volume whose top level names
// that begin with two dots are taken.
func localFile(p *field.Path, v string) errs {
	all := localPath(p, v)
	if strings.HasPrefix(v, "..") && !strings.HasPrefix(v, "../") && v != ".." {
		all = append(all, field.Invalid(p, v, "must not start with '..'"))
	}
	return all
}

// fileMode wants permission bits.
func fileMode(p *field.Path, mode *int32) errs {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return errs{field.Invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

// labels wants keys and values that are labels.
func labels(p *field.Path, m map[string]string) errs { return metavalidation.ValidateLabels(m, p) }

// templateMeta checks the metadata inside a template of claims: labels and
// annotations, and nothing else, since nothing else is kept.
func templateMeta(p *field.Path, m *metav1.ObjectMeta) errs {
	all := apivalidation.ValidateAnnotations(m.Annotations, p.Child("annotations"))
	all = append(all, labels(p.Child("labels"), m.Labels)...)
	return append(all, forbid(p, "cannot be set", []given{
		{"name", m.Name != ""}, {"generateName", m.GenerateName != ""}, {"namespace", m.Namespace != ""}, {"uid", m.UID != ""},
		{"resourceVersion", m.ResourceVersion != ""}, {"generation", m.Generation != 0},
		{"creationTimestamp", !m.CreationTimestamp.IsZero()},
		{"deletionTimestamp", m.DeletionTimestamp != nil}, {"deletionGracePeriodSeconds", m.DeletionGracePeriodSeconds != nil},
		{"ownerReferences", len(m.OwnerReferences) > 0}, {"finalizers", len(m.Finalizers) > 0},
		{"managedFields", len(m.ManagedFields) > 0}})...)
}

// reference wants a name in a local reference.
func reference(p *field.Path, r v1.LocalObjectReference) errs {
	return present(p.Child("name"), r.Name)
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func itoa(n int32) string { return strconv.FormatInt(int64(n), 10) }

// sorted are the keys of a map, in an order that does not change from one
// answer to the next.
func sorted[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// given names a field and says whether it is set.
type given struct {
	name string
	set  bool
}

// forbid reports each field that is set, for the same reason.
func forbid(p *field.Path, reason string, fields []given) errs {
	var all errs
	for _, f := range fields {
		if f.set {
			all = append(all, field.Forbidden(p.Child(f.name), reason))
		}
	}
	return all
}

// firstOnly drops what is wrong inside the members of a union beyond the first:
// they must go, not be fixed.
func firstOnly(p *field.Path, members []given, all errs) errs {
	var extra []string
	first := true
	for _, m := range members {
		if m.set && !first {
			for _, name := range append([]string{m.name}, paths[m.name]...) {
				extra = append(extra, p.Child(name).String()+".")
			}
		}
		first = first && !m.set
	}
	return slices.DeleteFunc(all, func(e *field.Error) bool {
		return slices.ContainsFunc(extra, func(prefix string) bool { return strings.HasPrefix(e.Field, prefix) })
	})
}

// paths are names that the causes of a volume source carry beside the field's own.
var paths = map[string][]string{"gcePersistentDisk": {"persistentDisk"}, "cephFS": {"cephfs"}}

// exactlyOne checks a union: each member that is set beyond the first is
// reported with tooMany, none at all as Required with none.
func exactlyOne(p *field.Path, tooMany, none string, members []given) errs {
	var all errs
	count := 0
	for _, m := range members {
		if !m.set {
			continue
		}
		if count++; count > 1 {
			all = append(all, field.Forbidden(p.Child(m.name), tooMany))
		}
	}
	if count == 0 {
		all = append(all, field.Required(p, none))
	}
	return all
}
