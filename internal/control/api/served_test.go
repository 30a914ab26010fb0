package api_test

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// TestServed holds the list of what is served: group versions in order of
// preference, and of each resource its kind, scope, verbs, singular name, short
// names, categories and the hash of the version that is stored.
func TestServed(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(apitest.Start(t))
	groups, lists, err := client.ServerGroupsAndResources()
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
		// Only the document of the version itself has the hashes.
		whole, err := client.ServerResourcesForGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		hashes := map[string]string{}
		for _, r := range whole.APIResources {
			hashes[r.Name] = r.StorageVersionHash
		}
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
				{"categories", strings.Join(r.Categories, " ")}, {"hash", hashes[r.Name]}} {
				if part.value != "" {
					line += fmt.Sprintf("; %s %s", part.name, part.value)
				}
			}
			out.WriteString(line + "\n")
		}
	}
	golden.Check(t, "testdata/served.txt", out.String())
	lacks(t, lists)
}

// lacking are kinds of stable versions that upstream serves by default and this
// server does not, with what is missing.
var lacking = map[string]string{
	"resource.k8s.io/v1 DeviceTaintRule":                 "taints by rule, and the eviction that follows (KEP-5055)",
	"storagemigration.k8s.io/v1 StorageVersionMigration": "rewriting of stored objects on demand (KEP-4192)",
}

// lacks compares what is served with the library: each kind of a stable version
// that has a list is one that upstream serves by default (versions of alpha and
// beta are off).
func lacks(t *testing.T, lists []*metav1.APIResourceList) {
	t.Helper()
	served := map[string]bool{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			served[list.GroupVersion+" "+r.Kind] = true
		}
	}
	stable := regexp.MustCompile(`^v[0-9]+$`)
	known := clientscheme.Scheme.AllKnownTypes()
	for gvk, typ := range known {
		if typ.PkgPath() == reflect.TypeFor[metav1.APIGroup]().PkgPath() {
			continue
		}
		if _, listed := known[gvk.GroupVersion().WithKind(gvk.Kind+"List")]; !listed || !stable.MatchString(gvk.Version) {
			continue
		}
		name := gvk.GroupVersion().String() + " " + gvk.Kind
		_, named := lacking[name]
		switch {
		case !served[name] && !named:
			t.Errorf("%s is not served: serve it, or name it in lacking", name)
		case served[name] && named:
			t.Errorf("%s is served: take it out of lacking", name)
		}
	}
}
