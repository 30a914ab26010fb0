package namespace

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

var served = []*metav1.APIResourceList{
	{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Namespaced: true, Kind: "ConfigMap", Verbs: metav1.Verbs{"list", "delete", "deletecollection"}},
		{Name: "pods", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"list", "delete", "deletecollection"}},
		{Name: "bindings", Namespaced: true, Kind: "Binding", Verbs: metav1.Verbs{"create"}},
		{Name: "nodes", Kind: "Node", Verbs: metav1.Verbs{"list", "delete"}}}},
	{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "widgets", Namespaced: true, Kind: "Widget", Verbs: metav1.Verbs{"list", "delete"}}}},
}

// space is a namespace that is being deleted, with what is in it.
type space struct {
	*reconciler
	api      *fake.Clientset
	metadata *metadatafake.FakeMetadataClient
}

func object(apiVersion, kind, name string, finalizers ...string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Finalizers: finalizers}}
}

func ending(since time.Duration, finalizers ...v1.FinalizerName) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "u", DeletionTimestamp: &metav1.Time{Time: time.Now().Add(-since)}},
		Spec: v1.NamespaceSpec{Finalizers: finalizers}}
}

func spaceOf(t *testing.T, ns *v1.Namespace, objects ...runtime.Object) *space {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := fake.NewSimpleClientset(ns)
	api.Resources = served
	meta := metadatafake.NewSimpleMetadataClient(scheme, objects...)
	// Deleting a collection deletes what no finalizer holds, which the fake
	// does not do by itself.
	meta.PrependReactor("delete-collection", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		for _, o := range objects {
			o, ok := o.(*metav1.PartialObjectMetadata)
			if !ok || strings.ToLower(o.Kind)+"s" != a.GetResource().Resource || len(o.Finalizers) > 0 {
				continue
			}
			if err := meta.Tracker().Delete(a.GetResource(), "ns", o.Name); err != nil {
				return true, nil, err
			}
		}
		return true, nil, nil
	})
	e := controller.Env{Client: api, Metadata: meta, Log: slog.New(slog.DiscardHandler), Journal: journal.Discard}
	return &space{&reconciler{Env: e, metadata: meta, discovery: api.Discovery().(*fakediscovery.FakeDiscovery)}, api, meta}
}

// touched are the resources that were asked to be deleted, in order.
func (s *space) touched() string {
	var out []string
	for _, a := range s.metadata.Actions() {
		if strings.HasPrefix(a.GetVerb(), "delete") {
			out = append(out, a.GetResource().Resource)
		}
	}
	return strings.Join(slices.Compact(out), " ")
}

func refuseAll(s *space, verb, resource string, err error) {
	s.metadata.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// TestEmptying: what one pass deletes and what it reports. While pods are left
// nothing else is touched: they may need it to end.
func TestEmptying(t *testing.T) {
	pod, held := object("v1", "Pod", "p"), object("v1", "Pod", "p", "example.com/wait")
	config, widget := object("v1", "ConfigMap", "c"), object("example.com/v1", "Widget", "w")
	heldWidgets := []runtime.Object{object("example.com/v1", "Widget", "w", "a", "b"), object("example.com/v1", "Widget", "x", "a")}
	noCollection := apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "widgets"}, "deletecollection")
	for _, c := range []struct {
		why     string
		objects []runtime.Object
		breaks  func(*space)
		touched string
		left    string
	}{
		{"nothing in it", nil, nil, "", "map[] map[] []"},
		{"pods and others", []runtime.Object{pod, config, widget}, nil, "pods configmaps widgets", "map[] map[] []"},
		{"a pod that waits", []runtime.Object{held, config}, nil, "pods", "map[pods:1] map[example.com/wait:1] []"},
		{"pods cannot be listed", []runtime.Object{config}, func(s *space) { refuseAll(s, "list", "pods", errors.New("no")) }, "",
			"map[] map[] [pods: no]"},
		{"others wait", append(heldWidgets, config), nil, "configmaps widgets", "map[widgets.example.com:2] map[a:2 b:1] []"},
		{"one by one", []runtime.Object{widget}, func(s *space) { refuseAll(s, "delete-collection", "widgets", noCollection) }, "widgets",
			"map[] map[] []"},
		{"refused, then one by one", []runtime.Object{widget}, func(s *space) {
			refuseAll(s, "delete-collection", "widgets", errors.New("quota"))
		}, "widgets", "map[] map[] [widgets.example.com: quota]"},
		{"gone meanwhile", []runtime.Object{widget}, func(s *space) {
			refuseAll(s, "delete-collection", "widgets", noCollection)
			refuseAll(s, "delete", "widgets", apierrors.NewNotFound(schema.GroupResource{}, "w"))
		}, "widgets", "map[widgets.example.com:1] map[] []"},
	} {
		s := spaceOf(t, ending(0, v1.FinalizerKubernetes), c.objects...)
		if c.breaks != nil {
			c.breaks(s)
		}
		got := s.empty(t.Context(), "ns")
		if text := fmt.Sprint(got.Remaining, got.Finalizers, got.DeleteErrs); s.touched() != c.touched || text != c.left {
			t.Errorf("%s: deletes %q and leaves %s, want %q and %s", c.why, s.touched(), text, c.touched, c.left)
		}
	}
}

// TestFinalizing: berth's finalizer goes when nothing is left, others' stay;
// and when to look again while something is left.
func TestFinalizing(t *testing.T) {
	for _, c := range []struct {
		why     string
		ns      *v1.Namespace
		objects []runtime.Object
		final   string // finalizers sent to finalize, "-" if it is not called
		again   time.Duration
	}{
		{"empty", ending(0, v1.FinalizerKubernetes), nil, "[]", 0},
		{"others wait as well", ending(0, "example.com/x", v1.FinalizerKubernetes), nil, "[example.com/x]", 0},
		{"ours is off already", ending(0, "example.com/x"), nil, "-", 0},
		{"something is left, just begun", ending(0, v1.FinalizerKubernetes), []runtime.Object{object("v1", "Pod", "p", "f")}, "-",
			lookAgain},
		{"something is left for an hour", ending(time.Hour, v1.FinalizerKubernetes), []runtime.Object{object("v1", "Pod", "p", "f")}, "-",
			lookAgainMost},
		{"is not being deleted", &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}, Spec: ending(0, v1.FinalizerKubernetes).Spec},
			[]runtime.Object{object("v1", "Pod", "p")}, "-", 0},
	} {
		s := spaceOf(t, c.ns, c.objects...)
		final := "-"
		s.api.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "finalize" {
				return false, nil, nil
			}
			ns := a.(clienttesting.CreateAction).GetObject().(*v1.Namespace)
			final = fmt.Sprint(ns.Spec.Finalizers)
			return true, ns, nil
		})
		again, err := s.sync(t.Context(), "ns")
		if err != nil || again != c.again || final != c.final {
			t.Errorf("%s: finalizers %s, again in %s, %v; want %s, %s", c.why, final, again, err, c.final, c.again)
		}
		if c.ns.DeletionTimestamp == nil && s.touched() != "" {
			t.Errorf("%s: deletes %s", c.why, s.touched())
		}
	}
	s := spaceOf(t, ending(0, v1.FinalizerKubernetes))
	if again, err := s.sync(t.Context(), "gone"); again != 0 || err != nil {
		t.Errorf("a namespace that is gone: again in %s, %v", again, err)
	}
}
