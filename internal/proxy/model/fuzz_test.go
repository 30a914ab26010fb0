package model

import (
	"encoding/json"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// FuzzCommit feeds Services and slices as an API server might hand them out:
// the rows must stay ones that a kernel takes, and go when the objects go.
func FuzzCommit(f *testing.F) {
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		service, err := json.Marshal(randomService(r, 1))
		if err != nil {
			f.Fatal(err)
		}
		slice, err := json.Marshal(randomSlice(r, 1, 0))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(service, slice)
	}
	f.Fuzz(func(t *testing.T, service, slice []byte) {
		var s corev1.Service
		var e discoveryv1.EndpointSlice
		if json.Unmarshal(service, &s) != nil || json.Unmarshal(slice, &e) != nil {
			return
		}
		m, kernel := New(Config{Family: V4, NodeName: "here"}), mirror{}
		m.SetService(randomService(rand.New(rand.NewSource(1)), 1))
		m.SetSlice(randomSlice(rand.New(rand.NewSource(1)), 1, 0))
		kernel.apply(t, m.Commit())
		m.SetService(&s)
		m.SetSlice(&e)
		kernel.apply(t, m.Commit())
		for _, n := range []Name{{s.Namespace, s.Name}, {"ns", "s1"}} {
			m.DeleteService(n)
		}
		kernel.apply(t, m.Commit())
		for name, rows := range kernel.sorted() {
			t.Errorf("no Service is left, but %s has %d rows", name, len(rows))
		}
	})
}
