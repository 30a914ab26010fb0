package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
)

// drainTaint is how the cluster autoscaler says that a node goes away; cloud
// load balancers learn of it through /healthz.
const drainTaint = "ToBeDeletedByClusterAutoscaler"

// staleAfter is how old an event may be that is not in the kernel yet, twice
// the sync period of kube-proxy.
const staleAfter = 60 * time.Second

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
	if !r.oldest.IsZero() && now.Sub(r.oldest) >= staleAfter {
		b.Healthy, b.LastUpdated = false, r.oldest
	}
	for _, w := range r.families {
		b.Status[w.layout.Family.String()] = familyHealth{b.LastUpdated, b.Healthy}
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
	var servers []*http.Server
	stop := func() {
		for _, s := range servers {
			_ = s.Close()
		}
	}
	listen := func(what, addr string, h http.Handler) error {
		if addr == "" {
			return nil
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("listening for %s: %w", what, err)
		}
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
		servers = append(servers, s)
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				r.cfg.Log.Error("serving ended", "what", what, "err", err)
			}
		}()
		return nil
	}
	healthz := http.NewServeMux()
	healthz.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { r.writeHealth(w, true) })
	healthz.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { r.writeHealth(w, false) })
	m := http.NewServeMux()
	m.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	m.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "nftables") })
	if g, ok := r.cfg.Metrics.(prometheus.Gatherer); ok {
		m.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	}
	err := errors.Join(listen("proxy health", r.cfg.HealthzBind, healthz), listen("proxy metrics", r.cfg.MetricsBind, m))
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func (r *runner) writeHealth(w http.ResponseWriter, node bool) {
	b, ok := r.health(time.Now())
	good := b.Healthy
	if node {
		b.NodeEligible = &ok
		good = good && ok
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(b)
}
