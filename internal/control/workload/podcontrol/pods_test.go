package podcontrol

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/controller"
)

// control is a Pods whose cache holds what is given, without an informer that runs.
func control(t *testing.T, cached ...runtime.Object) (*Pods, *fake.Clientset, *record.FakeRecorder) {
	t.Helper()
	client, events := fake.NewSimpleClientset(cached...), record.NewFakeRecorder(10)
	e := controller.Env{Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Log: slog.New(slog.DiscardHandler)}
	p := &Pods{Env: e, Recorder: events, Overlay: newOverlay(), Informer: e.Informers.Core().V1().Pods().Informer()}
	if err := IndexOwners(p.Informer); err != nil {
		t.Fatal(err)
	}
	for _, o := range cached {
		store := p.Informer.GetStore()
		if _, ok := o.(*v1.Namespace); ok {
			store = e.Informers.Core().V1().Namespaces().Informer().GetStore()
		}
		if err := store.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return p, client, events
}

func event(r *record.FakeRecorder) string {
	select {
	case e := <-r.Events:
		return e
	default:
		return ""
	}
}

// refuse lets the client fail.
func refuse(client *fake.Clientset, verb string, err error) {
	client.PrependReactor(verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

func writes(client *fake.Clientset) string {
	var out []string
	for _, a := range client.Actions() {
		switch a := a.(type) {
		case clienttesting.PatchAction:
			out = append(out, "patch "+a.GetName())
		case clienttesting.DeleteAction:
			out = append(out, "delete "+a.GetName())
		case clienttesting.CreateAction:
			out = append(out, "create")
		}
	}
	return strings.Join(out, ", ")
}

// TestClaimed: an owner's pods after releasing and adopting, and that an owner
// that ends adopts nothing, whatever the cache says.
func TestClaimed(t *testing.T) {
	owner := labelled("owner", "")
	mine := func(p *v1.Pod) { p.OwnerReferences = []metav1.OwnerReference{Owner(owner, "v1", "Pod")} }
	others := func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{Owner(labelled("another", ""), "v1", "Pod")}
	}
	pods := []runtime.Object{labelled("kept", "web", mine), labelled("changed", "db", mine), labelled("orphan", "web"),
		labelled("foreign", "web", others), labelled("unrelated", "db")}
	replaced := labelled("owner", "", func(p *v1.Pod) { p.UID = "new" })
	for _, c := range []struct {
		why    string
		live   *v1.Pod
		err    error
		want   string
		writes string
		fails  string
	}{
		{"adopts and releases", owner, nil, "kept orphan", "patch changed, patch orphan", ""},
		{"owner is being deleted", labelled("owner", "", ending), nil, "", "patch changed", "is being deleted"},
		{"owner was replaced", replaced, nil, "", "patch changed", "another object of that name"},
		{"owner cannot be read", nil, errors.New("no API"), "", "patch changed", "no API"},
	} {
		p, client, _ := control(t, pods...)
		got, err := p.Claimed(t.Context(), owner, Owner(owner, "v1", "Pod"), labels.SelectorFromSet(labels.Set{"app": "web"}),
			func(context.Context) (metav1.Object, error) { return c.live, c.err })
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", c.why, err, c.fails)
		}
		if names(got) != c.want || writes(client) != c.writes {
			t.Errorf("%s: pods %q after %q; want %q after %q", c.why, names(got), writes(client), c.want, c.writes)
		}
	}
}

// TestClaimedErrors: a pod that is gone is no error; one that cannot be written
// is, and is not counted.
func TestClaimedErrors(t *testing.T) {
	owner := labelled("owner", "")
	live := func(context.Context) (metav1.Object, error) { return owner, nil }
	for why, c := range map[string]struct {
		err   error
		fails bool
	}{
		"gone":    {apierrors.NewNotFound(v1.Resource("pods"), "orphan"), false},
		"refused": {apierrors.NewForbidden(v1.Resource("pods"), "orphan", errors.New("no")), true},
	} {
		p, client, _ := control(t, labelled("orphan", "web"))
		refuse(client, "patch", c.err)
		got, err := p.Claimed(t.Context(), owner, Owner(owner, "v1", "Pod"), labels.SelectorFromSet(labels.Set{"app": "web"}), live)
		if len(got) != 0 || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v", why, names(got), err)
		}
	}
}

// TestCreate: a created pod counts from then on; in a namespace that ends
// nothing is asked of the server and no event tells of it.
func TestCreate(t *testing.T) {
	owner := labelled("owner", "")
	for _, c := range []struct {
		why    string
		setup  func(*fake.Clientset)
		ending bool
		event  string
		fails  bool
		writes string
	}{
		{"created", nil, false, "Normal SuccessfulCreate Created pod: new", false, "create"},
		{"refused", func(f *fake.Clientset) { refuse(f, "create", errors.New("quota")) }, false,
			"Warning FailedCreate Error creating: quota", true, "create"},
		{"namespace ends", nil, true, "", true, ""},
		{"namespace ends, says the server", func(f *fake.Clientset) { refuse(f, "create", errEnding("ns", "new")) }, false, "", true,
			"create"},
	} {
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
		if c.ending {
			ns.DeletionTimestamp = &metav1.Time{}
		}
		p, client, events := control(t, ns)
		if c.setup != nil {
			c.setup(client)
		}
		_, err := p.Create(t.Context(), owner, owner.UID, labelled("new", "web"))
		if (err != nil) != c.fails || event(events) != c.event && c.event != "" || writes(client) != c.writes {
			t.Errorf("%s: %v after %q", c.why, err, writes(client))
		}
		if c.event == "" && event(events) != "" {
			t.Errorf("%s: an event tells of it", c.why)
		}
		if got := p.Overlay.Merge(owner.UID, nil); (len(got) == 1) == c.fails {
			t.Errorf("%s: %d pods are remembered", c.why, len(got))
		}
		if c.fails && strings.HasPrefix(c.why, "namespace") && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			t.Errorf("%s: %v lacks the server's cause", c.why, err)
		}
	}
}

// TestDelete: this very pod is deleted; one that is gone, or another of that
// name, is as good as deleted.
func TestDelete(t *testing.T) {
	pod := labelled("a", "web")
	for _, c := range []struct {
		why    string
		answer error
		event  string
		fails  bool
	}{
		{"deleted", nil, "Normal SuccessfulDelete Deleted pod: a", false},
		{"gone", apierrors.NewNotFound(v1.Resource("pods"), "a"), "", false},
		{"another of that name", apierrors.NewConflict(v1.Resource("pods"), "a", errors.New("uid")), "", false},
		{"refused", errors.New("no"), "Warning FailedDelete Error deleting: no", true},
	} {
		p, client, events := control(t, pod)
		if c.answer != nil {
			refuse(client, "delete", c.answer)
		}
		err := p.Delete(t.Context(), labelled("owner", ""), pod)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.why, err)
		}
		if got := event(events); got != c.event {
			t.Errorf("%s: event %q, want %q", c.why, got, c.event)
		}
		if got := p.Overlay.Merge("owner", []*v1.Pod{pod})[0].DeletionTimestamp != nil; got == c.fails {
			t.Errorf("%s: it counts as ending: %v", c.why, got)
		}
		d := client.Actions()[0].(clienttesting.DeleteActionImpl)
		if pre := d.DeleteOptions.Preconditions; pre == nil || *pre.UID != "a" {
			t.Errorf("%s: no UID guards the delete", c.why)
		}
	}
}
