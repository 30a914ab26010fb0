package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
)

const (
	// attempt and overall bound one try and all tries of a forwarded question.
	// A stub resolver gives up after five seconds.
	attempt = 1500 * time.Millisecond
	overall = 4500 * time.Millisecond
	// sulk is how long a server that failed is asked last.
	sulk = 10 * time.Second
	// reread is how old the look at resolv.conf may be when a question comes.
	reread = 5 * time.Second
	// maxForwards bounds questions in flight; more are refused by SERVFAIL.
	maxForwards = 1000
	// maxUDP is the largest answer sent and asked for over UDP: what passes
	// every link unfragmented (DNS flag day 2020).
	maxUDP = 1232
)

var (
	errNoUpstream = errors.New("no upstream server: resolv.conf names none other than the cluster's own DNS")
	errBusy       = errors.New("too many questions in flight")
)

// forwarder asks the node's servers and remembers what they say.
type forwarder struct {
	path    string
	isSelf  func(host string) bool
	log     *slog.Logger
	metrics *metrics
	slots   chan struct{}
	flights singleflight.Group

	mu     sync.Mutex
	cache  *answers
	conf   conf
	failed map[string]time.Time
}

// conf is what was last read from resolv.conf.
type conf struct {
	servers []string // host:port
	looked  time.Time
	stamp   time.Time
	size    int64
}

func newForwarder(path string, isSelf func(string) bool, log *slog.Logger, m *metrics) *forwarder {
	return &forwarder{path: path, isSelf: isSelf, log: log, metrics: m, slots: make(chan struct{}, maxForwards),
		cache: newAnswers(cacheEntries), failed: map[string]time.Time{}}
}

// resolve answers q from the cache or an upstream. The message is the
// caller's own; only its rcode, sections and AuthenticatedData mean anything.
func (f *forwarder) resolve(ctx context.Context, q question) (*mdns.Msg, error) {
	f.mu.Lock()
	old, fresh := f.cache.get(time.Now(), q)
	f.mu.Unlock()
	if fresh {
		f.metrics.cacheHits.Inc()
		return old, nil
	}
	f.metrics.cacheMisses.Inc()
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil, errBusy
	}
	// Those who ask the same at once share one question. It does not end with
	// the first asker, but with the server.
	shared, err, _ := f.flights.Do(fmt.Sprintf("%v", q), func() (any, error) { return f.ask(ctx, q) })
	if err == nil {
		return shared.(*mdns.Msg).Copy(), nil
	}
	f.metrics.forwardFailures.Inc()
	if old != nil {
		f.metrics.servedStale.Inc()
		return old, nil
	}
	return nil, err
}

// ask tries the servers in turn until one answers.
func (f *forwarder) ask(ctx context.Context, q question) (*mdns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, overall)
	defer cancel()
	servers, err := f.servers(time.Now())
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, server := range servers {
		msg, err := f.exchange(ctx, server, q)
		f.mu.Lock()
		if err != nil {
			f.failed[server] = time.Now()
		} else {
			delete(f.failed, server)
			f.cache.put(time.Now(), q, msg.Copy())
			f.metrics.cacheEntries.Set(float64(len(f.cache.entries)))
		}
		f.mu.Unlock()
		if err == nil {
			return msg, nil
		}
		failures = append(failures, fmt.Errorf("asking %s: %w", server, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(failures...)
}

// exchange asks one server, over TCP if the answer does not fit.
func (f *forwarder) exchange(ctx context.Context, server string, q question) (*mdns.Msg, error) {
	req := new(mdns.Msg)
	req.Id = mdns.Id()
	req.RecursionDesired = true
	req.CheckingDisabled = q.checking
	req.Question = []mdns.Question{{Name: q.name, Qtype: q.kind, Qclass: q.class}}
	req.SetEdns0(maxUDP, q.dnssec)
	client := &mdns.Client{Timeout: attempt, UDPSize: maxUDP}
	resp, _, err := client.ExchangeContext(ctx, req, server)
	if err == nil && resp.Truncated {
		client.Net = "tcp"
		resp, _, err = client.ExchangeContext(ctx, req, server)
	}
	if err != nil {
		return nil, err
	}
	if !resp.Response || len(resp.Question) != 1 || !strings.EqualFold(resp.Question[0].Name, q.name) || resp.Question[0].Qtype != q.kind {
		return nil, errors.New("it answered another question")
	}
	if resp.Rcode == mdns.RcodeServerFailure || resp.Rcode == mdns.RcodeRefused {
		return nil, fmt.Errorf("it answered %s", mdns.RcodeToString[resp.Rcode])
	}
	return resp, nil
}

// servers are the upstreams to try, those that failed lately last.
func (f *forwarder) servers(now time.Time) ([]string, error) {
	f.mu.Lock()
	f.look(now)
	all := f.conf.servers
	var well, ill []string
	for _, s := range all {
		if at, ok := f.failed[s]; ok && now.Sub(at) < sulk {
			ill = append(ill, s)
		} else {
			well = append(well, s)
		}
	}
	f.mu.Unlock()
	var out []string
	for _, s := range append(well, ill...) {
		if host, _, err := net.SplitHostPort(s); err == nil && !f.isSelf(host) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, errNoUpstream
	}
	return out, nil
}

// look reads resolv.conf again if it changed. It is looked at when a question
// needs it, so that an idle server does nothing.
func (f *forwarder) look(now time.Time) {
	if f.path == "" || now.Sub(f.conf.looked) < reread {
		return
	}
	f.conf.looked = now
	st, err := os.Stat(f.path)
	if err != nil {
		// While a network manager replaces it the last servers are right.
		if !errors.Is(err, fs.ErrNotExist) {
			f.log.Warn("looking at the upstream servers", "file", f.path, "err", err)
		}
		return
	}
	if st.ModTime().Equal(f.conf.stamp) && st.Size() == f.conf.size {
		return
	}
	c, err := mdns.ClientConfigFromFile(f.path)
	if err != nil {
		f.log.Warn("reading the upstream servers; keeping those known", "file", f.path, "err", err)
		return
	}
	f.conf.stamp, f.conf.size, f.conf.servers = st.ModTime(), st.Size(), nil
	for _, s := range c.Servers {
		f.conf.servers = append(f.conf.servers, net.JoinHostPort(s, c.Port))
	}
	f.failed = map[string]time.Time{}
	f.log.Info("upstream DNS servers", "servers", f.conf.servers)
}
