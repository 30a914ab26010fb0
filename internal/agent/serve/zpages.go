package serve

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// componentName is what the agent calls itself where tools look for the role.
const componentName = "kubelet"

// capture is a mux that keeps the one handler a library installs.
type capture struct{ http.Handler }

// Handle implements the library's idea of a mux.
func (c *capture) Handle(_ string, handler http.Handler) { c.Handler = handler }

func slisHandler() http.HandlerFunc {
	var c capture
	slis.SLIMetricsWithReset{}.Install(&c)
	return c.ServeHTTP
}

// observe counts the outcome of a health check for /metrics/slis.
func observe(ctx context.Context, name string, err error) {
	outcome := slis.Success
	if err != nil {
		outcome = slis.Error
	}
	_ = slis.ObserveHealthcheck(ctx, name, "healthz", outcome) // its error is always nil
}

func (s *server) statusz() http.HandlerFunc {
	var c capture
	statusz.Install(&c, componentName,
		statusz.NewRegistry(nil, statusz.WithListedPaths([]string{"/configz", "/flagz", "/healthz", "/metrics"})))
	return c.ServeHTTP
}

// flagReader hands the library what was given on the command line.
type flagReader map[string]string

// GetFlagz implements flagz.Reader.
func (f flagReader) GetFlagz() map[string]string { return f }

func (s *server) flagz() http.HandlerFunc {
	var c capture
	flags := flagReader{}
	for name, value := range s.cfg.Flags {
		flags[name] = value
	}
	flagz.Install(&c, componentName, flags)
	return c.ServeHTTP
}
