package ui

import (
	"html/template"
	"net/url"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/ui/view"
)

// route is one page: which view with which arguments.
type route struct {
	section string // of the navigation, and of its template
	path    string // below Prefix
	object  journal.Ref
	query   view.Query
	// usage says that the page shows what nodes and pods use.
	usage bool
}

// queryOf reads the query of an address. Everything in it is only compared.
func queryOf(q url.Values) view.Query {
	return view.Query{Text: q.Get("q"), Namespace: q.Get("ns"), Kind: q.Get("kind"), Zone: q.Get("zone"), Node: q.Get("node"),
		Wrong: q.Get("wrong") != "", After: q.Get("after")}
}

// values is the query as an address has it; after replaces the cursor.
func values(q view.Query, after string) template.URL {
	out := url.Values{}
	for k, v := range map[string]string{"q": q.Text, "ns": q.Namespace, "kind": q.Kind, "zone": q.Zone, "node": q.Node, "after": after} {
		if v != "" {
			out.Set(k, v)
		}
	}
	if q.Wrong {
		out.Set("wrong", "1")
	}
	return template.URL(out.Encode()) //nolint:gosec // escaped
}

// routeOf is the route of a path below Prefix.
func routeOf(path string, q view.Query) (route, bool) {
	parts := strings.Split(path, "/")
	rt := route{path: path, query: q}
	if slices.Contains(parts[1:], "") {
		return rt, false
	}
	switch {
	case path == "":
		rt.section, rt.usage = "cluster", true
	case len(parts) == 1 && slices.Contains([]string{"workloads", "pods", "services", "zones"}, path):
		rt.section, rt.usage = path, path == "pods"
	case len(parts) == 2 && parts[0] == "nodes":
		rt.section, rt.object, rt.usage = "node", journal.Ref{Kind: "Node", Name: parts[1]}, true
	case len(parts) == 3 && parts[0] == "pods":
		rt.section, rt.object, rt.usage = "pod", journal.Ref{Kind: "Pod", Namespace: parts[1], Name: parts[2]}, true
	case len(parts) == 3 && parts[0] == "services":
		rt.section, rt.object = "service", journal.Ref{Kind: "Service", Namespace: parts[1], Name: parts[2]}
	case len(parts) == 4 && parts[0] == "workloads" && slices.Contains(view.Kinds, parts[1]):
		rt.section, rt.usage = "workload", true
		rt.object = journal.Ref{Kind: parts[1], Namespace: parts[2], Name: parts[3]}
	default:
		return rt, false
	}
	return rt, true
}

// root is the way from the page to Prefix, for addresses that hold under any
// prefix of a proxy.
func (rt route) root() string {
	if n := strings.Count(rt.path, "/"); n > 0 {
		return strings.Repeat("../", n)
	}
	return "./"
}

// concerns says whether a change of an object may change the page.
func (rt route) concerns(kind string, o metav1.Object) bool {
	switch rt.section {
	case "cluster":
		return kind != "EndpointSlice" && kind != "Service" && kind != "ReplicaSet" && kind != "PersistentVolumeClaim"
	case "workloads":
		return slices.Contains(view.Kinds, kind)
	case "pods":
		return kind == "Pod"
	case "services":
		return kind == "Service" || kind == "EndpointSlice"
	case "zones":
		return kind == "Node"
	case "node":
		if p, ok := o.(*v1.Pod); ok {
			return p.Spec.NodeName == rt.object.Name
		}
		return kind == "Node" && o.GetName() == rt.object.Name
	case "pod":
		return kind == "Pod" && o.GetName() == rt.object.Name && o.GetNamespace() == rt.object.Namespace
	case "service":
		return (kind == "Service" || kind == "EndpointSlice") && o.GetNamespace() == rt.object.Namespace
	case "workload":
		return (kind == "Pod" || kind == "ReplicaSet" || slices.Contains(view.Kinds, kind)) && o.GetNamespace() == rt.object.Namespace
	}
	return false
}
