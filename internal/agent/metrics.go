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
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/config"
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
		a.featureMetrics(),
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

// volumeCounts is volume_manager_total_volumes: the volumes of pods, by what
// they are made of, as wanted and as they are.
type volumeCounts struct {
	a    *Agent
	desc *prometheus.Desc
}

func (a *Agent) volumeCounts() prometheus.Collector {
	return &volumeCounts{a, prometheus.NewDesc("volume_manager_total_volumes", "Volumes of pods, as wanted and as mounted.", []string{"plugin_name", "state"}, nil)}
}

func (c *volumeCounts) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c *volumeCounts) Collect(out chan<- prometheus.Metric) {
	type kind struct{ plugin, state string }
	count := map[kind]int{}
	for _, p := range c.a.Pods.List() {
		mounted := c.a.configs.mountsOf(p.UID)
		over := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			plugin := c.a.Volumes.Plugin(p.UID, v)
			if !over {
				count[kind{plugin, "desired_state_of_world"}]++
			}
			if _, ok := mounted[v.Name]; ok {
				count[kind{plugin, "actual_state_of_world"}]++
			}
		}
	}
	for k, n := range count {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), k.plugin, k.state)
	}
}

// featureMetrics is kubernetes_feature_enabled: the gates that a configuration
// may name. Those that berth cannot switch have no stage: they are part of it.
func (a *Agent) featureMetrics() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_feature_enabled", Help: "1 if the feature is on, by its name and stage. Features without a stage cannot be switched."}, []string{"name", "stage"})
	for _, f := range config.Features(a.Config.Kubelet) {
		on := 0.0
		if f.Enabled {
			on = 1
		}
		g.WithLabelValues(f.Name, f.Stage).Set(on)
	}
	return g
}
