package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Path is where the agent's API serves the calls below, with the name of the
// call behind it: GET list, POST load, DELETE remove and DELETE prune. Callers
// need the verb (get, create, delete) on nodes/images; other rights on the node
// do not open it.
const Path = "/images/"

// answer is the answer to every call.
type answer struct {
	Images []Image `json:"images,omitempty"`
	// Removed are names that went, Freed the bytes that became free.
	Removed []string `json:"removed,omitempty"`
	Freed   int64    `json:"freed,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// handler serves the image store of this node.
type handler struct {
	open func(context.Context) (*Store, func(), error)
	// one load at a time: the others wait.
	loading chan struct{}
}

// NewHandler makes a handler. open connects to the store, and close ends the connection.
func NewHandler(open func(context.Context) (s *Store, close func(), err error)) *handler {
	return &handler{open: open, loading: make(chan struct{}, 1)}
}

// ServeHTTP answers Path+CALL. Whoever mounts it has to know the caller.
func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	call := req.Method + " " + req.PathValue("call")
	code := http.StatusOK
	a, err := h.dispatch(req.Context(), call, req.URL.Query(), req.Body)
	if err != nil {
		a.Error, code = err.Error(), http.StatusUnprocessableEntity
		if errors.Is(err, errNoCall) {
			code = http.StatusNotFound
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(a)
}

var errNoCall = errors.New("this is no call of the image API: there are GET list, POST load, DELETE remove and DELETE prune")

func (h *handler) dispatch(ctx context.Context, call string, q url.Values, body io.Reader) (a answer, err error) {
	switch call {
	case "GET list", "POST load", "DELETE remove", "DELETE prune":
	default:
		return a, errNoCall
	}
	store, end, err := h.open(ctx)
	if err != nil {
		return a, err
	}
	defer end()
	switch call {
	case "GET list":
		a.Images, err = store.List(ctx)
	case "POST load":
		select {
		case h.loading <- struct{}{}:
			defer func() { <-h.loading }()
		case <-ctx.Done():
			return a, ctx.Err()
		}
		a.Images, err = store.Load(ctx, body, q.Get("name"))
	case "DELETE remove":
		a.Removed, err = store.Remove(ctx, q["image"], q.Get("force") == "true")
	default:
		a.Removed, a.Freed, err = store.Prune(ctx)
	}
	return a, err
}

// Remote is the image store of another node, behind its agent.
type Remote struct {
	Client *http.Client
	// URL is the agent's address, https://HOST:PORT.
	URL string
}

// Load sends an archive.
func (r *Remote) Load(ctx context.Context, body io.Reader, name string) ([]Image, error) {
	a, err := r.call(ctx, http.MethodPost, "load", url.Values{"name": {name}}, body)
	return a.Images, err
}

// List lists images.
func (r *Remote) List(ctx context.Context) ([]Image, error) {
	a, err := r.call(ctx, http.MethodGet, "list", nil, nil)
	return a.Images, err
}

// Remove removes images.
func (r *Remote) Remove(ctx context.Context, images []string, force bool) ([]string, error) {
	a, err := r.call(ctx, http.MethodDelete, "remove", url.Values{"image": images, "force": {fmt.Sprint(force)}}, nil)
	return a.Removed, err
}

// Prune removes what nothing uses.
func (r *Remote) Prune(ctx context.Context) ([]string, int64, error) {
	a, err := r.call(ctx, http.MethodDelete, "prune", nil, nil)
	return a.Removed, a.Freed, err
}

func (r *Remote) call(ctx context.Context, method, call string, q url.Values, body io.Reader) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, r.URL+Path+call+"?"+q.Encode(), body)
	if err != nil {
		return a, err
	}
	res, err := r.Client.Do(req)
	if err != nil {
		return a, fmt.Errorf("asking the node's agent: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return a, fmt.Errorf("reading the answer of the node's agent: %w", err)
	}
	switch {
	case json.Unmarshal(text, &a) == nil && a.Error != "":
		return a, errors.New(a.Error)
	case res.StatusCode == http.StatusForbidden || res.StatusCode == http.StatusUnauthorized:
		return a, fmt.Errorf("the node's agent refuses you (%d): %s; a role must allow you the verbs get, create or delete on nodes/images",
			res.StatusCode, text)
	case res.StatusCode == http.StatusNotFound:
		return a, errors.New("the node's agent has no image API: it is older than this berth, or not a node of `berth up` or `berth join`")
	case res.StatusCode != http.StatusOK:
		return a, fmt.Errorf("the node's agent answers %d: %.200s", res.StatusCode, text)
	}
	return a, nil
}
