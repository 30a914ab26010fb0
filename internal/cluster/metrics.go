package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
)

// registry is a part's metrics. A part that is started again registers its
// collectors again: the new ones take the place of the old.
type registry struct{ *prometheus.Registry }

// newRegistry starts a part's metrics with those of the process and of Go.
func newRegistry() registry {
	r := registry{prometheus.NewRegistry()}
	r.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return r
}

// Register adds c, or puts it in the place of an equal one.
func (r registry) Register(c prometheus.Collector) error {
	err := r.Registry.Register(c)
	var twice prometheus.AlreadyRegisteredError
	if errors.As(err, &twice) {
		r.Unregister(twice.ExistingCollector)
		return r.Registry.Register(c)
	}
	return err
}

// MustRegister is Register for collectors whose failure is a mistake in code.
func (r registry) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// serveMetrics answers /metrics, /healthz, /livez and /readyz for controllers
// and scheduler on loopback, over TLS. Health is open to all, as upstream's.
func (u *up) serveMetrics(context.Context) error {
	u.metrics = newRegistry()
	u.storeMetrics(u.metrics)
	srv, err := u.metricsServer()
	if err != nil {
		return fmt.Errorf("serving the controllers' metrics: %w", err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", u.Ports.Metrics))
	if err != nil {
		return fmt.Errorf("listening for the controllers' metrics: %w", err)
	}
	u.keep("controllers' metrics", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { srv.Close() })
		defer stop()
		return srv.ServeTLS(l, "", "")
	})
	return nil
}

func (u *up) metricsServer() (*http.Server, error) {
	secure, err := u.metricsTLS()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", guardMetrics(func() kubernetes.Interface { return u.client },
		promhttp.HandlerFor(u.metrics, promhttp.HandlerOpts{})))
	checks := []healthCheck{
		{"ping", func(context.Context) error { return nil }},
		{"api", func(ctx context.Context) error { return apiReady(ctx, u.client) }},
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		// Being alive does not depend on others.
		use := checks
		if path == "/livez" {
			use = checks[:1]
		}
		mux.HandleFunc("GET "+path, answerChecks(use))
		for _, c := range use {
			mux.HandleFunc("GET "+path+"/"+c.name, answerChecks([]healthCheck{c}))
		}
	}
	// Handshakes that fail are the callers' affair.
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, TLSConfig: secure, ErrorLog: log.New(io.Discard, "", 0)}, nil
}

// healthCheck is one line of a health answer.
type healthCheck struct {
	name  string
	check func(context.Context) error
}

// answerChecks answers as the API server does: "ok", or with ?verbose or on
// failure a line per check.
func answerChecks(checks []healthCheck) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		var lines strings.Builder
		failed := false
		for _, c := range checks {
			if err := c.check(ctx); err != nil {
				failed = true
				fmt.Fprintf(&lines, "[-]%s failed: %v\n", c.name, err)
				continue
			}
			fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, verbose := r.URL.Query()["verbose"]
		switch {
		case failed:
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, lines.String(), r.URL.Path, " check failed\n")
		case verbose:
			fmt.Fprint(w, lines.String(), r.URL.Path, " check passed\n")
		default:
			fmt.Fprint(w, "ok")
		}
	}
}

func apiReady(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// ownPorts asks the ports of this process; the controllers' serves with the
// API server's certificate.
func (u *up) ownPorts() *http.Client {
	pool, err := certutil.NewPool(u.files.CA.Cert)
	if err != nil {
		pool = x509.NewCertPool() // nobody is believed, and the answer says so
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}}}
}

// probe asks a health endpoint.
func probe(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return errors.New(strings.TrimSpace(string(body)))
	}
	return nil
}
