package agent

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ownMetrics registers what the agent tells of itself: dashboards and alerts of
// nodes ask for these names.
func (a *Agent) ownMetrics(cgroupVersion int) error {
	registry := a.Config.Metrics
	if registry == nil {
		return nil
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	server := func() *tls.Certificate { return nil }
	if t := a.Config.TLS; t != nil && t.GetCertificate != nil {
		server = func() *tls.Certificate {
			cert, err := t.GetCertificate(&tls.ClientHelloInfo{})
			if err != nil {
				return nil
			}
			return cert
		}
	}
	client := a.Config.ClientCertificate
	if client == nil {
		client = func() *tls.Certificate { return nil }
	}
	for _, c := range []prometheus.Collector{
		buildInfo(a.Config.Node.Version),
		gauge("kubelet_cgroup_version", "Version of the cgroup hierarchy: 1 or 2.", func() float64 { return float64(cgroupVersion) }),
		gauge("kubelet_certificate_manager_client_ttl_seconds", "Seconds until the client certificate expires, negative once it has. +Inf without one.",
			func() float64 { return timeLeft(client(), time.Now()) }),
		gauge("kubelet_certificate_manager_server_ttl_seconds", "Seconds until the serving certificate expires, negative once it has. +Inf without one.",
			func() float64 { return timeLeft(server(), time.Now()) }),
	} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("registering the agent's own metrics: %w", err)
		}
	}
	return nil
}

// timeLeft is how long a certificate is still valid, in seconds.
func timeLeft(cert *tls.Certificate, now time.Time) float64 {
	if cert == nil || len(cert.Certificate) == 0 {
		return math.Inf(1)
	}
	leaf := cert.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return math.Inf(1)
		}
	}
	return leaf.NotAfter.Sub(now).Seconds()
}

// buildInfo is the version as monitoring compares it across a cluster.
func buildInfo(version string) prometheus.Collector {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubernetes_build_info", Help: "The version of Kubernetes that this is, in labels. The value is always 1.",
		ConstLabels: prometheus.Labels{"major": major, "minor": minor, "git_version": version, "go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH}})
	g.Set(1)
	return g
}

// cgroupMetrics times the work on pods' cgroups.
func (a *Agent) cgroupMetrics() *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_cgroup_manager_duration_seconds", Help: "Seconds that work on a pod's cgroup took, by kind of work."}, []string{"operation_type"})
	if a.Config.Metrics != nil {
		if err := a.Config.Metrics.Register(h); err != nil {
			a.Config.Log.Warn("registering the metric of cgroups", "err", err)
		}
	}
	return h
}
