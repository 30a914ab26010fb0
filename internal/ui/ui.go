// Package ui is the status page: it serves the pages of package view over HTTP,
// with the rights of the caller, and keeps open pages up to date.
//
// The handler stands behind the API server's authentication and authorization.
// It reads the shared informers of the process and, with the caller's identity,
// the API; it writes nothing. While nobody looks it does nothing.
package ui

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/ui/view"
)

// Prefix is where the API server serves the page.
const Prefix = "/ui/"

// LivePath is the stream of updates: a request that stays open.
const LivePath = Prefix + "live"

// Config is what the page is made of. Functions that are nil are what this
// server does not know.
type Config struct {
	// Informers are those that the control plane shares. Required.
	Informers informers.SharedInformerFactory
	// Loopback is a client with every right. Requests for a caller carry the
	// caller's identity, so that the API server decides what they may read. Nil:
	// no view reads more than the informers have.
	Loopback   *rest.Config
	Authorizer authorizer.UnconditionalAuthorizer
	// Records are the decisions about an object, oldest first.
	Records func(journal.Ref) []journal.Record
	// Heartbeat, Outlook and Zones are the health controller's.
	Heartbeat func(node string) (time.Time, bool)
	Outlook   func(node string) (journal.Record, bool)
	Zones     func() []view.Zone
	// Parts and Certificates are those of this server.
	Parts        func() []view.Part
	Certificates func() []view.Certificate
	// Rules are what the service proxy of this host programs for a Service.
	Rules func(ctx context.Context, namespace, name string) []string
	// Life ends when the server stops; open streams end with it.
	Life context.Context //nolint:containedctx // requests must end before the server does
	Log  *slog.Logger
}

// pageHandler serves the page below Prefix.
type pageHandler struct {
	cfg     Config
	source  *source
	hub     *hub
	asked   *asked
	sampler *sampler
	mux     *http.ServeMux
}

// New makes the handler. It starts nothing before the first request.
func New(cfg Config) *pageHandler {
	h := &pageHandler{cfg: cfg, source: &source{factory: cfg.Informers, life: cfg.Life}, hub: newHub(), asked: newAsked(cfg.Loopback)}
	h.sampler = newSampler(cfg.Loopback, func() { h.hub.wake(usageChanged, nil) })
	h.mux = http.NewServeMux()
	h.mux.HandleFunc("GET "+LivePath, h.live)
	h.mux.HandleFunc("GET "+Prefix+"assets/{name}", asset)
	h.mux.HandleFunc("GET "+Prefix, h.page)
	return h
}

// ServeHTTP implements http.Handler.
func (h *pageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if u, ok := genericapirequest.UserFrom(r.Context()); !ok || anonymous(u) {
		http.Error(w, "the status page shows what a user may list, and this request has none: send a client certificate or a token, "+
			"or open it with `berth ui`", http.StatusUnauthorized)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// anonymous requests are refused even where a cluster lets them get every path.
func anonymous(u user.Info) bool { return u.GetName() == user.Anonymous }

// secure sets what keeps the page to itself: nothing from elsewhere is loaded,
// nobody frames it, nothing is sent elsewhere.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// page answers a request for a page.
func (h *pageHandler) page(w http.ResponseWriter, r *http.Request) {
	if err := h.source.start(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, Prefix)
	rt, ok := routeOf(path, queryOf(r.URL.Query()))
	if !ok {
		http.NotFound(w, r)
		return
	}
	h.sampler.want(rt.usage)
	out := h.render(r.Context(), rt)
	body, err := layout(rt, out, r)
	if err != nil {
		h.cfg.Log.Error("rendering the status page", "path", r.URL.Path, "err", err)
		http.Error(w, "the page could not be rendered; the server's log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(out.status)
	w.Write(body) //nolint:errcheck // a client that left is no concern
}
