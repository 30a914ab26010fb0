package proxy

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/netnstest"
	"github.com/berth-dev/berth/internal/proxy/model"
)

type told chan journal.Record

func (c told) Append(r journal.Record) {
	select {
	case c <- r:
	default:
	}
}

// get asks an HTTP server in the node's namespace.
func (w *world) get(url string) (status int, body string, header http.Header) {
	// The transport dials on a goroutine, that is a namespace, of its own.
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = netnstest.In(w.node, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
		return c, err
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(data), resp.Header
}

// until waits for something that must come to be true.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within 20 s", what)
		}
		time.Sleep(10 * time.Millisecond) // the state of another process's kernel has no events here
	}
}

// TestRun starts the whole proxy against a fake API server and a real kernel.
func TestRun(t *testing.T) {
	w := newWorld(t)
	leaks := goleak.IgnoreCurrent()
	balanced := svc("lb", "10.96.0.9", 80, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 32001
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}}
	client := fake.NewClientset(svc("a", "10.96.0.1", 80, nil), slice("a", "10.244.0.10"), balanced, slice("lb", "10.244.0.10", "10.244.0.11"), node)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written, ended, tracer := make(told, 10), make(chan error, 1), &Tracer{}
	go func() {
		ended <- netnstest.In(w.node, func() error {
			return Run(ctx, Config{NodeName: nodeName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Instance: "berth-run", Metrics: prometheus.NewRegistry(),
				ClusterCIDR: "10.244.0.0/16", BridgeName: "br0", HealthzBind: "127.0.0.1:10256", MetricsBind: "127.0.0.1:10249", Journal: written, Tracer: tracer})
		})
	}()
	select {
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	case <-written:
	}
	if chains, err := w.w.kernel.Chains(4, "berth-run"); err != nil || len(chains) == 0 {
		t.Fatalf("chains %v, %v", chains, err)
	}
	expect(t, "pod to cluster IP", w.ask(w.pods[1], "tcp4", "10.96.0.1:80")[:1], "0")
	expect(t, "node to cluster IP", w.ask(w.node, "udp4", "10.96.0.1:80")[:1], "0")
	t.Run("trace", func(t *testing.T) { testTrace(t, tracer) })
	t.Run("health check port", func(t *testing.T) { testHealthCheckPort(t, w, client) })
	t.Run("health", func(t *testing.T) { testHealth(t, w, client, node) })
	t.Run("metrics", func(t *testing.T) { testMetrics(t, w) })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, leaks)
}

func testTrace(t *testing.T, tracer *Tracer) {
	p, err := ParsePacket("10.244.0.11", "10.96.0.1", "80/tcp")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := tracer.Trace(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	held := 0
	for _, l := range lines {
		all.WriteString(l.Text + "\n")
		if l.Kernel == "held" {
			held++
		} else if l.Kernel != "" {
			t.Errorf("%q: the kernel's row is %s", l.Text, l.Kernel)
		}
	}
	for _, want := range []string{"Service ns/a", "class vip-1", "it is kept", "1 in 1: 10.244.0.10:8080"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the trace lacks %q:\n%s", want, all.String())
		}
	}
	if held != 2 {
		t.Errorf("%d rows were found in the kernel, want 2", held)
	}
	lines, err = tracer.Service(t.Context(), model.Name{Namespace: "ns", Name: "lb"})
	if err != nil || len(lines) < 4 {
		t.Errorf("the Service's description: %v, %v", lines, err)
	}
}

// testHealthCheckPort goes from two local endpoints to none that is ready.
func testHealthCheckPort(t *testing.T, w *world, client *fake.Clientset) {
	const url = "http://192.0.2.10:32001/any/path"
	w.until("the health check port", func() bool { code, _, _ := w.get(url); return code != 0 })
	code, body, header := w.get(url)
	if code != 200 || header.Get("X-Load-Balancing-Endpoint-Weight") != "2" || header.Get("X-Content-Type-Options") != "nosniff" ||
		strings.TrimSpace(body) != `{"service":{"namespace":"ns","name":"lb"},"localEndpoints":2,"serviceProxyHealthy":true}` {
		t.Errorf("two endpoints: %d %s %v", code, body, header)
	}
	none := slice("lb", "10.244.0.10")
	ready, yes := false, true
	none.Endpoints[0].Conditions.Ready, none.Endpoints[0].Conditions.Serving, none.Endpoints[0].Conditions.Terminating = &ready, &yes, &yes
	none.ResourceVersion = "2"
	if _, err := client.DiscoveryV1().EndpointSlices("ns").Update(t.Context(), none, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the last endpoint terminates", func() bool { code, _, _ := w.get(url); return code == 503 })
	if _, body, header := w.get(url); header.Get("X-Load-Balancing-Endpoint-Weight") != "0" || !strings.Contains(body, `"localEndpoints":0`) {
		t.Errorf("no ready endpoint: %s %v", body, header)
	}
}

// testHealth lets the autoscaler mark the node: load balancers must turn
// away, and nobody may restart the proxy.
func testHealth(t *testing.T, w *world, client *fake.Clientset, node *corev1.Node) {
	code, body, _ := w.get("http://127.0.0.1:10256/healthz")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || got["healthy"] != true || got["nodeEligible"] != true || got["status"] == nil {
		t.Errorf("healthz: %d %s", code, body)
	}
	marked := node.DeepCopy()
	marked.ResourceVersion = "2"
	marked.Spec.Taints = []corev1.Taint{{Key: drainTaint, Effect: corev1.TaintEffectNoSchedule}}
	if _, err := client.CoreV1().Nodes().Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("healthz of a node that goes away", func() bool { code, _, _ := w.get("http://127.0.0.1:10256/healthz"); return code == 503 })
	if code, body, _ := w.get("http://127.0.0.1:10256/livez"); code != 200 || strings.Contains(body, "nodeEligible") {
		t.Errorf("livez: %d %s", code, body)
	}
}

func testMetrics(t *testing.T, w *world) {
	if _, body, _ := w.get("http://127.0.0.1:10249/proxyMode"); body != "nftables" {
		t.Errorf("proxyMode: %s", body)
	}
	if code, body, _ := w.get("http://127.0.0.1:10249/configz"); code != 200 || !strings.Contains(body, "kubeproxy.config.k8s.io") {
		t.Errorf("configz: %d %s", code, body)
	}
	if code, _, _ := w.get("http://127.0.0.1:10249/debug/pprof/"); code != 404 {
		t.Errorf("profiles are served without enableProfiling: %d", code)
	}
	_, body, _ := w.get("http://127.0.0.1:10249/metrics")
	for _, name := range []string{"sync_proxy_rules_duration_seconds_count", "sync_full_proxy_rules_duration_seconds_count", "sync_proxy_rules_last_timestamp_seconds",
		"sync_proxy_rules_last_queued_timestamp_seconds", "sync_proxy_rules_endpoint_changes_pending", "sync_proxy_rules_endpoint_changes_total", "sync_proxy_rules_service_changes_pending",
		"sync_proxy_rules_service_changes_total", "sync_proxy_rules_no_local_endpoints_total", "sync_proxy_rules_nftables_sync_failures_total", `proxy_healthz_total{code="503"}`, `proxy_livez_total{code="200"}`} {
		if !strings.Contains(body, "kubeproxy_"+name) {
			t.Errorf("the metrics lack %s", name)
		}
	}
}

// TestBusyPort checks both answers to an address that is taken.
func TestBusyPort(t *testing.T) {
	w := newWorld(t)
	client := fake.NewClientset()
	for _, hard := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		synced := make(chan struct{})
		ended := make(chan error, 1)
		cfg := Config{NodeName: nodeName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Instance: "berth-busy", Synced: func() { close(synced) }}
		cfg.defaults()
		cfg.Config.BindAddressHardFail = hard
		cfg.HealthzBind = "203.0.113.77:10256" // no address of this machine
		go func() { ended <- netnstest.In(w.node, func() error { return Run(ctx, cfg) }) }()
		select {
		case err := <-ended:
			if !hard || err == nil || !strings.Contains(err.Error(), "listening for proxy health") {
				t.Errorf("hard %v: ended with %v", hard, err)
			}
			cancel()
			continue
		case <-synced:
			if hard {
				t.Error("bindAddressHardFail: it goes on without its health port")
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
