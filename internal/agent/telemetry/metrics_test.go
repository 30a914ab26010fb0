package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// TestOwnMetrics wants the names that alerts on certificates and versions use.
func TestOwnMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	expired := &tls.Certificate{Certificate: [][]byte{{}}, Leaf: &x509.Certificate{NotAfter: time.Now().Add(-time.Hour)}}
	a := Own{Kubelet: &kubeletv1beta1.KubeletConfiguration{}, CgroupVersion: 2, Version: "v1.37.2+berth",
		ClientCertificate: func() *tls.Certificate { return expired },
		TLS: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{{}}, Leaf: &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}}, nil
		}}}
	if err := a.Register(registry); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.Metric[0].GetGauge().GetValue()
	}
	client, server := got["kubelet_certificate_manager_client_ttl_seconds"], got["kubelet_certificate_manager_server_ttl_seconds"]
	if client > -3600 || client < -3700 || server > 3600 || server < 3500 {
		t.Errorf("the client's certificate has %v s left, the server's %v", client, server)
	}
	if got["kubelet_cgroup_version"] != 2 || got["kubernetes_build_info"] != 1 {
		t.Errorf("got %v", got)
	}
}

func TestTimeLeft(t *testing.T) {
	for _, cert := range []*tls.Certificate{nil, {}, {Certificate: [][]byte{[]byte("no certificate")}}} {
		if got := timeLeft(cert, time.Now()); !math.IsInf(got, 1) {
			t.Errorf("%v: %v", cert, got)
		}
	}
}
