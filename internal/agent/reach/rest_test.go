package reach

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no") }

func TestRESTMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewRESTMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for _, next := range []http.RoundTripper{http.DefaultTransport, failing{}} {
		req, err := http.NewRequest(http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := m.Wrap(next).RoundTrip(req); err == nil {
			resp.Body.Close() //nolint:errcheck // nothing in it
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]float64{}
	for _, f := range families {
		for _, sample := range f.Metric {
			for _, l := range sample.Label {
				if l.GetName() == "code" {
					codes[l.GetValue()] = sample.GetCounter().GetValue()
				}
			}
			if f.GetName() == "rest_client_request_duration_seconds" && sample.GetHistogram().GetSampleCount() != 2 {
				t.Errorf("%d requests were timed", sample.GetHistogram().GetSampleCount())
			}
		}
	}
	if codes["404"] != 1 || codes["<error>"] != 1 {
		t.Errorf("counted %v", codes)
	}
}
