// Package telemetry is what the agent reports of itself: metrics of its own,
// traces, events and what a node's owner should be warned of.
package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/config"
)

// Own is what the agent's own metrics follow from. TLS and ClientCertificate may
// be nil.
type Own struct {
	Kubelet           *kubeletv1beta1.KubeletConfiguration
	Version           string // of Kubernetes
	CgroupVersion     int
	TLS               *tls.Config
	ClientCertificate func() *tls.Certificate
}

// Register registers what the agent reports of itself: dashboards and alerts of
// nodes ask for these names.
func (o Own) Register(registry prometheus.Registerer) error {
	if registry == nil {
		return nil
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	server := func() *tls.Certificate { return nil }
	if t := o.TLS; t != nil && t.GetCertificate != nil {
		server = func() *tls.Certificate {
			cert, err := t.GetCertificate(&tls.ClientHelloInfo{})
			if err != nil {
				return nil
			}
			return cert
		}
	}
	client := o.ClientCertificate
	if client == nil {
		client = func() *tls.Certificate { return nil }
	}
	for _, c := range []prometheus.Collector{
		buildInfo(o.Version),
		featureMetrics(o.Kubelet),
		gauge("kubelet_cgroup_version", "Version of the cgroup hierarchy: 1 or 2.", func() float64 { return float64(o.CgroupVersion) }),
		gauge("kubelet_certificate_manager_client_ttl_seconds",
			"Seconds until the client certificate expires, negative once it has. +Inf without one.",
			func() float64 { return timeLeft(client(), time.Now()) }),
		gauge("kubelet_certificate_manager_server_ttl_seconds",
			"Seconds until the serving certificate expires, negative once it has. +Inf without one.",
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
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubernetes_build_info",
		Help: "The version of Kubernetes that this is, in labels. The value is always 1.",
		ConstLabels: prometheus.Labels{"major": major, "minor": minor, "git_version": version, "go_version": runtime.Version(),
			"compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH}})
	g.Set(1)
	return g
}

// featureMetrics is kubernetes_feature_enabled: the gates that a configuration
// may name. Those that berth cannot switch have no stage: they are part of it.
func featureMetrics(k *kubeletv1beta1.KubeletConfiguration) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_feature_enabled",
		Help: "1 if the feature is on, by its name and stage. Features without a stage cannot be switched."}, []string{"name", "stage"})
	for _, f := range config.Features(k) {
		on := 0.0
		if f.Enabled {
			on = 1
		}
		g.WithLabelValues(f.Name, f.Stage).Set(on)
	}
	return g
}

// Registrar registers metrics with a registry, nil for none; a metric that is
// refused is logged.
func Registrar(registry prometheus.Registerer, log *slog.Logger) func(...prometheus.Collector) {
	return func(list ...prometheus.Collector) {
		if registry == nil {
			return
		}
		for _, c := range list {
			if err := registry.Register(c); err != nil {
				log.Warn("registering a metric", "err", err)
			}
		}
	}
}
