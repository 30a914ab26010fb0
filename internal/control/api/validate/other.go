package validate

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	node "k8s.io/api/node/v1"
	scheduling "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const systemPrefix = "system-"

// systemPriorities are the classes above what users may have.
var systemPriorities = map[string]int32{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}

const highestUserPriority = 1000000000

func PriorityClass(c *scheduling.PriorityClass) errs {
	all := oneOfIfSet(field.NewPath("preemptionPolicy"), c.PreemptionPolicy, "PreemptLowerPriority", "Never")
	if value, known := systemPriorities[c.Name]; known && value == c.Value {
		return all
	}
	if strings.HasPrefix(c.Name, systemPrefix) {
		return append(all, field.Forbidden(field.NewPath("metadata", "name"),
			fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %s is not a known system "+
				"priority class, or its value differs", systemPrefix, c.Name)))
	}
	if c.Value > highestUserPriority {
		all = append(all, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v",
			highestUserPriority)))
	}
	return all
}

func PriorityClassUpdate(changed, old *scheduling.PriorityClass) errs {
	var all errs
	if changed.Value != old.Value {
		all = append(all, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(all, immutable(field.NewPath("preemptionPolicy"), changed.PreemptionPolicy, old.PreemptionPolicy)...)
}

func RuntimeClass(c *node.RuntimeClass) errs {
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
		at := field.NewPath("scheduling", "tolerations")
		all = append(all, tolerations(at, c.Scheduling.Tolerations)...)
		for i, t := range c.Scheduling.Tolerations {
			if slices.ContainsFunc(c.Scheduling.Tolerations[:i], func(other v1.Toleration) bool {
				return equality.Semantic.DeepEqual(t,
					other)
			}) {
				all = append(all, field.Duplicate(at.Index(i), t))
			}
		}
	}
	return all
}

func RuntimeClassUpdate(changed, old *node.RuntimeClass) errs {
	return append(RuntimeClass(changed), immutable(field.NewPath("handler"), changed.Handler, old.Handler)...)
}
