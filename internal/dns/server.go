package dns

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	mdns "github.com/miekg/dns"
)

// server answers wire questions: from the records if the name is the
// cluster's, else from upstream.
type server struct {
	ctx     context.Context
	records *known
	forward *forwarder
	metrics *metrics
	log     *slog.Logger
	now     func() time.Time
	clients []netip.Prefix
	isNode  func(netip.Addr) bool
	wg      sync.WaitGroup
}

// ServeDNS answers one message. It is called on a goroutine of its own.
func (s *server) ServeDNS(w mdns.ResponseWriter, req *mdns.Msg) {
	s.wg.Add(1)
	defer s.wg.Done()
	began := s.now()
	proto := "udp"
	if _, ok := w.RemoteAddr().(*net.TCPAddr); ok {
		proto = "tcp"
	}
	var resp *mdns.Msg
	if s.serves(w.RemoteAddr()) {
		resp = s.reply(s.ctx, req)
	} else {
		resp = new(mdns.Msg).SetRcode(req, mdns.RcodeRefused)
	}
	resp.Compress = true
	resp.Truncate(limit(proto, req))
	s.metrics.served(proto, req, resp, s.now().Sub(began))
	if err := w.WriteMsg(resp); err != nil {
		s.log.Debug("answering a DNS question", "client", w.RemoteAddr(), "err", err)
	}
}

// serves says whether a client may ask.
func (s *server) serves(client net.Addr) bool {
	if len(s.clients) == 0 {
		return true
	}
	from, err := netip.ParseAddrPort(client.String())
	if err != nil {
		return false
	}
	ip := from.Addr().Unmap()
	return slices.ContainsFunc(s.clients, func(p netip.Prefix) bool { return p.Contains(ip) }) || s.isNode(ip)
}

// limit is the size an answer may have.
func limit(proto string, req *mdns.Msg) int {
	if proto == "tcp" {
		return mdns.MaxMsgSize
	}
	if opt := req.IsEdns0(); opt != nil {
		return min(max(int(opt.UDPSize()), mdns.MinMsgSize), maxUDP)
	}
	return mdns.MinMsgSize
}

// reply makes the whole answer to a message.
func (s *server) reply(ctx context.Context, req *mdns.Msg) *mdns.Msg {
	resp := new(mdns.Msg)
	resp.SetReply(req)
	resp.RecursionAvailable = true
	opt := req.IsEdns0()
	defer func() {
		if opt != nil {
			resp.SetEdns0(maxUDP, opt.Do())
			if resp.Rcode > 0xF {
				resp.IsEdns0().SetExtendedRcode(uint16(resp.Rcode))
			}
		}
	}()
	switch {
	case req.Opcode != mdns.OpcodeQuery:
		resp.Rcode = mdns.RcodeNotImplemented
		return resp
	case len(req.Question) != 1:
		resp.Rcode = mdns.RcodeFormatError
		return resp
	case opt != nil && opt.Version() != 0:
		resp.Rcode = mdns.RcodeBadVers
		return resp
	}
	q := req.Question[0]
	switch {
	case q.Qclass != mdns.ClassINET, q.Qtype == mdns.TypeAXFR, q.Qtype == mdns.TypeIXFR:
		resp.Rcode = mdns.RcodeRefused
		return resp
	case q.Qtype == mdns.TypeANY:
		// RFC 8482: a server need not gather everything it knows.
		resp.Answer = []mdns.RR{&mdns.HINFO{Hdr: header(q.Name, mdns.TypeHINFO), Cpu: "RFC8482"}}
		return resp
	}
	got, ready := s.records.answer(q)
	if !ready && (got.Mine || mdns.IsSubDomain(s.records.zone(), mdns.CanonicalName(q.Name))) {
		// Half-known records must not say that a name does not exist.
		resp.Rcode = mdns.RcodeServerFailure
		return resp
	}
	if !got.Mine {
		s.upstream(ctx, req, resp, q.Name)
		return resp
	}
	shuffle(got.Answer)
	resp.Authoritative = true
	resp.Rcode, resp.Answer, resp.Ns, resp.Extra = got.Rcode, got.Answer, got.Ns, got.Extra
	if got.Chase != "" {
		s.upstream(ctx, req, resp, got.Chase)
	}
	return resp
}

// upstream adds what the node's servers say of name to resp.
func (s *server) upstream(ctx context.Context, req, resp *mdns.Msg, name string) {
	if !req.RecursionDesired && len(resp.Answer) == 0 {
		resp.Rcode = mdns.RcodeRefused
		return
	}
	opt := req.IsEdns0()
	q := req.Question[0]
	msg, err := s.forward.resolve(ctx, question{
		name: mdns.CanonicalName(name), kind: q.Qtype, class: q.Qclass,
		dnssec: opt != nil && opt.Do(), checking: req.CheckingDisabled,
	})
	if err != nil {
		s.log.Debug("forwarding a DNS question", "name", name, "err", err)
		resp.Rcode = mdns.RcodeServerFailure
		return
	}
	resp.Rcode = msg.Rcode & 0xF
	resp.AuthenticatedData = msg.AuthenticatedData && len(resp.Answer) == 0
	resp.Answer = append(resp.Answer, respell(msg.Answer, mdns.CanonicalName(name), name)...)
	resp.Ns = msg.Ns
	for _, rr := range msg.Extra {
		if rr.Header().Rrtype != mdns.TypeOPT {
			resp.Extra = append(resp.Extra, rr)
		}
	}
}

// respell gives records the letter case of the question: clients that mix it
// at random (0x20) compare.
func respell(rrs []mdns.RR, canonical, asked string) []mdns.RR {
	if canonical == asked {
		return rrs
	}
	for _, rr := range rrs {
		if mdns.CanonicalName(rr.Header().Name) == canonical {
			rr.Header().Name = asked
		}
	}
	return rrs
}

// shuffle spreads clients that take the first address over all of them. What
// starts with a CNAME keeps its order.
func shuffle(rrs []mdns.RR) {
	if len(rrs) < 2 || rrs[0].Header().Rrtype == mdns.TypeCNAME {
		return
	}
	rand.Shuffle(len(rrs), func(i, j int) { rrs[i], rrs[j] = rrs[j], rrs[i] })
}
