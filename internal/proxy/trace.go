package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/socket"
)

// Tracer answers questions about packets and Services from a proxy that
// runs. It may be asked before and after that, too.
type Tracer struct {
	mu sync.Mutex
	r  *runner
}

// Line is one step of an answer. Kernel says what the kernel's own row shows:
// "held", "missing", or nothing for a step without a row.
type Line struct {
	Text   string `json:"text"`
	Kernel string `json:"kernel,omitempty"`
}

// errNotRunning is the answer before the proxy is synced and after it ends.
var errNotRunning = errors.New("the service proxy does not run (yet)")

func (t *Tracer) attach(r *runner) (detach func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r = r
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.r = nil
	}
}

// in has the proxy's loop run f, which owns the Models meanwhile.
func (t *Tracer) in(ctx context.Context, f func(*runner)) error {
	t.mu.Lock()
	r := t.r
	t.mu.Unlock()
	if r == nil {
		return errNotRunning
	}
	done := make(chan struct{})
	r.ask(func() { f(r); close(done) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errNotRunning
	}
}

// Trace tells where the first packet of a connection goes, and why.
func (t *Tracer) Trace(ctx context.Context, p model.Packet) (lines []Line, err error) {
	failed := t.in(ctx, func(r *runner) {
		for _, w := range r.families {
			if w.layout.Family.Has(p.Destination) {
				lines, err = r.check(w, w.explain(p, r))
				return
			}
		}
		err = fmt.Errorf("tracing a packet to %s: this proxy does not do that address family", p.Destination)
	})
	return lines, errors.Join(err, failed)
}

// Service tells what is programmed for a Service, and because of what.
func (t *Tracer) Service(ctx context.Context, n model.Name) (lines []Line, err error) {
	failed := t.in(ctx, func(r *runner) {
		for _, w := range r.families {
			var more []Line
			if more, err = r.check(w, w.model.Describe(n)); err != nil {
				return
			}
			lines = append(lines, more...)
		}
	})
	return lines, errors.Join(err, failed)
}

// explain adds what the layout knows to what the Model tells.
func (w *writer) explain(p model.Packet, r *runner) []model.Step {
	l := w.layout
	from := model.Origin{MasqueradeAll: l.MasqueradeAll}
	switch {
	case l.LocalBridge != "":
		from.Told = "interface " + l.LocalBridge
	case l.LocalPrefix != "":
		from.Told = "interfaces " + l.LocalPrefix + "*"
	case len(l.LocalCIDRs) > 0:
		from.Told, from.Pod = "CIDR "+l.LocalCIDRs[0].String(), l.LocalCIDRs[0].Contains(p.Source)
	}
	from.Node = ownAddress(p.Source)
	var steps []model.Step
	if from.Told != "" && len(l.LocalCIDRs) == 0 {
		// An address does not tell its interface: the route back does.
		from.Pod = !from.Node && routesTo(p.Source, l.LocalBridge, l.LocalPrefix)
	}
	steps = append(steps, w.model.Explain(p, from)...)
	if len(steps) == 1 && slices.ContainsFunc(w.cidrs, func(c netip.Prefix) bool { return c.Contains(p.Destination) }) &&
		steps[0].Set == nil {
		return []model.Step{{Text: fmt.Sprintf("%s is an address of a Service range that no Service has: dropped", p.Destination)}}
	}
	return steps
}

// check compares the rows behind steps with the kernel's.
func (r *runner) check(w *writer, steps []model.Step) ([]Line, error) {
	var out []Line
	for _, s := range steps {
		l := Line{Text: s.Text}
		if s.Set != nil {
			_, ok, err := r.kernel.Row(w.layout.Family, w.table, s.Set.Shape(w.layout.Family).Name, s.Key)
			if err != nil {
				return nil, err
			}
			if l.Kernel = "held"; !ok {
				l.Kernel = "missing"
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// ServeHTTP answers /proxy/trace?src=&dst=&port=&proto= and
// /proxy/service?namespace=&name= with lines as JSON.
func (t *Tracer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), 10*time.Second)
	defer cancel()
	q := req.URL.Query()
	var lines []Line
	var err error
	switch req.URL.Path {
	case "/proxy/trace":
		var p model.Packet
		if p, err = ParsePacket(q.Get("src"), q.Get("dst"), q.Get("port")); err == nil {
			lines, err = t.Trace(ctx, p)
		}
	case "/proxy/service":
		lines, err = t.Service(ctx, model.Name{Namespace: q.Get("namespace"), Name: q.Get("name")})
	default:
		http.NotFound(w, req)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(lines)
}

// ParsePacket reads a packet from words; port may end in /tcp, /udp or /sctp.
func ParsePacket(src, dst, port string) (model.Packet, error) {
	var p model.Packet
	var err error
	if p.Source, err = netip.ParseAddr(src); err != nil {
		return p, fmt.Errorf("reading the source: %w", err)
	}
	if p.Destination, err = netip.ParseAddr(dst); err != nil {
		return p, fmt.Errorf("reading the destination: %w", err)
	}
	p.Source, p.Destination = p.Source.Unmap(), p.Destination.Unmap()
	if p.Source.Is4() != p.Destination.Is4() {
		return p, fmt.Errorf("source %s and destination %s are of two address families", src, dst)
	}
	number, proto, _ := strings.Cut(port, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return p, fmt.Errorf("reading the port: %q is not within 1..65535", number)
	}
	p.Port = uint16(n)
	switch strings.ToLower(proto) {
	case "", "tcp":
		p.Proto = 6
	case "udp":
		p.Proto = 17
	case "sctp":
		p.Proto = 132
	default:
		return p, fmt.Errorf("reading the protocol: %q is not tcp, udp or sctp", proto)
	}
	return p, nil
}

// Serve answers on a unix socket that only its owner may use.
func (t *Tracer) Serve(path string) (stop func(), err error) {
	l, err := socket.Listen("trace", path)
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: t, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // it ends when stop closes it
	}()
	return func() { _ = srv.Close(); <-done }, nil
}
