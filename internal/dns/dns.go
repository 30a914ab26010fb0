// Package dns is the cluster's DNS server: it answers the cluster domain from
// Services and EndpointSlices, and forwards everything else to the node's own
// servers with a cache.
//
// Records and its Answer are pure: API objects in, resource records out. The
// forwarder, the cache's clock and the sockets are the shell around them.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Config is what the DNS server needs.
type Config struct {
	// Listen are host:port pairs; each is served over UDP and TCP. Port 0
	// takes a free one, the same for both.
	Listen []string
	// Domain is the cluster domain, such as "cluster.local".
	Domain string
	// Informers give Services and EndpointSlices, and Pods with VerifyPods.
	// Run starts those it uses.
	Informers informers.SharedInformerFactory
	// VerifyPods answers 1-2-3-4.ns.pod names only for pods that exist.
	// Without it every well-formed address is answered.
	VerifyPods bool
	// Upstreams is the resolv.conf whose servers get all other questions.
	// Empty: such questions are answered with SERVFAIL.
	Upstreams string
	// Clients are the ranges that are answered, and Nodes answers the nodes
	// of the cluster, too; all others get REFUSED. Empty answers everybody.
	Clients []netip.Prefix
	Nodes   bool
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Ready, if set, is called once, when the sockets are open and the
	// records are known, with the addresses listened on (UDP and TCP share
	// them), in the order of Listen.
	Ready func(addrs []string)
}

func (c *Config) complete() error {
	if len(c.Listen) == 0 {
		return errors.New("configuring DNS: Listen is empty; at least one host:port is needed")
	}
	if _, ok := mdns.IsDomainName(c.Domain); !ok || c.Domain == "" || c.Domain == "." {
		return fmt.Errorf("configuring DNS: Domain %q: not a domain name such as cluster.local", c.Domain)
	}
	if c.Informers == nil {
		return errors.New("configuring DNS: Informers is missing")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	return nil
}

// Run serves DNS until ctx ends. Until the informers have synced, names of the
// cluster get SERVFAIL and all others are forwarded already. When the API
// server goes away, what the informers last saw goes on being served.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return fmt.Errorf("registering DNS metrics: %w", err)
	}
	known := &known{records: newRecords(cfg.Domain, cfg.VerifyPods)}
	s := &server{
		records: known, metrics: m, log: cfg.Log, now: time.Now, clients: cfg.Clients, isNode: func(netip.Addr) bool { return false },
		forward: newForwarder(cfg.Upstreams, known.isSelf, cfg.Log, m),
	}
	if cfg.Nodes {
		s.isNode = nodeAddresses(cfg.Informers)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.ctx = ctx
	sockets, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer sockets.close()
	unwatch, synced, err := watch(cfg.Informers, cfg.VerifyPods, known)
	if err != nil {
		return err
	}
	defer unwatch()
	cfg.Informers.Start(ctx.Done())

	group, ctx := errgroup.WithContext(ctx)
	serving := sockets.serve(group, s)
	group.Go(func() error {
		if !cache.WaitFor(ctx, "", synced...) {
			return nil
		}
		known.setReady()
		for range len(sockets.addrs) * 2 {
			select {
			case <-serving:
			case <-ctx.Done():
				return nil
			}
		}
		cfg.Log.Info("DNS is ready", "addresses", sockets.addrs, "domain", cfg.Domain)
		if cfg.Ready != nil {
			cfg.Ready(sockets.addrs)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		sockets.close()
		return nil
	})
	err = group.Wait()
	s.wg.Wait()
	return err
}

// known guards the records: informers write, questions read.
type known struct {
	mu      sync.RWMutex
	records *records
	ready   bool
}

func (k *known) change(f func(*records)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k.records)
}

func (k *known) setReady() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ready = true
}

// answer asks the records; ready is false while they are not complete.
func (k *known) answer(q mdns.Question) (r reply, ready bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.records.Answer(q), k.ready
}

// zone is the cluster domain with final dot; it never changes.
func (k *known) zone() string { return k.records.zone }

// isSelf says whether a server is this cluster's own DNS: forwarding to it
// would be a loop.
func (k *known) isSelf(host string) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, ip := range k.records.serverIPs() {
		if ip.String() == host {
			return true
		}
	}
	return false
}

// sockets are the open listeners.
type sockets struct {
	addrs []string
	udp   []net.PacketConn
	tcp   []net.Listener
	once  sync.Once
	// servers are told to stop; a socket without one is just closed.
	mu      sync.Mutex
	servers []*mdns.Server
}

func listen(ctx context.Context, addrs []string) (*sockets, error) {
	s := &sockets{}
	var lc net.ListenConfig
	for _, addr := range addrs {
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("listening for DNS over TCP on %s: %w", addr, err)
		}
		s.tcp = append(s.tcp, l)
		// The port may have been 0; UDP follows TCP. The host stays as given,
		// for a wildcard means the same families for both.
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("listening for DNS on %q: %w", addr, err)
		}
		same := net.JoinHostPort(host, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
		p, err := lc.ListenPacket(ctx, "udp", same)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("listening for DNS over UDP on %s: %w", same, err)
		}
		s.udp = append(s.udp, p)
		s.addrs = append(s.addrs, same)
	}
	return s, nil
}

// serve starts a server per socket. Each sends once on the channel it returns
// when it reads.
func (s *sockets) serve(group *errgroup.Group, h mdns.Handler) <-chan struct{} {
	serving := make(chan struct{}, len(s.udp)+len(s.tcp))
	begin := func(srv *mdns.Server) {
		srv.Handler = h
		srv.NotifyStartedFunc = func() { serving <- struct{}{} }
		srv.ReadTimeout, srv.WriteTimeout = 5*time.Second, 5*time.Second
		srv.IdleTimeout = func() time.Duration { return 10 * time.Second }
		srv.UDPSize = maxUDP
		s.mu.Lock()
		s.servers = append(s.servers, srv)
		s.mu.Unlock()
		group.Go(func() error {
			err := srv.ActivateAndServe()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		})
	}
	for i := range s.udp {
		begin(&mdns.Server{PacketConn: s.udp[i]})
		begin(&mdns.Server{Listener: s.tcp[i]})
	}
	return serving
}

// close stops the servers and closes the sockets; calling it again does
// nothing.
func (s *sockets) close() {
	s.once.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, srv := range s.servers {
			// A server that did not get to start returns an error; closing
			// its socket below ends it.
			stop, cancel := context.WithTimeout(context.Background(), time.Second)
			srv.ShutdownContext(stop) //nolint:errcheck // see above
			cancel()
		}
		for _, p := range s.udp {
			p.Close()
		}
		for _, l := range s.tcp {
			l.Close()
		}
	})
}
