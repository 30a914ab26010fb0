package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func template(image string) *v1.PodTemplateSpec {
	return &v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}}}
}

func ownerOf(image string) Owner {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u", Annotations: map[string]string{"n": "1"}}}
	return Owner{Object: d, Ref: *metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet")),
		Template: template(image), Labels: map[string]string{"app": "web"}}
}

// revision is a revision as the server has it.
func revision(image string, number int64) *appsv1.ControllerRevision {
	r := fresh(ownerOf(image), data(template(image)), number)
	r.Name = image
	return r
}

func show(p Plan) string {
	s := fmt.Sprintf("use %s", p.Update.Name)
	if p.Create {
		s = fmt.Sprintf("create %d", p.Update.Revision)
	}
	if p.Number != 0 {
		s += fmt.Sprintf(" as %d", p.Number)
	}
	for _, r := range p.Delete {
		s += " delete " + r.Name
	}
	return s
}

// TestPlans: which revision is the present one, its number, and which are too many.
func TestPlans(t *testing.T) {
	three := []*appsv1.ControllerRevision{revision("c", 3), revision("a", 1), revision("b", 2)}
	twice := revision("a", 4)
	twice.Name = "a-again"
	for _, c := range []struct {
		why       string
		image     string
		limit     *int32
		revisions []*appsv1.ControllerRevision
		live      map[string]bool
		want      string
	}{
		{"the first", "a", nil, nil, nil, "create 1"},
		{"a new template", "d", nil, three, nil, "create 4"},
		{"no change", "c", nil, three, nil, "use c"},
		{"back to an older one", "a", nil, three, nil, "use a as 4"},
		{"the last of equal ones", "a", nil, append(three, twice), nil, "use a-again"},
		{"no limit", "c", nil, three, nil, "use c"},
		{"oldest go", "c", ptr.To[int32](1), three, nil, "use c delete a"},
		{"none is kept but the present one", "c", ptr.To[int32](0), three, nil, "use c delete a delete b"},
		{"one in use stays and does not count", "c", ptr.To[int32](0), three, map[string]bool{"a": true}, "use c delete b"},
		{"fewer than the limit", "c", ptr.To[int32](10), three, nil, "use c"},
		{"the present one is oldest", "a", ptr.To[int32](0), three, nil, "use a as 4 delete b delete c"},
	} {
		o := ownerOf(c.image)
		o.Limit = c.limit
		if got := show(Make(o, c.revisions, c.live)); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// TestPlanKeeps: whatever there is, a plan never deletes the present revision,
// one in use, or more than is beyond the limit; and the present revision has
// the highest number afterwards.
func TestPlanKeeps(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		images := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 0, 5, rapid.ID).Draw(r, "images")
		var all []*appsv1.ControllerRevision
		top, live := int64(0), map[string]bool{}
		for i, image := range images {
			n := int64(i + 1)
			all, top = append(all, revision(image, n)), n
			live[image] = rapid.Bool().Draw(r, "live "+image)
		}
		o := ownerOf(rapid.SampledFrom([]string{"a", "b", "f"}).Draw(r, "present"))
		limit := rapid.Int32Range(0, 3).Draw(r, "limit")
		o.Limit = &limit
		p := Make(o, all, live)
		gone := map[string]bool{}
		for _, d := range p.Delete {
			if d == p.Update || live[d.Name] || gone[d.Name] {
				r.Fatalf("deletes %s", d.Name)
			}
			gone[d.Name] = true
		}
		left := 0
		for _, x := range all {
			if x != p.Update && !live[x.Name] && !gone[x.Name] {
				left++
			}
		}
		if left > int(limit) || len(gone) > 0 && left < int(limit) {
			r.Fatalf("%d old revisions are left of a limit of %d: %s", left, limit, show(p))
		}
		if number := max(p.Number, p.Update.Revision); number < top || p.Create && number != top+1 {
			r.Fatalf("the present revision has number %d, the highest was %d", number, top)
		}
	})
}

// TestRevisionObject: what a new revision holds, and that kubectl's undo finds
// the template in it.
func TestRevisionObject(t *testing.T) {
	o := ownerOf("a")
	r := fresh(o, data(o.Template), 7)
	hash := r.Labels[HashLabel]
	if hash == "" || r.Labels[appsv1.ControllerRevisionHashLabelKey] != hash || r.Labels["app"] != "web" || r.Name != "web-"+hash ||
		r.Namespace != "ns" || r.Revision != 7 || r.Annotations["n"] != "1" || !metav1.IsControlledBy(r, o.Object) {
		t.Errorf("revision %+v", r)
	}
	if o.Labels[HashLabel] != "" {
		t.Error("the template's labels were changed")
	}
	if !strings.HasPrefix(string(r.Data.Raw), `{"spec":{"template":{"$patch":"replace"`) {
		t.Errorf("data %s", r.Data.Raw)
	}
	back, err := Template(r)
	if err != nil || !equality.Semantic.DeepEqual(back, o.Template) {
		t.Errorf("template read back: %+v, %v", back, err)
	}
	if _, err := Template(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte("{")}}); err == nil {
		t.Error("damaged data is read")
	}
	o.Collision = ptr.To[int32](1)
	if again := fresh(o, data(o.Template), 7); again.Name == r.Name {
		t.Error("a collision does not change the name")
	}
	o.Object = &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("x", 253)}}
	if long := fresh(o, data(o.Template), 7); len(validation.IsDNS1123Subdomain(long.Name)) > 0 {
		t.Errorf("a name of %d characters is refused", len(long.Name))
	}
}

// TestEqual: the order of keys is nothing, any value is.
func TestEqual(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, true}, {`{"a":1}`, `{"a": 1}`, true}, {`{"a":1}`, `{"a":2}`, false},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false}, {`{`, `{`, true}, {`{`, `{}`, false}, {`{}`, ``, false},
	} {
		if got := equal([]byte(c.a), []byte(c.b)); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
}

// TestPerform: what is asked of the server, and which answers mean a collision of names.
func TestPerform(t *testing.T) {
	o := ownerOf("a")
	make1 := func() Plan { return Make(o, nil, nil) }
	there := fresh(o, data(o.Template), 1)
	stranger := there.DeepCopy()
	stranger.OwnerReferences = nil
	other := fresh(o, data(template("b")), 1)
	other.Name = there.Name
	for _, c := range []struct {
		why    string
		exists []runtime.Object
		plan   Plan
		want   string // number of the revision, "collision", or "error"
		verbs  string
		answer error // of the last verb
	}{
		{"created", nil, make1(), "1", "create", nil},
		{"made before and not seen yet", []runtime.Object{there}, make1(), "1", "create get", nil},
		{"name taken by a stranger", []runtime.Object{stranger}, make1(), "collision", "create get", nil},
		{"name taken by another template", []runtime.Object{other}, make1(), "collision", "create get", nil},
		{"refused", nil, make1(), "error", "create", errors.New("no")},
		{"renumbered", []runtime.Object{there}, Plan{Update: there, Number: 5}, "5", "patch", nil},
		{"cannot be renumbered", []runtime.Object{there}, Plan{Update: there, Number: 5}, "error", "patch", errors.New("no")},
		{"old ones deleted", []runtime.Object{there, revision("old", 0)}, Plan{Update: there,
			Delete: []*appsv1.ControllerRevision{revision("old", 0)}}, "1", "delete", nil},
		{"deleted by somebody else", []runtime.Object{there}, Plan{Update: there,
			Delete: []*appsv1.ControllerRevision{revision("old", 0)}}, "1", "delete", nil},
		{"cannot be deleted", []runtime.Object{there}, Plan{Update: there,
			Delete: []*appsv1.ControllerRevision{revision("old", 0)}}, "error", "delete", errors.New("no")},
	} {
		client := fake.NewSimpleClientset(c.exists...)
		if c.answer != nil {
			verb := c.verbs[strings.LastIndex(c.verbs, " ")+1:]
			client.PrependReactor(verb, "controllerrevisions", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, c.answer
			})
		}
		got, collision, err := Perform(context.Background(), client, o, c.plan)
		result := "error"
		switch {
		case collision && err != nil:
			result = "collision"
		case err == nil:
			result = fmt.Sprint(got.Revision)
		case c.answer != nil && !errors.Is(err, c.answer):
			t.Errorf("%s: %v does not say why", c.why, err)
		}
		var verbs []string
		for _, a := range client.Actions() {
			verbs = append(verbs, a.GetVerb())
		}
		if result != c.want || strings.Join(verbs, " ") != c.verbs {
			t.Errorf("%s: %s after %v (%v), want %s after %s", c.why, result, verbs, err, c.want, c.verbs)
		}
	}
	gone := fake.NewSimpleClientset()
	gone.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewAlreadyExists(appsv1.Resource("controllerrevisions"), "x")
	})
	if _, collision, err := Perform(context.Background(), gone, o, make1()); err == nil || collision {
		t.Errorf("a taken name that is free a moment later: collision %v, %v; want an error to try again", collision, err)
	}
}
