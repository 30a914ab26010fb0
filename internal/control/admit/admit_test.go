package admit

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/control/auth/rbac"
)

func newChain(tb testing.TB, change func(*Config)) (admission.Interface, error) {
	tb.Helper()
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	authz, err := rbac.New(factory)
	if err != nil {
		tb.Fatal(err)
	}
	cfg := Config{
		Client: client, Informers: factory, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()),
		RESTMapper: meta.NewDefaultRESTMapper([]schema.GroupVersion{metav1.SchemeGroupVersion}),
		Authorizer: authz, Roles: authz, Drained: tb.Context().Done(),
	}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

func TestChain(t *testing.T) {
	chain, err := newChain(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete} {
		if !chain.Handles(operation) {
			t.Errorf("the chain does not look at %s", operation)
		}
	}
	if _, err := newChain(t, func(c *Config) { c.Disable = []string{"NoSuchPlugin"} }); err == nil {
		t.Error("disabling an unknown plugin gives no error")
	}
	if _, err := newChain(t, func(c *Config) { c.Roles = nil }); err == nil {
		t.Error("a chain without roles is accepted")
	}
}

func TestEveryPluginHasAPlace(t *testing.T) {
	plugins := admission.NewPlugins()
	register(plugins)
	ordered := slices.Sorted(slices.Values(RecommendedOrder))
	if got := plugins.Registered(); !slices.Equal(got, ordered) {
		t.Errorf("registered %v\nordered %v", got, ordered)
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := newChain(b, nil); err != nil {
			b.Fatal(err)
		}
	}
}
