// Package reach is how the agent reaches the API server: over one of several
// addresses, with a client certificate that may change meanwhile.
//
// It is one http.RoundTripper. Requests go to the address in use; when that
// one stops answering, another that does takes over within two seconds, and
// stays in use when the first returns: a server that comes back is not run
// over by everybody at once.
package reach

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

const (
	probeEvery = 500 * time.Millisecond
	probeMax   = 700 * time.Millisecond
	dialMax    = 5 * time.Second
)

// Config says where the API server is.
type Config struct {
	Log *slog.Logger
	// Base is a client configuration: its host is the first address, its
	// CA and credentials are used for all.
	Base *rest.Config
	// Servers are further addresses, such as https://10.0.0.2:6443.
	Servers []string
	// Certificate, if set, is asked for the client certificate in every
	// handshake instead of taking Base's.
	Certificate func() *tls.Certificate
	// Spread picks the first address to use by this text, so that a fleet
	// spreads over the servers; empty takes Base's.
	HashKey string
	// Requests, if set, counts the requests; see NewRequests.
	Requests *prometheus.CounterVec
}

// Reach chooses the address. It is safe for concurrent use.
type Reach struct {
	cfg     Config
	tls     *tls.Config
	trigger chan struct{}

	mu      sync.Mutex
	servers []*server
	current int
}

// server is one address with the connections to it.
type server struct {
	url       *url.URL
	dialer    *connrotation.Dialer
	transport *http.Transport
}

// renew forgets the connections; they go on until someone closes them.
func (s *server) renew(r *Reach) {
	s.dialer = connrotation.NewDialer((&net.Dialer{Timeout: dialMax, KeepAlive: 30 * time.Second}).DialContext)
	s.transport = r.newTransport(s.dialer)
}

// New returns a Reach of the addresses.
func New(cfg Config) (*Reach, error) {
	settings, err := rest.TLSConfigFor(cfg.Base)
	if err != nil {
		return nil, fmt.Errorf("setting up TLS to the API server: %w", err)
	}
	if settings == nil {
		settings = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if cfg.Certificate != nil {
		settings.Certificates = nil
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if current := cfg.Certificate(); current != nil {
				return current, nil
			}
			return &tls.Certificate{}, nil
		}
	}
	r := &Reach{cfg: cfg, tls: settings, trigger: make(chan struct{}, 1)}
	for _, address := range append([]string{cfg.Base.Host}, cfg.Servers...) {
		if !strings.Contains(address, "://") {
			address = "https://" + address
		}
		parsed, err := url.Parse(address)
		if err != nil || parsed.Host == "" {
			return nil, fmt.Errorf("reading API server address %q: want https://host:port", address)
		}
		s := &server{url: parsed}
		s.renew(r)
		r.servers = append(r.servers, s)
	}
	if cfg.HashKey != "" {
		hash := fnv.New32a()
		io.WriteString(hash, cfg.HashKey)
		r.current = int(hash.Sum32() % uint32(len(r.servers)))
	}
	return r, nil
}

func (r *Reach) newTransport(dialer *connrotation.Dialer) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSClientConfig:     r.tls.Clone(),
		TLSHandshakeTimeout: dialMax,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  r.cfg.Base.DisableCompression,
	}
}

// Config is the client configuration to use: Base's, over this Reach.
func (r *Reach) Config() *rest.Config {
	out := rest.CopyConfig(r.cfg.Base)
	out.TLSClientConfig = rest.TLSClientConfig{}
	out.Transport = r
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Host = r.servers[0].url.String()
	return out
}

// Current is the host and port in use.
func (r *Reach) Current() string {
	_, base, _ := r.pick()
	return base.Host
}

// Rotate makes new requests use the new client certificate. What runs on the
// old connections (watches above all) ends in its own time.
func (r *Reach) Rotate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.servers {
		old := s.transport
		s.renew(r)
		old.CloseIdleConnections()
	}
}

// pick returns the address in use with its transport.
func (r *Reach) pick() (int, *url.URL, *http.Transport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.servers[r.current]
	return r.current, s.url, s.transport
}

// RoundTrip sends the request to the address in use. If that cannot be reached
// and the request can be sent again, another is tried at once.
func (r *Reach) RoundTrip(req *http.Request) (*http.Response, error) {
	r.count(req)
	for try := 0; ; try++ {
		at, base, transport := r.pick()
		out := req.Clone(req.Context())
		out.URL.Scheme, out.URL.Host, out.Host = base.Scheme, base.Host, base.Host
		if try > 0 && req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, fmt.Errorf("sending the request again: %w", err)
			}
			out.Body = body
		}
		response, err := transport.RoundTrip(out)
		if err == nil && response.StatusCode == http.StatusOK {
			response.Body = &cuttable{ReadCloser: response.Body, log: r.cfg.Log}
		}
		if err == nil || req.Context().Err() != nil {
			return response, err
		}
		if len(r.servers) == 1 || try+1 >= len(r.servers) || !repeatable(req, err) {
			r.suspect()
			return nil, err
		}
		r.leave(at, err)
	}
}

// cuttable is an answer that may be cut off. However that happens it reads as
// an unexpected end: a watch then goes on where it was, while any other error
// makes clients list everything again.
type cuttable struct {
	io.ReadCloser
	log *slog.Logger
}

// Read implements io.Reader.
func (c *cuttable) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if err == nil || err == io.EOF || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return n, err
	}
	c.log.Debug("an answer of the API server was cut off", "err", err)
	return n, io.ErrUnexpectedEOF
}

// repeatable tells whether a request can be sent again: it was not sent, or
// sending it twice does no harm.
func repeatable(req *http.Request, err error) bool {
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		return false
	}
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Op == "dial" {
		return true
	}
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// CloseIdleConnections closes connections without requests on all addresses.
func (r *Reach) CloseIdleConnections() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.servers {
		s.transport.CloseIdleConnections()
	}
}

// leave moves on from an address that failed, unless that has happened.
func (r *Reach) leave(from int, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == from {
		r.moveTo((from+1)%len(r.servers), cause)
	}
}

// moveTo cuts what still hangs on the old address, so that watches go on at
// the new one where they were; r.mu is held.
func (r *Reach) moveTo(to int, cause error) {
	old := r.servers[r.current]
	r.cfg.Log.Warn("changing to another API server", "from", old.url.Host, "to", r.servers[to].url.Host, "err", cause)
	r.current = to
	dialer := old.dialer
	old.transport.CloseIdleConnections()
	old.renew(r)
	dialer.CloseAll()
}

func (r *Reach) suspect() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}

// Run watches over the address in use until the context ends. With one address
// there is nothing to do.
func (r *Reach) Run(ctx context.Context) error {
	if len(r.servers) == 1 {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.trigger:
		}
		at, _, _ := r.pick()
		if err := r.probe(ctx, at); err != nil && ctx.Err() == nil {
			r.replace(ctx, at, err)
		}
	}
}

// probe asks one address whether it is ready to serve.
func (r *Reach) probe(ctx context.Context, at int) error {
	r.mu.Lock()
	base, transport := r.servers[at].url, r.servers[at].transport
	r.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	req, err := http.NewRequestWithContext(asking, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if response.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("%s answers %s", base.Host, response.Status)
	}
	return nil
}

// replace changes to the first other address that answers; with none the
// present one stays.
func (r *Reach) replace(ctx context.Context, from int, cause error) {
	healthy := make(chan int, len(r.servers))
	var wg sync.WaitGroup
	for at := range r.servers {
		if at == from {
			continue
		}
		wg.Go(func() {
			if r.probe(ctx, at) == nil {
				healthy <- at
			}
		})
	}
	go func() {
		wg.Wait()
		close(healthy)
	}()
	to, ok := <-healthy
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == from {
		r.moveTo(to, cause)
	}
}
