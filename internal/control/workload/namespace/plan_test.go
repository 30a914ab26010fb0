package namespace

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestConditionsTellWhatIsLeft(t *testing.T) {
	start := time.Unix(1000, 0)
	first := conditions(nil, &content{Remaining: map[string]int{"pods": 2}, Finalizers: map[string]int{"a/b": 1},
		DeleteErrs: []error{errors.New("jobs.batch: no")}}, start)
	want := []string{"NamespaceDeletionDiscoveryFailure=False ResourcesDiscovered: All resources successfully discovered",
		"NamespaceDeletionGroupVersionParsingFailure=False ParsedGroupVersions: All legacy kube types successfully parsed",
		"NamespaceDeletionContentFailure=True ContentDeletionFailed: Failed to delete all resource types, 1 remaining: jobs.batch: no",
		"NamespaceContentRemaining=True SomeResourcesRemain: Some resources are remaining: pods. has 2 resource instances",
		"NamespaceFinalizersRemaining=True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: a/b in 1 " +
			"resource instances"}
	if got := show(first); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	later := conditions(first, &content{}, start.Add(time.Minute))
	if !later[0].LastTransitionTime.Time.Equal(start) || !later[3].LastTransitionTime.Time.Equal(start.Add(time.Minute)) {
		t.Errorf("transition times %v and %v: only a change of status moves them", later[0].LastTransitionTime, later[3].LastTransitionTime)
	}
	if later[3].Reason != "ContentRemoved" || later[4].Reason != "ContentHasNoFinalizers" {
		t.Errorf("reasons %s, %s", later[3].Reason, later[4].Reason)
	}
}

func show(cs []v1.NamespaceCondition) string {
	var out []string
	for _, c := range cs {
		out = append(out, string(c.Type)+"="+string(c.Status)+" "+c.Reason+": "+c.Message)
	}
	return strings.Join(out, "\n")
}
