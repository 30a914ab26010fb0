package rootca

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWant: a live namespace has the CA and nothing else in its config map; one
// that is being deleted is left alone.
func TestWant(t *testing.T) {
	now := metav1.Now()
	ca := []byte("PEM")
	holds := func(data map[string]string, binary map[string][]byte) *v1.ConfigMap {
		return &v1.ConfigMap{Data: data, BinaryData: binary}
	}
	ending := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}
	for name, c := range map[string]struct {
		ns    *v1.Namespace
		have  *v1.ConfigMap
		write bool
	}{
		"no map":                {&v1.Namespace{}, nil, true},
		"the right one":         {&v1.Namespace{}, holds(map[string]string{Key: "PEM"}, nil), false},
		"an older CA":           {&v1.Namespace{}, holds(map[string]string{Key: "old"}, nil), true},
		"an empty one":          {&v1.Namespace{}, holds(nil, nil), true},
		"a key of a user's":     {&v1.Namespace{}, holds(map[string]string{Key: "PEM", "x": "y"}, nil), true},
		"binary data of a user": {&v1.Namespace{}, holds(map[string]string{Key: "PEM"}, map[string][]byte{"x": nil}), true},
		"an ending namespace":   {ending, nil, false},
		"its phase is Terminating": {&v1.Namespace{Status: v1.NamespaceStatus{Phase: v1.NamespaceTerminating}},
			holds(map[string]string{Key: "old"}, nil), false},
	} {
		data, ok := want(c.ns, c.have, ca)
		if ok != c.write || ok && (len(data) != 1 || data[Key] != "PEM") {
			t.Errorf("%s: %v %v, want a write: %v", name, data, ok, c.write)
		}
	}
}
