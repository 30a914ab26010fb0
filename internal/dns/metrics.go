package dns

import (
	"errors"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry the names that dashboards for cluster DNS already read.
type metrics struct {
	requests        *prometheus.CounterVec
	responses       *prometheus.CounterVec
	duration        prometheus.Histogram
	cacheHits       prometheus.Counter
	cacheMisses     prometheus.Counter
	servedStale     prometheus.Counter
	cacheEntries    prometheus.Gauge
	forwardFailures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "coredns_dns_requests_total",
			Help: "Questions by transport and type."}, []string{"proto", "type"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "coredns_dns_responses_total",
			Help: "Answers by response code."}, []string{"rcode"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "coredns_dns_request_duration_seconds",
			Help: "Time to answer a question.", Buckets: prometheus.ExponentialBuckets(0.00005, 4, 9)}),
		cacheHits: prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_cache_hits_total",
			Help: "Forwarded questions answered from the cache."}),
		cacheMisses: prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_cache_misses_total",
			Help: "Forwarded questions the cache could not answer."}),
		servedStale: prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_cache_served_stale_total",
			Help: "Ended answers given because no upstream answered."}),
		cacheEntries: prometheus.NewGauge(prometheus.GaugeOpts{Name: "coredns_cache_entries", Help: "Answers in the cache."}),
		forwardFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_dns_forward_failures_total",
			Help: "Forwarded questions that no upstream answered."}),
	}
	// Run may be called again after it failed: then the metrics go on.
	return m, errors.Join(register(reg, &m.requests), register(reg, &m.responses), register(reg, &m.duration), register(reg, &m.cacheHits),
		register(reg, &m.cacheMisses), register(reg, &m.servedStale), register(reg, &m.cacheEntries), register(reg, &m.forwardFailures))
}

func register[C prometheus.Collector](reg prometheus.Registerer, c *C) error {
	err := reg.Register(*c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if old, ok := already.ExistingCollector.(C); ok {
			*c = old
			return nil
		}
	}
	return err
}

// usual are the types that have a series of their own; a client chooses the
// type, so others share one.
var usual = map[uint16]bool{mdns.TypeA: true, mdns.TypeAAAA: true, mdns.TypeSRV: true, mdns.TypePTR: true, mdns.TypeCNAME: true,
	mdns.TypeMX: true,
	mdns.TypeNS: true, mdns.TypeSOA: true, mdns.TypeTXT: true, mdns.TypeANY: true, mdns.TypeHTTPS: true}

func (m *metrics) served(proto string, req, resp *mdns.Msg, took time.Duration) {
	kind := "other"
	if len(req.Question) == 1 && usual[req.Question[0].Qtype] {
		kind = mdns.TypeToString[req.Question[0].Qtype]
	}
	m.requests.WithLabelValues(proto, kind).Inc()
	m.responses.WithLabelValues(mdns.RcodeToString[resp.Rcode]).Inc()
	m.duration.Observe(took.Seconds())
}
