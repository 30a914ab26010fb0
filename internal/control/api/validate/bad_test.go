package validate_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// firstOf maps the name of a kind to its first good object.
func firstOf(t testing.TB) map[string]runtime.Object {
	t.Helper()
	first := map[string]runtime.Object{}
	for _, obj := range goodObjects(t) {
		name := reflect.TypeOf(obj).Elem().Name()
		if first[name] == nil {
			first[name] = obj
		}
	}
	return first
}

// merged is obj with a merge patch applied and completed again.
func merged(t testing.TB, obj runtime.Object, patch string) runtime.Object {
	t.Helper()
	before, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	after, err := jsonpatch.MergePatch(before, []byte(patch))
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	changed := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
	if err := json.Unmarshal(after, changed); err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	scheme.Default(changed)
	return changed
}

// compare wants each error to begin with its line, in order, and no others.
func compare(t *testing.T, got field.ErrorList, want []string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && i < len(got) && strings.HasPrefix(got[i].Error(), want[i])
	}
	if ok {
		return
	}
	var lines []string
	for _, e := range got {
		lines = append(lines, e.Error())
	}
	t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
}

// TestBad reads testdata/bad.txt: what clients get wrong, and what they are
// told. It ends by checking that most kinds have a case.
func TestBad(t *testing.T) {
	data, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	first := firstOf(t)
	tried := map[string]bool{}
	for _, block := range strings.Split(string(data), "\n\n") {
		var lines []string
		for _, l := range strings.Split(strings.TrimSpace(block), "\n") {
			if !strings.HasPrefix(l, "#") && l != "" {
				lines = append(lines, l)
			}
		}
		if len(lines) == 0 {
			continue
		}
		kind, patch, _ := strings.Cut(lines[0], " ")
		t.Run(lines[0], func(t *testing.T) {
			if first[kind] == nil {
				t.Fatalf("no good object of kind %s", kind)
			}
			compare(t, checkCreate(merged(t, first[kind], patch)), lines[1:])
		})
		tried[kind] = true
	}
	for name := range first {
		switch name {
		case "ServiceAccount", "PodTemplate", "ReplicaSet", "ReplicationController", "ControllerRevision",
			"CSINode", "CSIStorageCapacity", "ClusterRole", "RoleBinding", "IngressClass", "ServiceCIDR",
			"MutatingWebhookConfiguration", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding":
			continue // their checks are shared with kinds that have cases, or are few
		}
		if !tried[name] {
			t.Errorf("%s has no case in testdata/bad.txt", name)
		}
	}
}

// FuzzPodSpec: whatever decodes as a pod is judged, never a panic, and judging
// changes nothing.
func FuzzPodSpec(f *testing.F) {
	for _, obj := range goodObjects(f) {
		if reflect.TypeOf(obj).Elem().Name() == "Pod" {
			data, err := json.Marshal(obj)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, _, err := decoder.Decode(data, nil, nil)
		if err != nil {
			return
		}
		scheme.Default(obj)
		m, ok := obj.(metav1.Object)
		if !ok {
			return
		}
		before, err := json.Marshal(obj)
		if err != nil {
			return
		}
		checkCreate(obj)
		m.SetResourceVersion("1")
		checkUpdate(obj, obj.DeepCopyObject())
		checkStatusUpdate(obj, obj.DeepCopyObject())
		m.SetResourceVersion("")
		if after, _ := json.Marshal(obj); string(after) != string(before) && !strings.Contains(string(before), "resourceVersion") {
			t.Errorf("validation changed the object from %s to %s", before, after)
		}
	})
}

func BenchmarkPod(b *testing.B) {
	b.ReportAllocs()
	pod := goodObjects(b)[2]
	for b.Loop() {
		if e := checkCreate(pod); len(e) > 0 {
			b.Fatal(e)
		}
	}
}
