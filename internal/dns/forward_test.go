package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// upstream is a server that answers as told, over UDP and TCP on one port.
type upstream struct {
	addr     string
	udp, tcp atomic.Int32
}

func newUpstream(t *testing.T, answer func(m *mdns.Msg, tcp bool)) *upstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{addr: l.Addr().String()}
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, r *mdns.Msg) {
		_, tcp := w.RemoteAddr().(*net.TCPAddr)
		if tcp {
			u.tcp.Add(1)
		} else {
			u.udp.Add(1)
		}
		m := new(mdns.Msg).SetReply(r)
		answer(m, tcp)
		w.WriteMsg(m) //nolint:errcheck // the asker notices
	})
	for _, s := range []*mdns.Server{{Listener: l, Handler: handler}, {PacketConn: p, Handler: handler}} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.ActivateAndServe()
		}()
		t.Cleanup(func() { l.Close(); p.Close(); <-done })
	}
	return u
}

func newTestForwarder(t *testing.T, servers ...*upstream) *forwarder {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	f := newForwarder("", func(string) bool { return false }, slog.New(slog.DiscardHandler), m)
	for _, s := range servers {
		f.conf.servers = append(f.conf.servers, s.addr)
	}
	return f
}

func good(m *mdns.Msg, _ bool) {
	m.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: m.Question[0].Name, Rrtype: mdns.TypeA, Class: 1, Ttl: 60},
		A: net.IPv4(192, 0, 2, 7)}}
}

func ask(t *testing.T, f *forwarder, name string) *mdns.Msg {
	t.Helper()
	m, err := f.resolve(t.Context(), question{name: name, kind: mdns.TypeA, class: mdns.ClassINET})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestForwardFailsOver(t *testing.T) {
	for name, bad := range map[string]func(*mdns.Msg, bool){
		"SERVFAIL":         func(m *mdns.Msg, _ bool) { m.Rcode = mdns.RcodeServerFailure },
		"REFUSED":          func(m *mdns.Msg, _ bool) { m.Rcode = mdns.RcodeRefused },
		"another question": func(m *mdns.Msg, _ bool) { m.Question[0].Name = "other." },
	} {
		t.Run(name, func(t *testing.T) {
			ill, well := newUpstream(t, bad), newUpstream(t, good)
			f := newTestForwarder(t, ill, well)
			for i := range 3 {
				if m := ask(t, f, fmt.Sprintf("n%d.example.", i)); len(m.Answer) != 1 {
					t.Fatalf("got %v", m)
				}
			}
			if ill.udp.Load() != 1 || well.udp.Load() != 3 {
				t.Errorf("the ill server was asked %d times, the well one %d: want 1 and 3", ill.udp.Load(), well.udp.Load())
			}
		})
	}
}

func TestForwardTakesWhatDoesNotFitOverTCP(t *testing.T) {
	u := newUpstream(t, func(m *mdns.Msg, tcp bool) {
		if m.Truncated = !tcp; tcp {
			for i := range 100 {
				good(m, tcp)
				m.Answer = append(m.Answer, &mdns.A{Hdr: m.Answer[0].(*mdns.A).Hdr, A: net.IPv4(10, 0, 0, byte(i))})
			}
		}
	})
	if m := ask(t, newTestForwarder(t, u), "big.example."); m.Truncated || len(m.Answer) < 2 || u.tcp.Load() != 1 {
		t.Errorf("truncated %t with %d answers after %d questions over TCP", m.Truncated, len(m.Answer), u.tcp.Load())
	}
}

// TestForwardRemembersThatThereIsNothing: NXDOMAIN and NODATA for as long as
// their SOA says, and not without one.
func TestForwardRemembersThatThereIsNothing(t *testing.T) {
	soa := []mdns.RR{&mdns.SOA{Hdr: mdns.RR_Header{Name: "example.", Rrtype: mdns.TypeSOA, Class: 1, Ttl: 300}, Ns: "ns.example.",
		Mbox: "m.example.", Minttl: 20}}
	for name, tc := range map[string]struct {
		rcode int
		ns    []mdns.RR
		asked int32
	}{"NXDOMAIN": {mdns.RcodeNameError, soa, 1}, "NODATA": {mdns.RcodeSuccess, soa, 1}, "NXDOMAIN without SOA": {mdns.RcodeNameError, nil,
		2}} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, func(m *mdns.Msg, _ bool) { m.Rcode, m.Ns = tc.rcode, tc.ns })
			f := newTestForwarder(t, u)
			for range 2 {
				if m := ask(t, f, "none.example."); m.Rcode != tc.rcode || len(m.Answer) > 0 {
					t.Errorf("got %v", m)
				}
			}
			if u.udp.Load() != tc.asked {
				t.Errorf("asked %d times, want %d", u.udp.Load(), tc.asked)
			}
		})
	}
}

func TestResolvConfIsReadAgain(t *testing.T) {
	f := newTestForwarder(t)
	f.path = filepath.Join(t.TempDir(), "resolv.conf")
	now := time.Unix(1000, 0)
	f.look(now)
	write := func(text string, stamp int64) {
		t.Helper()
		if err := os.WriteFile(f.path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(f.path, time.Unix(stamp, 0), time.Unix(stamp, 0)); err != nil {
			t.Fatal(err)
		}
	}
	step := func(after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		if f.look(now); !slices.Equal(f.conf.servers, want) {
			t.Errorf("servers %v, want %v", f.conf.servers, want)
		}
	}
	write("nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch x\n", 1)
	step(reread, "192.0.2.1:53", "[2001:db8::1]:53")
	f.failed["192.0.2.1:53"] = now
	write("nameserver 192.0.2.2\n", 2)
	step(reread-1, "192.0.2.1:53", "[2001:db8::1]:53")
	step(1, "192.0.2.2:53")
	if len(f.failed) > 0 {
		t.Error("old failures are held against new servers")
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	step(reread, "192.0.2.2:53") // being replaced
}

// FuzzWire gives the server any bytes that parse as a message: it must answer
// with a message that parses, to the same question, without waiting.
func FuzzWire(f *testing.F) {
	for _, q := range []string{"web.default.svc.cluster.local.", "_http._tcp.db.default.svc.cluster.local.", "5.0.244.10.in-addr.arpa.",
		"alias.default.svc.cluster.local."} {
		for _, kind := range []uint16{mdns.TypeA, mdns.TypeSRV, mdns.TypePTR, mdns.TypeANY} {
			b, err := new(mdns.Msg).SetQuestion(q, kind).SetEdns0(1232, true).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		f.Fatal(err)
	}
	s := &server{ctx: context.Background(), records: &known{records: example(), ready: true}, metrics: m,
		log: slog.New(slog.DiscardHandler), now: time.Now,
		forward: newForwarder("", func(string) bool { return false }, slog.New(slog.DiscardHandler), m)}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := new(mdns.Msg)
		if req.Unpack(b) != nil {
			return
		}
		resp := s.reply(t.Context(), req)
		resp.Compress = true
		resp.Truncate(limit("udp", req))
		out, err := resp.Pack()
		if err != nil {
			t.Fatalf("answering %v: %v", req, err)
		}
		back := new(mdns.Msg)
		if err := back.Unpack(out); err != nil || !back.Response || back.Id != req.Id {
			t.Fatalf("answering %v with %v: %v", req, back, err)
		}
		if len(out) > maxUDP {
			t.Errorf("an answer over UDP has %d bytes", len(out))
		}
		if len(req.Question) == 1 && (len(back.Question) != 1 || back.Question[0] != req.Question[0]) {
			t.Errorf("answered %v, asked %v", back.Question, req.Question)
		}
	})
}
