package table

import (
	"fmt"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Texts for what is not there.
const (
	none    = "<none>"
	unknown = "<unknown>"
	unset   = "<unset>"
)

// age is the time since t in the short form of kubectl; `<unknown>` for the
// zero time, `<invalid>` for a time in the future.
func age(now time.Time, t metav1.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// created is the object's age.
func created(now time.Time, m metav1.Object) string { return age(now, m.GetCreationTimestamp()) }

// or is s, or other where s is empty.
func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// joined joins with a comma; `<none>` if there is nothing.
func joined(items []string) string { return or(strings.Join(items, ","), none) }

// some joins the first three items and says how many more there are.
func some(items []string, empty string) string {
	const shown = 3
	if len(items) == 0 {
		return empty
	}
	if len(items) <= shown {
		return strings.Join(items, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(items[:shown], ","), len(items)-shown)
}

// templateCells are names and images of a template's containers.
func templateCells(s *v1.PodSpec) (names, images string) {
	n := make([]string, len(s.Containers))
	i := make([]string, len(s.Containers))
	for k, c := range s.Containers {
		n[k], i[k] = c.Name, c.Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

// balancerAddresses are the load balancer's addresses and names, sorted.
func balancerAddresses(addresses, hosts []string) string {
	set := map[string]bool{}
	for k := range addresses {
		if a := or(addresses[k], hosts[k]); a != "" {
			set[a] = true
		}
	}
	all := make([]string, 0, len(set))
	for a := range set {
		all = append(all, a)
	}
	sort.Strings(all)
	return strings.Join(all, ",")
}

// deref is *p, or the zero value.
func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// formatBool is a boolean field as text.
func formatBool(b *bool) string {
	switch {
	case b == nil:
		return unset
	case *b:
		return "True"
	}
	return "False"
}
