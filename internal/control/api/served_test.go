package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// TestServed holds the list of what is served: group versions in order of preference, and of each resource its kind, scope,
// verbs, singular name, short names and categories.
func TestServed(t *testing.T) {
	groups, lists, err := discovery.NewDiscoveryClientForConfigOrDie(apitest.Start(t)).ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, g := range groups {
		var versions []string
		for _, v := range g.Versions {
			versions = append(versions, v.Version)
		}
		fmt.Fprintf(&out, "group %q: %s, preferred %s\n", g.Name, strings.Join(versions, " "), g.PreferredVersion.Version)
	}
	slices.SortFunc(lists, func(a, b *metav1.APIResourceList) int { return strings.Compare(a.GroupVersion, b.GroupVersion) })
	for _, list := range lists {
		fmt.Fprintf(&out, "\n%s\n", list.GroupVersion)
		for _, r := range list.APIResources {
			scope := "cluster"
			if r.Namespaced {
				scope = "namespaced"
			}
			kind := r.Kind
			if r.Version != "" {
				kind = r.Group + "/" + r.Version + " " + kind
			}
			line := fmt.Sprintf("  %s: %s, %s, %s", r.Name, kind, scope, strings.Join(slices.Sorted(slices.Values(r.Verbs)), " "))
			for _, part := range []struct{ name, value string }{{"singular", r.SingularName}, {"short", strings.Join(r.ShortNames, " ")},
				{"categories", strings.Join(r.Categories, " ")}} {
				if part.value != "" {
					line += fmt.Sprintf("; %s %s", part.name, part.value)
				}
			}
			out.WriteString(line + "\n")
		}
	}
	golden.Check(t, "testdata/served.txt", out.String())
}
