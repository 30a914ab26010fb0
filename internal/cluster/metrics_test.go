package cluster

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A part that is started again registers its metrics again: they take the place
// of those of its last life.
func TestRegistryTakesMetricsTwice(t *testing.T) {
	r := newRegistry()
	for want := range 3 {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_total", Help: "x"})
		r.MustRegister(c)
		c.Add(float64(want))
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "test_total" && f.Metric[0].GetCounter().GetValue() != float64(want) {
				t.Errorf("life %d shows %v", want, f.Metric[0])
			}
		}
	}
}
