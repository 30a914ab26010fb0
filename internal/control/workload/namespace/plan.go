// Package namespace empties namespaces that are being deleted: pods first,
// then everything else, then the namespace itself.
package namespace

import (
	"fmt"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// content is what one pass over a namespace found.
type content struct {
	// Remaining counts objects left per resource ("pods", "jobs.batch").
	Remaining map[string]int
	// Finalizers counts objects left per finalizer that holds them.
	Finalizers map[string]int
	// DiscoveryErr and DeleteErrs are what failed; deleting goes on with what
	// could be discovered.
	DiscoveryErr error
	DeleteErrs   []error
}

// Empty says whether nothing is known to be left.
func (c *content) Empty() bool {
	return len(c.Remaining) == 0 && len(c.DeleteErrs) == 0 && c.DiscoveryErr == nil
}

// conditions returns the namespace's conditions after a pass.
func conditions(old []v1.NamespaceCondition, c *content, now time.Time) []v1.NamespaceCondition {
	out := append([]v1.NamespaceCondition(nil), old...)
	set := func(t v1.NamespaceConditionType, bad bool, badReason, badMsg, goodReason, goodMsg string) {
		n := v1.NamespaceCondition{Type: t, Status: v1.ConditionFalse, Reason: goodReason, Message: goodMsg,
			LastTransitionTime: metav1.NewTime(now)}
		if bad {
			n.Status, n.Reason, n.Message = v1.ConditionTrue, badReason, badMsg
		}
		for i := range out {
			if out[i].Type == t {
				if out[i].Status == n.Status {
					n.LastTransitionTime = out[i].LastTransitionTime
				}
				out[i] = n
				return
			}
		}
		out = append(out, n)
	}
	set(v1.NamespaceDeletionDiscoveryFailure, c.DiscoveryErr != nil, "DiscoveryFailed",
		fmt.Sprintf("Discovery failed for some groups, 1 failing: %v", c.DiscoveryErr), "ResourcesDiscovered",
		"All resources successfully discovered")
	set(v1.NamespaceDeletionGVParsingFailure, false, "", "", "ParsedGroupVersions", "All legacy kube types successfully parsed")
	set(v1.NamespaceDeletionContentFailure, len(c.DeleteErrs) > 0, "ContentDeletionFailed",
		fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(c.DeleteErrs), joined(c.DeleteErrs)),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(v1.NamespaceContentRemaining, len(c.Remaining) > 0, "SomeResourcesRemain",
		"Some resources are remaining: "+counted(c.Remaining, "%s. has %d resource instances"), "ContentRemoved",
		"All content successfully removed")
	set(v1.NamespaceFinalizersRemaining, len(c.Finalizers) > 0, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+counted(c.Finalizers, "%s in %d resource instances"),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return out
}

func joined(errs []error) string {
	s := make([]string, len(errs))
	for i, e := range errs {
		s[i] = e.Error()
	}
	sort.Strings(s)
	return strings.Join(s, ", ")
}

func counted(m map[string]int, format string) string {
	var s []string
	for k, n := range m {
		s = append(s, fmt.Sprintf(format, k, n))
	}
	sort.Strings(s)
	return strings.Join(s, ", ")
}
