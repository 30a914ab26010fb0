package dns

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"go.uber.org/goleak"
)

// TestRun asks over real sockets, UDP and TCP, and ends without a goroutine
// left.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	client := fake.NewClientset(svc("default", "db", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone}))
	var many []string
	for i := range 200 {
		many = append(many, net.IPv4(10, 244, 1, byte(i)).String())
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice("default", "db-1", "db", many...),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	ready, ended := make(chan []string, 1), make(chan error, 1)
	empty := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	go func() {
		ended <- Run(ctx, Config{Listen: []string{"127.0.0.1:0"}, Domain: "cluster.local", Informers: factory, Upstreams: empty,
			Ready: func(a []string) { ready <- a }})
	}()
	addr := (<-ready)[0]
	ask := func(network, name string, size uint16) *mdns.Msg {
		t.Helper()
		m := new(mdns.Msg).SetQuestion(name, mdns.TypeA)
		if size > 0 {
			m.SetEdns0(size, false)
		}
		resp, _, err := (&mdns.Client{Net: network, Timeout: 20 * time.Second, UDPSize: 4096}).Exchange(m, addr)
		if err != nil {
			t.Fatalf("%s over %s: %v", name, network, err)
		}
		return resp
	}
	if m := ask("tcp", "db.default.svc.cluster.local.", 0); len(m.Answer) != 200 || m.Truncated || !m.Authoritative {
		t.Errorf("over TCP: %d answers, truncated %t", len(m.Answer), m.Truncated)
	}
	for _, size := range []uint16{0, 4096} {
		m := ask("udp", "db.default.svc.cluster.local.", size)
		m.Compress = true
		if !m.Truncated || m.Len() > limit("udp", new(mdns.Msg).SetEdns0(max(size, 512), false)) {
			t.Errorf("over UDP with size %d: truncated %t, %d bytes", size, m.Truncated, m.Len())
		}
	}
	if m := ask("udp", "none.default.svc.cluster.local.", 0); m.Rcode != mdns.RcodeNameError || len(m.Ns) != 1 {
		t.Errorf("a missing name: %s", m)
	}
	if m := ask("udp", "example.org.", 0); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("without an upstream: %s", m)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCache(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newAnswers(2)
	msg := func(ttl uint32) *mdns.Msg {
		return &mdns.Msg{Answer: []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: "a.", Rrtype: mdns.TypeA, Ttl: ttl}}}}
	}
	c.put(now, question{name: "a."}, msg(60))
	if m, fresh := c.get(now.Add(20*time.Second), question{name: "a."}); !fresh || m.Answer[0].Header().Ttl != 40 {
		t.Errorf("after 20 s: %v fresh %t", m, fresh)
	}
	if m, fresh := c.get(now.Add(60*time.Second), question{name: "a."}); fresh || m.Answer[0].Header().Ttl != staleTTL {
		t.Errorf("at its end: %v fresh %t", m, fresh)
	}
	c.put(now, question{name: "b."}, msg(60))
	c.put(now, question{name: "c."}, msg(60))
	if m, _ := c.get(now, question{name: "a."}); m != nil {
		t.Error("the limit does not hold")
	}
	c.put(now, question{name: "d."}, &mdns.Msg{MsgHdr: mdns.MsgHdr{Rcode: mdns.RcodeNameError}})
	if m, _ := c.get(now, question{name: "d."}); m != nil {
		t.Error("NXDOMAIN without SOA was kept")
	}
	if m, _ := c.get(now.Add(2*time.Hour), question{name: "b."}); m != nil {
		t.Error("an answer outlived its stale time")
	}
}

// TestForward asks a server of our own, then without it.
func TestForward(t *testing.T) {
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	srv := &mdns.Server{PacketConn: p, Handler: mdns.HandlerFunc(func(w mdns.ResponseWriter, r *mdns.Msg) {
		asked++
		m := new(mdns.Msg).SetReply(r)
		m.Answer = addresses(r.Question[0].Name, mdns.TypeA, example().serverIPs())
		w.WriteMsg(m) //nolint:errcheck // the asker notices
	})}
	done := make(chan error, 1)
	go func() { done <- srv.ActivateAndServe() }()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	f := newForwarder("", func(string) bool { return false }, nil, m)
	f.conf.servers = []string{p.LocalAddr().String()}
	q := question{name: "example.org.", kind: mdns.TypeA, class: mdns.ClassINET}
	for range 3 {
		if got, err := f.resolve(t.Context(), q); err != nil || len(got.Answer) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	p.Close()
	<-done
	if asked != 1 {
		t.Errorf("the server was asked %d times, want 1", asked)
	}
	f.cache.entries[q].Value.(*entry).until = time.Now().Add(-time.Minute)
	if got, err := f.resolve(t.Context(), q); err != nil || got.Answer[0].Header().Ttl != staleTTL {
		t.Errorf("stale: %v, %v", got, err)
	}
	f.isSelf = func(string) bool { return true }
	if _, err := f.resolve(t.Context(), question{name: "other."}); !errors.Is(err, errNoUpstream) {
		t.Errorf("a loop: %v", err)
	}
}
