package validate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"reflect"
	"strings"
	"testing"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/internal/control/api/kinds"
	"github.com/berth-dev/berth/internal/control/api/registry"
)

// stored are the kinds by the type that is stored.
var stored = func() map[reflect.Type]registry.Resource {
	all := map[reflect.Type]registry.Resource{}
	for _, k := range kinds.All() {
		if i := k.Info(); i.StoredAs.Empty() {
			all[i.Type] = k
		}
	}
	return all
}()

func checkCreate(obj runtime.Object) field.ErrorList {
	return stored[reflect.TypeOf(obj)].CheckCreate(obj)
}

func checkUpdate(changed, old runtime.Object) field.ErrorList {
	return stored[reflect.TypeOf(old)].CheckUpdate(changed, old)
}

func checkStatusUpdate(changed, old runtime.Object) field.ErrorList {
	return stored[reflect.TypeOf(old)].CheckStatusUpdate(changed, old)
}

// addDefaults registers what completes the kinds that are stored.
func addDefaults(s *runtime.Scheme) error {
	for _, k := range stored {
		if err := k.Register(s); err != nil {
			return err
		}
	}
	return nil
}

// scheme knows the built-in kinds and completes what it decodes, as the server
// does.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := clientscheme.AddToScheme(s); err != nil {
		panic(err)
	}
	if err := addDefaults(s); err != nil {
		panic(err)
	}
	return s
}()

var decoder = serializer.NewCodecFactory(scheme).UniversalDeserializer()

func decode(t testing.TB, text string) runtime.Object {
	t.Helper()
	obj, _, err := decoder.Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatalf("decoding: %v\n%s", err, text)
	}
	scheme.Default(obj)
	return obj
}

func csr(t testing.TB) *certificates.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: "kubernetes.io/kube-apiserver-client", Usages: []certificates.KeyUsage{certificates.UsageClientAuth}}}
}

func goodObjects(t testing.TB) []runtime.Object {
	t.Helper()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := []runtime.Object{csr(t), trusted(t, "example.com/one"), podRequest(t, newKey(t, elliptic.P256()))}
	for _, doc := range strings.Split(string(data), "\n---\n") {
		all = append(all, decode(t, doc))
	}
	return all
}

// Every good object is accepted when made, when written back unchanged, and
// when its status is; defaulting it again changes nothing; and there is one of
// each kind that has rules.
func TestGood(t *testing.T) {
	seen := map[reflect.Type]bool{}
	for _, obj := range goodObjects(t) {
		kind := reflect.TypeOf(obj)
		seen[kind] = true
		if e := checkCreate(obj); len(e) > 0 {
			t.Errorf("%s: create: %v", kind, e.ToAggregate())
		}
		again := obj.DeepCopyObject()
		scheme.Default(again)
		if !equality.Semantic.DeepEqual(obj, again) {
			t.Errorf("%s: defaulting is not idempotent", kind)
		}
		obj.(metav1.Object).SetResourceVersion("1")
		changed := obj.DeepCopyObject()
		changed.(metav1.Object).SetLabels(map[string]string{"new": "label", "a": "b"})
		if e := checkUpdate(changed, obj); len(e) > 0 {
			t.Errorf("%s: update: %v", kind, e.ToAggregate())
		}
		if e := checkStatusUpdate(changed, obj); len(e) > 0 {
			t.Errorf("%s: status update: %v", kind, e.ToAggregate())
		}
	}
	for kind := range stored {
		if !seen[kind] {
			t.Errorf("%s has no good example in testdata/good.yaml", kind)
		}
	}
}

// An object without a name, or out of place, is refused whatever its kind.
func TestMetadata(t *testing.T) {
	for _, obj := range goodObjects(t) {
		unnamed := obj.DeepCopyObject()
		unnamed.(metav1.Object).SetName("")
		if len(checkCreate(unnamed)) == 0 {
			t.Errorf("%T without a name was accepted", obj)
		}
		moved := obj.DeepCopyObject()
		if m := moved.(metav1.Object); m.GetNamespace() == "" {
			m.SetNamespace("elsewhere")
		} else {
			m.SetNamespace("")
		}
		if len(checkCreate(moved)) == 0 {
			t.Errorf("%T in the wrong scope was accepted", obj)
		}
		obj.(metav1.Object).SetResourceVersion("1")
		renamed := obj.DeepCopyObject()
		renamed.(metav1.Object).SetUID("other")
		if e := checkUpdate(renamed, obj); len(e) == 0 && obj.(metav1.Object).GetUID() != "other" {
			t.Errorf("%T changed its UID", obj)
		}
	}
}
