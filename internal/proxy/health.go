package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/metrics/prometheus/slis"
	kubeproxyconfigv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// drainTaint is how the cluster autoscaler says that a node goes away; cloud
// load balancers learn of it through /healthz.
const drainTaint = "ToBeDeletedByClusterAutoscaler"

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type healthBody struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyHealth `json:"status"`
}

// health is the answer to /healthz and /livez at a time.
func (r *runner) health(now time.Time) (healthBody, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := healthBody{CurrentTime: now, LastUpdated: now, Healthy: true, Status: map[string]familyHealth{}}
	for _, f := range r.does {
		of := familyHealth{now, true}
		if since := r.oldest[f]; r.began && !since.IsZero() && now.Sub(since) >= 2*r.cfg.syncPeriod() {
			of = familyHealth{since, false}
		}
		b.Status[f.String()] = of
		if b.Healthy = b.Healthy && of.Healthy; of.LastUpdated.Before(b.LastUpdated) {
			b.LastUpdated = of.LastUpdated
		}
	}
	return b, eligible(r.node)
}

// eligible says whether load balancers shall send traffic to the node.
func eligible(n *corev1.Node) bool {
	if n == nil || n.DeletionTimestamp != nil {
		return false
	}
	for _, t := range n.Spec.Taints {
		if t.Key == drainTaint {
			return false
		}
	}
	return true
}

// serve starts the HTTP servers; the function it returns ends them.
func (r *runner) serve(ctx context.Context) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var servers []*http.Server
	var running sync.WaitGroup
	stop := func() {
		cancel()
		mu.Lock()
		for _, s := range servers {
			_ = s.Close()
		}
		mu.Unlock()
		running.Wait()
	}
	listen := func(what, addr string, h http.Handler) error {
		if addr == "" {
			return nil
		}
		err := r.listen(ctx, &running, what, addr, func(l net.Listener) {
			s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				_ = l.Close()
				return
			}
			servers = append(servers, s)
			running.Go(func() {
				if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					r.cfg.Log.Error("serving ended", "what", what, "err", err)
				}
			})
		})
		if err != nil {
			return fmt.Errorf("listening for %s: %w", what, err)
		}
		return nil
	}
	healthz := http.NewServeMux()
	healthz.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { r.writeHealth(w, true) })
	healthz.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { r.writeHealth(w, false) })
	err := errors.Join(listen("proxy health", r.cfg.HealthzBind, healthz), listen("proxy metrics", r.cfg.MetricsBind, r.metricsMux()))
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// componentName is the role's name where tools look for it.
const componentName = "kube-proxy"

// flagReader hands /flagz what was given on the command line.
type flagReader map[string]string

// GetFlagz implements flagz.Reader.
func (f flagReader) GetFlagz() map[string]string { return f }

// metricsMux is what kube-proxy's metrics port serves.
func (r *runner) metricsMux() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/healthz", func(w http.ResponseWriter, req *http.Request) {
		// That it answers is all there is to this check; /metrics/slis counts it.
		_ = slis.ObserveHealthcheck(req.Context(), "ping", "healthz", slis.Success)
		fmt.Fprint(w, "ok")
	})
	slis.SLIMetricsWithReset{}.Install(m)
	flagz.Install(m, componentName, flagReader(r.cfg.Flags))
	statusz.Install(m, componentName,
		statusz.NewRegistry(nil, statusz.WithListedPaths([]string{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"})))
	m.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, "nftables")
	})
	m.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{kubeproxyconfigv1alpha1.GroupName: r.cfg.Config})
	})
	if g, ok := r.cfg.Metrics.(prometheus.Gatherer); ok {
		m.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	}
	if r.cfg.Config.EnableProfiling {
		m.HandleFunc("/debug/pprof/", pprof.Index)
		m.HandleFunc("/debug/pprof/profile", pprof.Profile)
		m.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		m.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		m.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return m
}

// listen opens an address; unless a clash shall end the proxy, one that is
// taken is tried again until ctx ends. found is called when it is ours.
func (r *runner) listen(ctx context.Context, running *sync.WaitGroup, what, addr string, found func(net.Listener)) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err == nil {
		found(l)
		return nil
	}
	if r.cfg.Config.BindAddressHardFail {
		return err
	}
	r.cfg.Log.Error("cannot listen yet, trying again", "what", what, "address", addr, "after", rebindAfter, "err", err)
	running.Go(func() {
		again := time.NewTicker(rebindAfter)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
			if l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr); err == nil {
				found(l)
				return
			}
		}
	})
	return nil
}

func (r *runner) writeHealth(w http.ResponseWriter, node bool) {
	b, ok := r.health(time.Now())
	good, counter := b.Healthy, r.metrics.livez
	if node {
		b.NodeEligible = &ok
		good, counter = good && ok, r.metrics.healthz
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	code := http.StatusOK
	if !good {
		code = http.StatusServiceUnavailable
	}
	counter.WithLabelValues(strconv.Itoa(code)).Inc()
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(b)
}
