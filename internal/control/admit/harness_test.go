package admit

import (
	"context"
	"io"
	goruntime "runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/control/auth/rbac"
)

// rig is one plugin with a fake API behind it.
type rig struct {
	t      *testing.T
	plugin admission.Interface
	client *fake.Clientset
}

// newRig starts a plugin over the objects. Authorization and roles come from
// RBAC objects among them.
func newRig(t *testing.T, make func(io.Reader) (admission.Interface, error), objects ...runtime.Object) *rig {
	t.Helper()
	plugin, err := make(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, plugin: plugin, client: fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(r.client, 0)
	authz, err := rbac.New(factory)
	if err != nil {
		t.Fatal(err)
	}
	initializer.New(r.client, nil, factory, authorizer.Authorizer(authz), utilfeature.DefaultFeatureGate, nil, t.Context().Done(),
		nil).Initialize(plugin)
	if wants, ok := plugin.(wantsRoles); ok {
		wants.setRoles(authz)
	}
	if err := admission.ValidateInitialization(plugin); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	for !authz.HasSynced() {
		// Handlers run moments after the lists arrive.
		goruntime.Gosched()
		if t.Context().Err() != nil {
			t.Fatal("RBAC index never synced")
		}
	}
	t.Cleanup(factory.Shutdown)
	return r
}

// request is one write. Resource is "pods", "pods/status" or
// "ingresses.networking.k8s.io"; the operation follows from which objects are
// given.
type request struct {
	resource string
	name     string
	now, old runtime.Object
	user     user.Info
}

func (r request) attributes() admission.Attributes {
	base, sub, _ := strings.Cut(r.resource, "/")
	name, group, _ := strings.Cut(base, ".")
	operation, options := admission.Create, runtime.Object(&metav1.CreateOptions{})
	switch {
	case r.now == nil:
		operation, options = admission.Delete, &metav1.DeleteOptions{}
	case r.old != nil:
		operation, options = admission.Update, &metav1.UpdateOptions{}
	}
	namespace, objectName := "", r.name
	for _, o := range []runtime.Object{r.now, r.old} {
		if m, ok := o.(metav1.Object); ok && o != nil {
			if namespace = m.GetNamespace(); objectName == "" {
				objectName = m.GetName()
			}
			break
		}
	}
	who := r.user
	if who == nil {
		who = &user.DefaultInfo{Name: "tester"}
	}
	return admission.NewAttributesRecord(r.now, r.old, schema.GroupVersionKind{Version: "v1"}, namespace, objectName,
		schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}, sub, operation, options, false, who)
}

// do passes a write through the plugin, mutating before validating.
func (r *rig) do(req request) error {
	return r.doContext(r.t.Context(), req)
}

func (r *rig) doContext(ctx context.Context, req request) error {
	a := req.attributes()
	if !r.plugin.Handles(a.GetOperation()) {
		return nil
	}
	if m, ok := r.plugin.(admission.MutationInterface); ok {
		if err := m.Admit(ctx, a, nil); err != nil {
			return err
		}
	}
	if v, ok := r.plugin.(admission.ValidationInterface); ok {
		return v.Validate(ctx, a, nil)
	}
	return nil
}

// expect checks a result against a part of the error, "" for none.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("admitted, want refusal with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with %q, want %q", err, want)
	}
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func newPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: named("ns", "p"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, f := range change {
		f(pod)
	}
	return pod
}
