package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// streamTimeout bounds a single request, which may be a log that is
	// followed or a shell that is left open.
	streamTimeout = 4 * time.Hour
	idleTimeout   = 90 * time.Second
	headerTimeout = 32 * time.Second
)

type server struct {
	cfg    Config
	access *access

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
}

// Run serves until the context ends. It returns early if a port cannot be
// bound or the configuration cannot be used.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	s, err := newServer(cfg)
	if err != nil {
		return err
	}
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { s.access.run(ctx) })
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		wg.Go(func() { failed <- l.serve(ctx, grace) })
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
		cancel()
	}
	wg.Wait()
	return err
}

func newServer(cfg Config) (*server, error) {
	access, err := newAccess(cfg)
	if err != nil {
		return nil, err
	}
	s := &server{cfg: cfg, access: access}
	return s, s.registerMetrics(cfg.Metrics)
}

func (s *server) registerMetrics(registry prometheus.Registerer) error {
	labels := []string{"method", "path", "server_type", "long_running"}
	s.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_http_requests_total",
		Help: "Number of the http requests received since the server started."}, labels)
	s.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_http_requests_duration_seconds",
		Help: "Duration in seconds to serve http requests.", Buckets: prometheus.DefBuckets}, labels)
	s.inflight = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_http_inflight_requests",
		Help: "Number of the inflight http requests."}, labels)
	if registry == nil {
		return nil
	}
	for _, collector := range []prometheus.Collector{s.requests, s.duration, s.inflight} {
		if err := registry.Register(collector); err != nil {
			return fmt.Errorf("registering metrics of the node's API: %w", err)
		}
	}
	return nil
}

// counted counts and times requests by route, not by path: names of pods do
// not belong into metrics.
func (s *server) counted(route route, next http.Handler) http.Handler {
	path := routeName(route.pattern)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		kind := "readonly"
		if req.TLS != nil {
			kind = "readwrite"
		}
		labels := prometheus.Labels{"method": req.Method, "path": path, "server_type": kind, "long_running": strconv.FormatBool(route.long)}
		s.requests.With(labels).Inc()
		inflight := s.inflight.With(labels)
		inflight.Inc()
		defer inflight.Dec()
		started := time.Now()
		defer func() { s.duration.With(labels).Observe(time.Since(started).Seconds()) }()
		next.ServeHTTP(w, req)
	})
}

// routeName is the fixed beginning of a pattern: "exec" of "/exec/{namespace}/...".
func routeName(pattern string) string {
	name := pattern[1:]
	for i := range name {
		if name[i] == '{' {
			name = name[:i]
			break
		}
	}
	if n := len(name); n > 0 && name[n-1] == '/' {
		name = name[:n-1]
	}
	return name
}

// endpoint is a listener with what it serves.
type endpoint struct {
	listener net.Listener
	server   *http.Server
}

// listen binds everything before anything is served, so that a port that is
// taken is reported at start.
func (s *server) listen() (endpoints []endpoint, err error) {
	defer func() {
		if err != nil {
			for _, e := range endpoints {
				e.listener.Close()
			}
		}
	}()
	cfg := s.cfg.Kubelet
	add := func(given net.Listener, address string, port int32, field string, handler http.Handler, secure bool) error {
		listener := given
		if listener == nil {
			var err error
			if listener, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port)))); err != nil {
				return fmt.Errorf("binding %s %d (is another agent running?): %w", field, port, err)
			}
		}
		if secure {
			listener = tls.NewListener(listener, s.tlsConfig())
		}
		endpoints = append(endpoints, endpoint{listener: listener, server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       streamTimeout,
			WriteTimeout:      streamTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    1 << 20,
			ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		}})
		return nil
	}
	if isOn(cfg.EnableServer) || s.cfg.Listeners.API != nil {
		if err = add(s.cfg.Listeners.API, cfg.Address, cfg.Port, "port", s.handler(), true); err != nil {
			return endpoints, err
		}
	}
	if cfg.ReadOnlyPort > 0 || s.cfg.Listeners.ReadOnly != nil {
		s.cfg.Log.Warn("readOnlyPort is set: pods, stats and metrics of this node are shown to anybody who reaches it", "port",
			cfg.ReadOnlyPort)
		if err = add(s.cfg.Listeners.ReadOnly, cfg.Address, cfg.ReadOnlyPort, "readOnlyPort", s.readOnlyHandler(), false); err != nil {
			return endpoints, err
		}
	}
	if port := cfg.HealthzPort; s.cfg.Listeners.Healthz != nil || port != nil && *port > 0 {
		number := int32(0)
		if port != nil {
			number = *port
		}
		if err = add(s.cfg.Listeners.Healthz, cfg.HealthzBindAddress, number, "healthzPort", s.localHealthz(), false); err != nil {
			return endpoints, err
		}
	}
	return endpoints, nil
}

// tlsConfig asks for client certificates and names the accepted CAs;
// they are verified per request, so that tokens work too.
func (s *server) tlsConfig() *tls.Config {
	base := s.cfg.TLS.Clone()
	base.ClientAuth = tls.RequestClientCert
	base.NextProtos = []string{"h2", "http/1.1"}
	fixed := base.Clone()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		config := fixed.Clone()
		config.ClientCAs = s.access.clientCAs()
		return config, nil
	}
	return base
}

// serve runs until the context ends, then gives requests the grace time.
func (e endpoint) serve(ctx context.Context, grace time.Duration) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if e.server.Shutdown(closing) != nil {
			e.server.Close()
		}
	}()
	// Requests see the end of the role: streams end with it instead of using
	// up the grace time.
	e.server.BaseContext = func(net.Listener) context.Context { return ctx }
	err := e.server.Serve(e.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("serving on %s: %w", e.listener.Addr(), err)
}
