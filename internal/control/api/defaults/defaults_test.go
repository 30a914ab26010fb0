package defaults_test

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/control/api/kinds"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := kinds.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGolden decodes testdata/objects.yaml, fills in defaults and compares
// with testdata/objects.txt. Regenerate with -rewrite, and read the difference.
func TestGolden(t *testing.T) {
	s := newScheme(t)
	decoder := serializer.NewCodecFactory(s).UniversalDeserializer()
	data, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, doc := range strings.Split(string(data), "\n---\n") {
		obj, gvk, err := decoder.Decode([]byte(doc), nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		s.Default(obj)
		obj.GetObjectKind().SetGroupVersionKind(*gvk)
		text, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
		out.WriteString("---\n")
	}
	golden.Check(t, "testdata/objects.txt", out.String())
}

// TestIdempotent: a second pass changes nothing, whatever is in the object, and
// a list is completed item by item as its items are.
func TestIdempotent(t *testing.T) {
	const seed = 42
	s := newScheme(t)
	fill := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 2).MaxDepth(12).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(100000), resource.DecimalSI)
		},
		func(time *metav1.Time, c randfill.Continue) {},
		func(f *metav1.FieldsV1, c randfill.Continue) {},
		func(r *runtime.RawExtension, c randfill.Continue) {},
		func(o *runtime.Object, c randfill.Continue) {},
	)
	tried := 0
	for gvk, kind := range s.AllKnownTypes() {
		if gvk.Version != "v1" && gvk.Version != "v2" {
			continue
		}
		obj, ok := reflect.New(kind).Interface().(runtime.Object)
		if !ok {
			continue
		}
		for range 20 {
			fill.Fill(obj)
			s.Default(obj)
			once := obj.DeepCopyObject()
			s.Default(obj)
			if !equality.Semantic.DeepEqual(once, obj) {
				t.Fatalf("seed %d: %s changes on the second pass", seed, gvk)
			}
		}
		tried++
	}
	if tried < 50 {
		t.Fatalf("only %d kinds were tried", tried)
	}
	list := &v1.PodList{Items: []v1.Pod{{}, {}}}
	s.Default(list)
	if list.Items[1].Spec.RestartPolicy != v1.RestartPolicyAlways {
		t.Error("the items of a list keep their gaps")
	}
}

func BenchmarkPod(b *testing.B) {
	b.ReportAllocs()
	s := newScheme(b)
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: make([]v1.Container, 3), Volumes: make([]v1.Volume, 3)}}
	for b.Loop() {
		s.Default(pod)
	}
}
