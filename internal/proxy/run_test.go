package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

type reported chan journal.Record

func (c reported) Append(r journal.Record) {
	select {
	case c <- r:
	default:
	}
}

// get asks an HTTP server in the node's namespace.
func (w *fixture) get(url string) (status int, body string, header http.Header) {
	// The transport dials on a goroutine, that is a namespace, of its own.
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = netnstest.In(w.node, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
		return c, err
	}
	client := &http.Client{Timeout: testtimeout.Scale(5 * time.Second), Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}
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
func (w *fixture) until(what string, cond func() bool) {
	w.t.Helper()
	limit := testtimeout.Scale(20 * time.Second)
	deadline := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %s", what, limit)
		}
		time.Sleep(10 * time.Millisecond) // the state of another process's kernel has no events here
	}
}

// TestRun starts the whole proxy against a fake API server and a real kernel.
func TestRun(t *testing.T) {
	w := newFixture(t)
	leaks := goleak.IgnoreCurrent()
	balanced := svc("lb", "10.96.0.9", 80, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer,
			corev1.ServiceExternalTrafficPolicyLocal, 32001
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}}
	client := fake.NewClientset(svc("a", "10.96.0.1", 80, nil), slice("a", "10.244.0.10"), balanced,
		slice("lb", "10.244.0.10", "10.244.0.11"), node)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written, ended, tracer := make(reported, 10), make(chan error, 1), &Tracer{}
	go func() {
		ended <- netnstest.In(w.node, func() error {
			return Run(ctx, Config{NodeName: nodeName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0),
				Instance: "berth-run", Metrics: prometheus.NewRegistry(),
				ClusterCIDR: "10.244.0.0/16", BridgeName: "br0", HealthzBind: "127.0.0.1:10256", MetricsBind: "127.0.0.1:10249",
				Journal: written, Tracer: tracer,
				Flags: map[string]string{"cluster-cidr": "10.244.0.0/16"}})
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
	t.Run("port taken", func(t *testing.T) { testPortTaken(t, w, client) })
	t.Run("latency", func(t *testing.T) { testLatency(t, w, client) })
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

// TestParsePacket takes what people type, and names what is wrong with the rest.
func TestParsePacket(t *testing.T) {
	for _, c := range [][4]string{
		{"10.0.0.1", "10.0.0.2", "80", ""}, {"10.0.0.1", "10.0.0.2", "53/UDP", ""}, {"fd00::1", "fd00::2", "9/sctp", ""},
		{"::ffff:10.0.0.1", "10.0.0.2", "80/tcp", ""},
		{"here", "10.0.0.2", "80", "source"}, {"10.0.0.1", "", "80", "destination"}, {"10.0.0.1", "10.0.0.0/8", "80", "destination"},
		{"10.0.0.1", "fd00::2", "80", "two address families"},
		{"10.0.0.1", "10.0.0.2", "0", "1..65535"}, {"10.0.0.1", "10.0.0.2", "65536", "1..65535"},
		{"10.0.0.1", "10.0.0.2", "-1", "1..65535"}, {"10.0.0.1", "10.0.0.2", "http", "1..65535"},
		{"10.0.0.1", "10.0.0.2", "80/icmp", "protocol"}, {"10.0.0.1", "10.0.0.2", "80/tcp/udp", "protocol"},
	} {
		p, err := ParsePacket(c[0], c[1], c[2])
		if c[3] == "" && (err != nil || p.Source.Is4In6() || p.Proto == 0) {
			t.Errorf("%v: %+v, %v", c, p, err)
		}
		if c[3] != "" && (err == nil || !strings.Contains(err.Error(), c[3])) {
			t.Errorf("%v: got %v, want an error about %s", c, err, c[3])
		}
	}
}

// TestDescribe tells of a Service from the API alone.
func TestDescribe(t *testing.T) {
	client := fake.NewClientset(svc("a", "10.96.0.1", 80, nil), slice("a", "10.244.0.10"))
	for name, want := range map[string]string{"a": "endpoints: 10.244.0.10:8080", "b": "there is no Service ns/b"} {
		lines, err := Describe(t.Context(), client, nodeName, model.Name{Namespace: "ns", Name: name})
		if err != nil || !strings.Contains(fmt.Sprint(lines), want) {
			t.Errorf("%s: %v, %v; want %q", name, lines, err, want)
		}
	}
}

// testHealthCheckPort goes from two local endpoints to none that is ready.
func testHealthCheckPort(t *testing.T, w *fixture, client *fake.Clientset) {
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
	if _, body, header := w.get(url); header.Get("X-Load-Balancing-Endpoint-Weight") != "0" ||
		!strings.Contains(body, `"localEndpoints":0`) {
		t.Errorf("no ready endpoint: %s %v", body, header)
	}
}

// testHealth lets the autoscaler mark the node: load balancers must turn
// away, and no one may restart the proxy.
func testHealth(t *testing.T, w *fixture, client *fake.Clientset, node *corev1.Node) {
	code, body, _ := w.get("http://127.0.0.1:10256/healthz")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || got["healthy"] != true || got["nodeEligible"] != true ||
		got["status"] == nil {
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

func testMetrics(t *testing.T, w *fixture) {
	if _, body, _ := w.get("http://127.0.0.1:10249/proxyMode"); body != "nftables" {
		t.Errorf("proxyMode: %s", body)
	}
	if code, body, _ := w.get("http://127.0.0.1:10249/configz"); code != 200 || !strings.Contains(body, "kubeproxy.config.k8s.io") {
		t.Errorf("configz: %d %s", code, body)
	}
	if code, body, _ := w.get("http://127.0.0.1:10249/healthz"); code != 200 || body != "ok" {
		t.Errorf("healthz beside the metrics: %d %s", code, body)
	}
	for path, want := range map[string]string{"/metrics/slis": `kubernetes_healthcheck{name="ping",type="healthz"} 1`,
		"/flagz": "10.244.0.0/16", "/statusz": "kube-proxy statusz"} {
		if code, body, _ := w.get("http://127.0.0.1:10249" + path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, lacks %q:\n%s", path, code, want, body)
		}
	}
	if code, _, _ := w.get("http://127.0.0.1:10249/debug/pprof/"); code != 404 {
		t.Errorf("profiles are served without enableProfiling: %d", code)
	}
	_, body, _ := w.get("http://127.0.0.1:10249/metrics")
	for _, name := range []string{"sync_proxy_rules_duration_seconds_count", "sync_full_proxy_rules_duration_seconds_count",
		"sync_partial_proxy_rules_duration_seconds_count", "sync_proxy_rules_last_timestamp_seconds",
		"sync_proxy_rules_nftables_cleanup_failures_total", `conntrack_reconciler_deleted_entries_total{ip_family="IPv4"}`,
		`conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"}`,
		`network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"}`,
		`network_programming_duration_seconds_bucket{ip_family="IPv4",le="59"}`,
		`network_programming_duration_seconds_bucket{ip_family="IPv4",le="115"}`,
		`network_programming_duration_seconds_bucket{ip_family="IPv4",le="300"}`,
		`sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"}`,
		`sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"}`,
		`sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"}`,
		"sync_proxy_rules_last_queued_timestamp_seconds", "sync_proxy_rules_endpoint_changes_pending",
		"sync_proxy_rules_endpoint_changes_total", "sync_proxy_rules_service_changes_pending",
		"sync_proxy_rules_service_changes_total", "sync_proxy_rules_no_local_endpoints_total",
		"sync_proxy_rules_nftables_sync_failures_total", `proxy_healthz_total{code="503"}`, `proxy_livez_total{code="200"}`} {
		if !strings.Contains(body, "kubeproxy_"+name) {
			t.Errorf("the metrics lack %s", name)
		}
	}
}

// testPortTaken has another party on the health check port of a Service: an
// Event tells it, and the port is opened once it is free.
func testPortTaken(t *testing.T, w *fixture, client *fake.Clientset) {
	var other net.Listener
	w.must(netnstest.In(w.node, func() (err error) { other, err = net.Listen("tcp", "192.0.2.10:32002"); return err }))
	defer other.Close()
	clash := svc("clash", "10.96.0.10", 80, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer,
			corev1.ServiceExternalTrafficPolicyLocal, 32002
	})
	if _, err := client.CoreV1().Services("ns").Create(t.Context(), clash, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	find := func(ns, reason string) (out eventsv1.Event) {
		w.until("the event "+reason, func() bool {
			list, err := client.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{})
			w.must(err)
			for _, e := range list.Items {
				if e.Reason == reason {
					out = e
					return true
				}
			}
			return false
		})
		return out
	}
	e := find("ns", "FailedToStartServiceHealthcheck")
	if e.Type != corev1.EventTypeWarning || e.Regarding.Kind != "Service" || e.Regarding.Name != "clash" ||
		e.ReportingController != "kube-proxy" ||
		!strings.Contains(e.Note, nodeName) || !strings.Contains(e.Note, "32002") || !strings.Contains(e.Note, "address already in use") {
		t.Errorf("the event of a taken port: %+v", e)
	}
	if e := find("default", "Starting"); e.Type != corev1.EventTypeNormal || e.Action != "StartKubeProxy" || e.Regarding.Kind != "Node" ||
		e.Regarding.Name != nodeName {
		t.Errorf("the event of the start: %+v", e)
	}
	w.must(other.Close())
	w.until("the port, once it is free", func() bool { code, _, _ := w.get("http://192.0.2.10:32002/"); return code == 503 })
}

// testLatency changes an endpoint and says when: the time until it is in the
// kernel is measured, but not for what happened before the proxy's start.
func testLatency(t *testing.T, w *fixture, client *fake.Clientset) {
	const count = `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} `
	for i, at := range []time.Time{time.Now().Add(-time.Hour), time.Now()} {
		s := slice("a", fmt.Sprintf("10.244.0.%d", 11+i))
		s.ResourceVersion = fmt.Sprint(10 + i)
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
		if _, err := client.DiscoveryV1().EndpointSlices("ns").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.until("the next endpoint", func() bool { return w.ask(w.pods[0], "tcp4", "10.96.0.1:80")[:1] == fmt.Sprint(1+i) })
		if i == 0 {
			if _, body, _ := w.get("http://127.0.0.1:10249/metrics"); strings.Contains(body, count) {
				t.Error("what happened before the start is counted")
			}
		}
	}
	w.until("the programming latency", func() bool {
		_, body, _ := w.get("http://127.0.0.1:10249/metrics")
		return strings.Contains(body, count+"1\n")
	})
}

// TestHealthPerFamily goes through the life of a family that cannot be
// written: it is late from twice the sync period on, and alone.
func TestHealthPerFamily(t *testing.T) {
	now := time.Now()
	r := &runner{does: []model.Family{model.V4, model.V6}, oldest: map[model.Family]time.Time{}, metrics: newMetrics(nil),
		wake: make(chan struct{}, 1)}
	r.cfg.defaults()
	r.late(now.Add(-time.Hour))
	if b, _ := r.health(now); !b.Healthy {
		t.Errorf("unhealthy while it starts: %+v", b)
	}
	r.began = true
	delete(r.oldest, model.V6)
	r.oldest[model.V4] = now.Add(-time.Minute + 1)
	if b, _ := r.health(now); !b.Healthy || !b.LastUpdated.Equal(now) {
		t.Errorf("just before it is late: %+v", b)
	}
	b, ok := r.health(now.Add(1))
	if b.Healthy || ok || b.Status["IPv4"].Healthy || !b.Status["IPv6"].Healthy || !b.LastUpdated.Equal(r.oldest[model.V4]) ||
		!b.Status["IPv6"].LastUpdated.Equal(now.Add(1)) {
		t.Errorf("late: %+v", b)
	}
	r.cfg.Config.NFTables.SyncPeriod.Duration = time.Hour
	if b, _ := r.health(now.Add(1)); !b.Healthy {
		t.Errorf("late for another sync period: %+v", b)
	}
}

// TestLateFamily fails the writes of one family only.
func TestLateFamily(t *testing.T) {
	broken := nft.NewFake()
	broken.Fail = func(*nft.Tx) error { return syscall.ENOMEM }
	r := &runner{does: []model.Family{model.V4, model.V6}, oldest: map[model.Family]time.Time{}, metrics: newMetrics(nil),
		wake: make(chan struct{}, 1)}
	r.cfg.defaults()
	r.checks = newHealthChecks(r)
	r.families = []*writer{planOf(model.V4).writer(broken), planOf(model.V6).writer(nft.NewFake())}
	r.push(otherChange, func(*writer) {})
	if err := r.step(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("step: %v", err)
	}
	if r.oldest[model.V4].IsZero() || !r.oldest[model.V6].IsZero() {
		t.Errorf("what is late: %v", r.oldest)
	}
	broken.Fail = nil
	if err := r.step(); err != nil || len(r.oldest) > 0 {
		t.Errorf("after the repair: %v, late %v", err, r.oldest)
	}
}

// TestEligible covers why load balancers turn away from a node.
func TestEligible(t *testing.T) {
	node := func(edit func(*corev1.Node)) *corev1.Node {
		n := planOf(model.V4).nodeObject()
		edit(n)
		return n
	}
	for name, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"a node":  {node(func(*corev1.Node) {}), true},
		"no node": {nil, false},
		"deleted": {node(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), false},
		"to go": {node(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: corev1.TaintEffectNoSchedule}}
		}), false},
		"other taints": {node(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		}), true},
	} {
		if got := eligible(c.node); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestBusyPort checks both answers to an address that is taken.
func TestBusyPort(t *testing.T) {
	w := newFixture(t)
	client := fake.NewClientset()
	for _, hard := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		synced := make(chan struct{})
		ended := make(chan error, 1)
		cfg := Config{NodeName: nodeName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Instance: "berth-busy",
			Synced: func() { close(synced) }}
		cfg.defaults()
		cfg.Config.BindAddressHardFail = hard
		cfg.HealthzBind = "203.0.113.77:10256" // no address of this host
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
