package validate

import (
	"fmt"
	"regexp"
	"strings"

	dra "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// poolName wants subdomains with slashes between them.
func poolName(p *field.Path, name string) errs {
	if name == "" {
		return errs{field.Required(p, "")}
	}
	var all errs
	if len(name) > dra.PoolNameMaxLength {
		all = append(all, field.TooLong(p, "", dra.PoolNameMaxLength))
	}
	for _, part := range strings.Split(name, "/") {
		all = append(all, invalid(p, part, validation.IsDNS1123Subdomain(part))...)
	}
	return all
}

// resourceSlice checks what a driver publishes. Whose devices they are does not
// change: a node may write slices of its own, and would otherwise turn one into
// devices of another node, driver or pool.
func resourceSlice(s, old *dra.ResourceSliceSpec) errs {
	all := csiDriverName(specPath.Child("driver"), s.Driver)
	all = append(all, poolName(specPath.Child("pool", "name"), s.Pool.Name)...)
	if s.Pool.ResourceSliceCount <= 0 {
		all = append(all, field.Invalid(specPath.Child("pool", "resourceSliceCount"), s.Pool.ResourceSliceCount,
			"must be greater than zero"))
	}
	if s.Pool.Generation < 0 {
		all = append(all, field.Invalid(specPath.Child("pool", "generation"), s.Pool.Generation, "must be greater than or equal to zero"))
	}
	before := map[string]*dra.Device{}
	if old != nil {
		all = append(all, immutable(specPath.Child("pool", "name"), s.Pool.Name, old.Pool.Name)...)
		all = append(all, immutable(specPath.Child("driver"), s.Driver, old.Driver)...)
		all = append(all, immutable(specPath.Child("nodeName"), s.NodeName, old.NodeName)...)
		for i := range old.Devices {
			before[old.Devices[i].Name] = &old.Devices[i]
		}
	}
	all = append(all, sliceNodes(s)...)
	if s.SharedCounters != nil && s.Devices != nil {
		all = append(all, field.Invalid(specPath, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	all = append(all, devices(specPath.Child("devices"), s, before)...)
	if s.PartitionTypeAttribute != nil {
		all = append(all, partitionType(s)...)
	}
	return append(all, skippedOperations(specPath.Child("skipNodeOperations"), s.SkipNodeOperations)...)
}

// sliceNodes wants one way to say which nodes reach the devices.
func sliceNodes(s *dra.ResourceSliceSpec) errs {
	var all errs
	var ways []string
	if name := s.NodeName; name != nil {
		if *name == "" {
			all = append(all, field.Invalid(specPath.Child("nodeName"), *name, "must be either unset or set to a non-empty string"))
		} else {
			ways = append(ways, "`nodeName`")
			all = append(all, invalid(specPath.Child("nodeName"), *name, isSubdomain(*name))...)
		}
	}
	if s.NodeSelector != nil {
		ways = append(ways, "`nodeSelector`")
		at := specPath.Child("nodeSelector")
		all = append(all, nodeSelector(at, s.NodeSelector)...)
		if len(s.NodeSelector.NodeSelectorTerms) != 1 {
			all = append(all, field.Invalid(at.Child("nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms,
				"must have exactly one node selector term"))
		}
	}
	for _, flag := range []struct {
		name  string
		value *bool
	}{{"allNodes", s.AllNodes}, {"perDeviceNodeSelection", s.PerDeviceNodeSelection}} {
		switch {
		case flag.value == nil:
		case *flag.value:
			ways = append(ways, "`"+flag.name+"`")
		default:
			all = append(all, field.Invalid(specPath.Child(flag.name), false, "must be either unset or set to true"))
		}
	}
	const want = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch {
	case len(ways) == 0:
		all = append(all, field.Required(specPath, want))
	case len(ways) > 1:
		all = append(all, field.Invalid(specPath, fmt.Sprintf("{%s}", strings.Join(ways, ", ")), want+", but multiple fields are set"))
	}
	return all
}

func devices(p *field.Path, s *dra.ResourceSliceSpec, before map[string]*dra.Device) errs {
	most := dra.ResourceSliceMaxDevices
	for i := range s.Devices {
		if d := &s.Devices[i]; len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 || hasLists(d) {
			most = dra.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	if len(s.Devices) > most {
		return errs{field.TooMany(p, len(s.Devices), most)}
	}
	var all errs
	names := unique[string]{}
	for i := range s.Devices {
		d := &s.Devices[i]
		all = append(all, oneDevice(p.Index(i), d, before[d.Name], deref(s.PerDeviceNodeSelection))...)
		all = append(all, names.add(p.Index(i), d.Name)...)
	}
	return all
}

func hasLists(d *dra.Device) bool {
	for _, a := range d.Attributes {
		if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}

// oneDevice does not judge again capacity and taints that old, the stored
// device of the name, has as well.
func oneDevice(p *field.Path, d, old *dra.Device, ownNodes bool) errs {
	all := invalid(p.Child("name"), d.Name, validation.IsDNS1123Label(d.Name))
	if n, most := len(d.Attributes)+len(d.Capacity), dra.ResourceSliceMaxAttributesAndCapacitiesPerDevice; n > most {
		all = append(all, field.Invalid(p, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", most)))
	}
	values := 0
	for _, name := range sorted(d.Attributes) {
		a := d.Attributes[name]
		values += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
		all = append(all, qualifiedName(p.Child("attributes"), string(name))...)
		all = append(all, attribute(p.Child("attributes").Key(string(name)), &a)...)
	}
	if most := dra.ResourceSliceMaxAttributeValuesPerDevice; values > most {
		all = append(all, field.Invalid(p, values, fmt.Sprintf("the total number of attribute values must not exceed %d", most)))
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Capacity, d.Capacity) {
		for _, name := range sorted(d.Capacity) {
			c, at := d.Capacity[name], p.Child("capacity").Key(string(name)).Child("requestPolicy")
			all = append(all, qualifiedName(p.Child("capacity"), string(name))...)
			switch {
			case c.RequestPolicy == nil:
			case deref(d.AllowMultipleAllocations):
				all = append(all, requestPolicy(at, c.Value, c.RequestPolicy)...)
			default:
				all = append(all, field.Forbidden(at, "allowMultipleAllocations must be true"))
			}
		}
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Taints, d.Taints) {
		all = append(all, deviceTaints(p.Child("taints"), d.Taints)...)
	}
	all = append(all, deviceNodes(p, d, ownNodes)...)
	all = append(all, bindingConditions(p, d.BindingConditions, d.BindingFailureConditions)...)
	return append(all, nodeAllocatable(p.Child("nodeAllocatableResources"), d)...)
}

func deviceTaints(p *field.Path, list []dra.DeviceTaint) errs {
	if len(list) > dra.DeviceTaintsMaxLength {
		return errs{field.TooMany(p, len(list), dra.DeviceTaintsMaxLength)}
	}
	var all errs
	for i, t := range list {
		all = append(all, metavalidation.ValidateLabelName(t.Key, p.Index(i).Child("key"))...)
		all = append(all, invalid(p.Index(i).Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	}
	return all
}

// deviceNodes checks which nodes reach one device, where devices of a slice differ in it.
func deviceNodes(p *field.Path, d *dra.Device, own bool) errs {
	if !own {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			return errs{field.Invalid(p, nil,
				"`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "+
					"ResourceSlice spec")}
		}
		return nil
	}
	var all errs
	var ways []string
	if name := d.NodeName; name != nil {
		if *name == "" {
			all = append(all, field.Invalid(p.Child("nodeName"), *name, "must not be empty"))
		} else {
			ways = append(ways, "`nodeName`")
			all = append(all, invalid(p.Child("nodeName"), *name, isSubdomain(*name))...)
		}
	}
	if d.NodeSelector != nil {
		ways = append(ways, "`nodeSelector`")
		all = append(all, nodeSelector(p.Child("nodeSelector"), d.NodeSelector)...)
	}
	if d.AllNodes != nil {
		if *d.AllNodes {
			ways = append(ways, "`allNodes`")
		} else {
			all = append(all, field.Invalid(p.Child("allNodes"), false, "must be either unset or set to true"))
		}
	}
	const want = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in " +
		"the ResourceSlice spec"
	switch {
	case len(ways) == 0:
		all = append(all, field.Required(p, want))
	case len(ways) > 1:
		all = append(all, field.Invalid(p, fmt.Sprintf("{%s}", strings.Join(ways, ", ")), want))
	}
	return all
}

// qualifiedName wants an identifier, or a domain and one.
func qualifiedName(p *field.Path, name string) errs {
	domain, id, ok := strings.Cut(name, "/")
	if !ok {
		return identifier(p, name)
	}
	if strings.Contains(id, "/") {
		return errs{field.Invalid(p, name, "must not contain more than one slash")}
	}
	var all errs
	if domain == "" {
		all = append(all, field.Invalid(p, "", "the domain must not be empty"))
	} else {
		all = append(all, csiDriverName(p, domain)...)
	}
	if id == "" {
		return append(all, field.Invalid(p, "", "the name must not be empty"))
	}
	return append(all, identifier(p, id)...)
}

func identifier(p *field.Path, id string) errs {
	var all errs
	if len(id) > dra.DeviceMaxIDLength {
		all = append(all, field.TooLong(p, "", dra.DeviceMaxIDLength))
	}
	return append(all, invalid(p, id, validation.IsCIdentifier(id))...)
}

// semver is the grammar of semver.org 2.0.0.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

func attribute(p *field.Path, a *dra.DeviceAttribute) errs {
	var all errs
	length := func(at *field.Path, v string) {
		if len(v) > dra.DeviceAttributeMaxValueLength {
			all = append(all, field.TooLong(at, "", dra.DeviceAttributeMaxValueLength))
		}
	}
	version := func(at *field.Path, v string) {
		if !semver.MatchString(v) {
			all = append(all, field.Invalid(at, v, "must be a string compatible with semver.org spec 2.0.0"))
		}
		length(at, v)
	}
	if a.StringValue != nil {
		length(p.Child("string"), *a.StringValue)
	}
	if a.VersionValue != nil {
		version(p.Child("version"), *a.VersionValue)
	}
	for i, v := range a.StringValues {
		length(p.Child("strings").Index(i), v)
	}
	for i, v := range a.VersionValues {
		version(p.Child("versions").Index(i), v)
	}
	for _, list := range []given{{"bools", a.BoolValues != nil && len(a.BoolValues) == 0},
		{"ints", a.IntValues != nil && len(a.IntValues) == 0},
		{"strings", a.StringValues != nil && len(a.StringValues) == 0}, {"versions", a.VersionValues != nil && len(a.VersionValues) == 0}} {
		if list.set {
			all = append(all, field.Invalid(p.Child(list.name), []string{}, "must not be empty if specified"))
		}
	}
	return all
}

// bindingConditions wants two lists of condition types that have none in
// common, both or neither.
func bindingConditions(p *field.Path, good, bad []string) errs {
	var all errs
	both := sets.New(good...)
	for _, list := range []struct {
		name  string
		types []string
		most  int
	}{{"bindingConditions", good, dra.BindingConditionsMaxSize}, {"bindingFailureConditions", bad, dra.BindingFailureConditionsMaxSize}} {
		if len(list.types) > list.most {
			continue // the schema refuses it
		}
		seen := unique[string]{}
		for i, name := range list.types {
			at := p.Child(list.name).Index(i)
			all = append(all, metavalidation.ValidateLabelName(name, at)...)
			all = append(all, seen.add(at, name)...)
		}
	}
	for i, name := range bad {
		if both.Has(name) {
			all = append(all, field.Invalid(p.Child("bindingFailureConditions").Index(i), name,
				"bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	switch {
	case len(good) == 0 && len(bad) > 0:
		all = append(all, field.Invalid(p.Child("bindingConditions"), good,
			"bindingConditions are required to use bindingFailureConditions"))
	case len(bad) == 0 && len(good) > 0:
		all = append(all, field.Invalid(p.Child("bindingFailureConditions"), bad,
			"bindingFailureConditions are required to use bindingConditions"))
	}
	return all
}

// nodeAllocatable checks what a device takes of the node's own resources.
func nodeAllocatable(p *field.Path, d *dra.Device) errs {
	var all errs
	for _, name := range sorted(d.NodeAllocatableResources) {
		r, at := d.NodeAllocatableResources[name], p.Key(string(name))
		if !containerResources.Has(name) && !isHugePage(name) {
			all = append(all, field.Invalid(at, name, "must be a node allocatable resource name"))
		}
		if r.Mapping == nil && r.Overhead == nil {
			all = append(all, field.Required(at, "at least one of mapping or overhead must be set"))
		}
		if r.Mapping != nil {
			all = append(all, nodeMapping(at.Child("mapping"), r.Mapping, d.Capacity)...)
		}
		if o := r.Overhead; o != nil {
			if o.PerPod == nil && o.PerContainer == nil {
				all = append(all, field.Invalid(at.Child("overhead"), "", "at least one of perPod or perContainer must be set"))
			}
			for _, part := range []struct {
				name string
				q    *resource.Quantity
			}{{"perPod", o.PerPod}, {"perContainer", o.PerContainer}} {
				if part.q != nil && part.q.Sign() < 0 {
					all = append(all, field.Invalid(at.Child("overhead", part.name), part.q.String(), "must be non-negative"))
				}
			}
		}
	}
	return all
}

func nodeMapping(p *field.Path, m *dra.NodeAllocatableMapping, capacity map[dra.QualifiedName]dra.DeviceCapacity) errs {
	var all errs
	if key := m.CapacityKey; key != nil {
		_, ok := capacity[*key]
		switch {
		case *key == "":
			all = append(all, field.Invalid(p.Child("capacityKey"), "", "capacityKey must not be an empty string"))
		case !ok:
			all = append(all, field.NotFound(p.Child("capacityKey"), *key))
		}
		if m.CapacityMultiplier != nil && m.CapacityMultiplier.Sign() <= 0 {
			all = append(all, field.Invalid(p.Child("capacityMultiplier"), m.CapacityMultiplier.String(), "must be positive"))
		}
	}
	if m.DeviceMultiplier != nil && m.DeviceMultiplier.Sign() <= 0 {
		all = append(all, field.Invalid(p.Child("deviceMultiplier"), m.DeviceMultiplier.String(), "must be positive"))
	}
	return all
}

// partitionType wants the attribute that names a device's type of partition on
// every device that takes counters.
func partitionType(s *dra.ResourceSliceSpec) errs {
	var all errs
	name := string(*s.PartitionTypeAttribute)
	bare := strings.TrimPrefix(name, s.Driver+"/")
	consumers := 0
	for i := range s.Devices {
		d := &s.Devices[i]
		if len(d.ConsumesCounters) == 0 {
			continue
		}
		consumers++
		at := specPath.Child("devices").Index(i).Child("attributes").Key(name)
		a, ok := d.Attributes[dra.QualifiedName(name)]
		if !ok {
			a, ok = d.Attributes[dra.QualifiedName(bare)]
		}
		switch {
		case !ok:
			all = append(all, field.Required(at,
				"device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"))
		case a.StringValue == nil:
			all = append(all, field.Invalid(at, a, "must be a string value because `partitionTypeAttribute` names this attribute"))
		}
	}
	if consumers == 0 {
		return errs{field.Invalid(specPath.Child("partitionTypeAttribute"), name,
			"may only be set on a slice which declares devices that consume counters")}
	}
	return all
}

func skippedOperations(p *field.Path, list []dra.SkipNodeOperation) errs {
	skipped := sets.New(list...)
	if skipped.Has(dra.SkipNodeOperationNodePrepareResources) && !skipped.HasAny(dra.SkipNodeOperationNodeUnprepareResources,
		dra.SkipNodeOperationAll) {
		return errs{field.Invalid(p, list, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped")}
	}
	return nil
}
