package dra

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// TestMetrics: what upstream's node suite reads of a pod with a claim.
func TestMetrics(t *testing.T) {
	registry, d := prometheus.NewRegistry(), startDriver(t)
	m, err := New(Config{Log: slog.New(slog.DiscardHandler), RootDir: t.TempDir(), NodeName: "n1",
		Client:  fake.NewClientset(claim("gpu", "p")),
		Changed: func(types.UID) {}, Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.drivers.close)
	if err := m.Prepare(t.Context(), pod("p", "gpu")); err == nil {
		t.Error("prepared without a driver")
	}
	if err := m.Register(t.Context(), driverName, d.socket, []string{"v1.DRAPlugin"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(t.Context(), pod("p", "gpu")); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		if got := counts(t, registry); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
	const prepared = `dra_grpc_operations_duration_seconds driver_name=` + driverName +
		` grpc_status_code=OK method_name=/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources 1
`
	check(prepared + `dra_operations_duration_seconds is_error=false operation_name=PrepareResources 1
dra_operations_duration_seconds is_error=true operation_name=PrepareResources 1
dra_resource_claims_in_use driver_name=<any> 1
dra_resource_claims_in_use driver_name=` + driverName + ` 1
`)
	if err := m.Unprepare(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	check(prepared + strings.ReplaceAll(prepared, "NodePrepare", "NodeUnprepare") +
		`dra_operations_duration_seconds is_error=false operation_name=PrepareResources 1
dra_operations_duration_seconds is_error=false operation_name=UnprepareResources 1
dra_operations_duration_seconds is_error=true operation_name=PrepareResources 1
dra_resource_claims_in_use driver_name=<any> 0
`)
}

// counts prints each series with its value, or how often it was observed.
func counts(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, s := range f.Metric {
			b.WriteString(f.GetName())
			for _, l := range s.Label {
				b.WriteString(" " + l.GetName() + "=" + l.GetValue())
			}
			n := uint64(s.GetGauge().GetValue())
			if h := s.GetHistogram(); h != nil {
				n = h.GetSampleCount()
			}
			b.WriteString(" " + strconv.FormatUint(n, 10) + "\n")
		}
	}
	return b.String()
}
