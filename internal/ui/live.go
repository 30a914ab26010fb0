package ui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
)

const (
	// quietly is the shortest time between two updates of an open page.
	quietly = time.Second
	// share bounds what an open page costs: a rendering is followed by share
	// times as long without one, so that it takes at most 2 % of a core.
	share = 50
	// again is when a page is rendered once more after a change, since what is
	// only starting counts as wrong after a while.
	again = 16 * time.Second
	// beat is how often the ages of heartbeats are sent.
	beat = 10 * time.Second
	// maxStream ends a stream, so that the browser authenticates again.
	maxStream = 10 * time.Minute
	// maxStreams and maxUserStreams bound the open pages.
	maxStreams, maxUserStreams = 256, 16
	// writeTimeout ends a stream whose reader does not read.
	writeTimeout = 30 * time.Second
)

// usageChanged stands for a kind when there is a new sample of usage.
const usageChanged = "usage"

// hub wakes the open pages that a change concerns. It listens to the informers
// while a page is open.
type hub struct {
	mu      sync.Mutex
	viewers map[*viewer]bool
	stop    []func()
}

type viewer struct {
	user    string
	route   route
	changed chan struct{} // holds one
}

func newHub() *hub { return &hub{viewers: map[*viewer]bool{}} }

// join adds an open page; it fails when there are too many.
func (h *hub) join(s *source, v *viewer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	mine := 0
	for o := range h.viewers {
		if o.user == v.user {
			mine++
		}
	}
	if len(h.viewers) >= maxStreams || mine >= maxUserStreams {
		return fmt.Errorf("too many status pages are open (allowed are %d, and %d of a user): close some", maxStreams, maxUserStreams)
	}
	h.viewers[v] = true
	if len(h.viewers) > 1 {
		return nil
	}
	for kind, inf := range s.stores {
		wake := func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if m, ok := o.(metav1.Object); ok {
				h.wake(kind, m)
			}
		}
		reg, err := inf.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(o any, first bool) {
				if !first {
					wake(o)
				}
			},
			UpdateFunc: func(_, o any) { wake(o) }, DeleteFunc: wake,
		})
		if err != nil {
			return fmt.Errorf("following %s: %w", kind, err)
		}
		h.stop = append(h.stop, func() { _ = inf.RemoveEventHandler(reg) }) // fails only for one that is removed
	}
	return nil
}

// leave removes an open page; the last one ends the listening.
func (h *hub) leave(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
	if len(h.viewers) > 0 {
		return
	}
	for _, stop := range h.stop {
		stop()
	}
	h.stop = nil
}

// wake tells the pages that a change concerns. It never blocks.
func (h *hub) wake(kind string, o metav1.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.viewers {
		if kind == usageChanged && v.route.usage || o != nil && v.route.concerns(kind, o) {
			select {
			case v.changed <- struct{}{}:
			default:
			}
		}
	}
}

// live streams updates of the page that the parameter "view" names.
func (h *pageHandler) live(w http.ResponseWriter, r *http.Request) {
	target, err := url.Parse(r.URL.Query().Get("view"))
	rt, ok := route{}, false
	if err == nil {
		rt, ok = routeOf(strings.TrimPrefix(target.Path, "/"), queryOf(target.Query()))
	}
	if !ok {
		http.Error(w, "view: no such page", http.StatusBadRequest)
		return
	}
	if err := h.source.start(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	u, _ := genericapirequest.UserFrom(r.Context())
	v := &viewer{user: u.GetName(), route: rt, changed: make(chan struct{}, 1)}
	if err := h.hub.join(h.source, v); err != nil {
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	defer h.hub.leave(v)
	ctx, cancel := context.WithTimeout(r.Context(), maxStream)
	defer cancel()
	defer context.AfterFunc(h.cfg.Life, cancel)()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	s := &stream{w: w, flush: http.NewResponseController(w)}
	h.follow(ctx, v, s, r.URL.Query().Get("have"))
}

// follow sends the page, if it is not what the browser has, and then its changes.
func (h *pageHandler) follow(ctx context.Context, v *viewer, s *stream, have string) {
	if s.send("hello", nil) != nil {
		return
	}
	beats := time.NewTicker(beat)
	defer beats.Stop()
	var later <-chan time.Time
	var nodes []string
	// What is only starting may count as wrong soon, though nothing changes.
	update, first := true, true
	for {
		if update {
			h.sampler.want(v.route.usage)
			began := time.Now()
			out := h.render(ctx, v.route)
			nodes = out.nodes
			sum := sumOf(out.main)
			if first || sum != have {
				first, later = false, time.After(again)
			}
			if sum != have {
				if s.send("view", map[string]any{"main": string(out.main), "now": out.now.UnixMilli(), "sum": sum}) != nil {
					return
				}
				have = sum
			}
			if !sleep(ctx, max(quietly, share*time.Since(began))) {
				return
			}
		}
		update = true
		select {
		case <-ctx.Done():
			return
		case <-v.changed:
		case <-later:
			later = nil
		case <-beats.C:
			update = false
			h.sampler.want(v.route.usage)
			if s.send("beats", h.heartbeats(nodes)) != nil {
				return
			}
		}
	}
}

// heartbeats are when nodes were last heard, in milliseconds.
func (h *pageHandler) heartbeats(nodes []string) map[string]int64 {
	out := map[string]int64{}
	if h.cfg.Heartbeat == nil {
		return out
	}
	for _, n := range nodes {
		if at, ok := h.cfg.Heartbeat(n); ok {
			out[n] = at.UnixMilli()
		}
	}
	return out
}

// sleep waits; it is false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ages are the parts of a page that change by themselves: ages, and when a node
// was heard.
var ages = regexp.MustCompile(`<time datetime="[^"]*" title="[^"]*" data-beat="[^"]*">[^<]*</time>|>[^<>]*</time>`)

// sumOf tells two renderings apart, ages aside.
func sumOf(main []byte) string {
	sum := sha256.Sum256(ages.ReplaceAll(main, nil))
	return fmt.Sprintf("%x", sum[:12])
}

// stream writes server-sent events.
type stream struct {
	w     http.ResponseWriter
	flush *http.ResponseController
}

func (s *stream) send(event string, data any) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: ", event)
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	if err := out.Encode(data); err != nil { // ends with a newline
		return err
	}
	b.WriteByte('\n')
	// Not every writer has deadlines; then the connection's own keep-alive ends it.
	_ = s.flush.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := s.w.Write(b.Bytes()); err != nil {
		return err
	}
	return s.flush.Flush()
}
