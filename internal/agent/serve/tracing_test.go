package serve

import (
	"net/http"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// TestRequestsAreTraced takes one span per request, named by its route, and
// none when nothing is to be traced.
func TestRequestsAreTraced(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	h := start(t, func(c *Config) { c.Tracer = provider })
	for _, path := range []string{"/pods", "/containerLogs/default/p/c"} {
		if code, body := h.do(t, "api-server", http.MethodGet, path, ""); code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, body)
		}
	}
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
	}
	if len(names) != 2 || names[0] != "GET /pods" || names[1] != "GET /containerLogs/{namespace}/{pod}/{container}" {
		t.Errorf("spans %q, want one of each request", names)
	}
	plain := start(t, nil)
	if code, _ := plain.do(t, "api-server", http.MethodGet, "/pods", ""); code != http.StatusOK {
		t.Errorf("without a tracer: %d", code)
	}
}
