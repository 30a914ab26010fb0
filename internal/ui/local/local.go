// Package local serves the status page of an API server on the loopback address
// of this host, with the credentials of a kubeconfig, to one browser.
//
// Anyone on the host can connect to a loopback address, and any page in the
// browser can send it requests. So a request needs a cookie, which is had once,
// for a token that only the user is told; it must name the proxy's own address
// as its host (else a foreign name that resolves to 127.0.0.1 would do), and
// must not come from another page. Only the status page is passed on, and only
// reading it.
package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

//go:embed assets/login.html
var loginPage []byte

//go:embed assets/login.js
var loginScript []byte

// prefix is where an API server of berth serves the page.
const prefix = "/ui/"

const (
	headerTimeout = 10 * time.Second
	// maxForm bounds what the login reads.
	maxForm = 4 << 10
)

// proxy is one running proxy.
type proxy struct {
	listener net.Listener
	upstream *httputil.ReverseProxy
	log      *slog.Logger
	hosts    []string // that requests may name
	cookie   string   // its name

	mu      sync.Mutex
	token   string // "" once it is used
	session [sha256.Size]byte
	entered chan struct{}
}

// New listens on a port of the loopback address; 0 is any that is free.
func New(cfg *rest.Config, port int, log *slog.Logger) (*proxy, error) {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // the stream of updates has no end
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	if err != nil {
		return nil, fmt.Errorf("listening for the browser: %w (--port names another port)", err)
	}
	at := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	p := &proxy{listener: l, log: log, hosts: []string{"127.0.0.1:" + at, "localhost:" + at}, cookie: "berth-ui-" + at,
		token: secret(), entered: make(chan struct{})}
	p.upstream = &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			// The browser's own headers say nothing that the API server needs, and
			// must not say who asks.
			accept := r.In.Header.Get("Accept")
			r.Out.Header = http.Header{"Accept": {accept}, "User-Agent": {"berth-ui"}}
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Set-Cookie")
			return explain(r)
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				log.Warn("the status page cannot be had", "err", err)
			}
			http.Error(w, "the status page cannot be had: "+err.Error(), http.StatusBadGateway)
		},
	}
	return p, nil
}

// secret is 256 random bits as text.
func secret() string {
	b := make([]byte, 32)
	rand.Read(b) //nolint:errcheck // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// Address is where to go with a browser. The token stands behind "#": browsers
// do not send that part, so it is in no server's log.
func (p *proxy) Address() string { return "http://" + p.hosts[0] + "/#token=" + p.token }

// Entered is closed when the token was used.
func (p *proxy) Entered() <-chan struct{} { return p.entered }

// Run serves until ctx ends.
func (p *proxy) Run(ctx context.Context) error {
	srv := &http.Server{Handler: p, ReadHeaderTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !p.ownHost(r.Host):
		http.Error(w, "this address serves "+p.hosts[0]+" only", http.StatusMisdirectedRequest)
	case !p.ownOrigin(r):
		http.Error(w, "requests of other pages are refused", http.StatusForbidden)
	case r.URL.Path == "/login" && r.Method == http.MethodPost:
		p.login(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "the status page is only read", http.StatusMethodNotAllowed)
	case r.URL.Path == "/login.js":
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		w.Write(loginScript) //nolint:errcheck // a client that left is no concern
	case r.URL.Path == "/favicon.ico":
		w.WriteHeader(http.StatusNoContent)
	case !p.known(r):
		p.ask(w, r)
	case r.URL.Path == "/":
		http.Redirect(w, r, prefix, http.StatusSeeOther)
	case !belowPrefix(r.URL):
		http.NotFound(w, r)
	default:
		p.upstream.ServeHTTP(w, r)
	}
}

// belowPrefix refuses paths that lead elsewhere, such as /ui/%2e%2e/api: one that
// is written in another way than it reads, or has parts to leave out.
func belowPrefix(u *url.URL) bool {
	return u.RawPath == "" && strings.HasPrefix(u.Path, prefix) && path.Clean(u.Path) == strings.TrimSuffix(u.Path, "/")
}

// ownHost refuses names that someone else let resolve to this address.
func (p *proxy) ownHost(host string) bool {
	for _, h := range p.hosts {
		if host == h {
			return true
		}
	}
	return false
}

// ownOrigin refuses what other pages send. Browsers say where a request comes
// from; a request of no page comes from the user.
func (p *proxy) ownOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err == nil && u.Scheme == "http" && u.Host == r.Host
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	// A link from elsewhere may open the login, which shows nothing.
	return r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate"
}

// known says whether the request has the session's cookie.
func (p *proxy) known(r *http.Request) bool {
	c, err := r.Cookie(p.cookie)
	if err != nil || c.Value == "" {
		return false
	}
	sum := sha256.Sum256([]byte(c.Value))
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.token == "" && subtle.ConstantTimeCompare(sum[:], p.session[:]) == 1
}

// ask shows the login to a browser that opens the first page, and refuses the rest.
func (p *proxy) ask(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.Error(w, "open the address that `berth ui` printed", http.StatusUnauthorized)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "+
		"frame-ancestors 'none'")
	// With no-referrer browsers would send "Origin: null" with the form.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.Write(loginPage) //nolint:errcheck // a client that left is no concern
}

// login exchanges the token, once, for a cookie.
func (p *proxy) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	given := r.PostFormValue("token")
	session := secret()
	p.mu.Lock()
	right := p.token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(p.token)) == 1
	if right {
		p.token, p.session = "", sha256.Sum256([]byte(session))
		close(p.entered)
	}
	p.mu.Unlock()
	if !right {
		p.log.Warn("refused a login to the status page: wrong or used token")
		http.Error(w, "the token is wrong or was used; run `berth ui` again", http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: p.cookie, Value: session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, prefix, http.StatusSeeOther)
}

// explain turns answers that a browser could not use into words.
func explain(r *http.Response) error {
	switch {
	case r.StatusCode == http.StatusNotFound && r.Header.Get("Content-Security-Policy") == "":
		return errors.New("the API server has none at " + prefix + ": it is not berth's")
	case r.StatusCode == http.StatusForbidden && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
		return errors.New("your user may not get " + prefix + "; ClusterRole berth:status-page allows it")
	}
	return nil
}
