package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCalls: what is no call opens no connection to the runtime, and an error
// of the store reaches the caller as it is.
func TestCalls(t *testing.T) {
	opened := 0
	h := NewHandler(func(context.Context) (*Store, func(), error) {
		opened++
		return nil, nil, errors.New("no container runtime runs here")
	})
	mux := http.NewServeMux()
	mux.Handle(Path+"{call}", h)
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, call := range []string{"GET load", "POST list", "GET prune", "POST remove", "DELETE load", "GET x"} {
		method, name, _ := strings.Cut(call, " ")
		req, err := http.NewRequest(method, server.URL+Path+name, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", call, res.StatusCode)
		}
	}
	if opened != 0 {
		t.Errorf("the runtime was asked %d times", opened)
	}
	if _, err := (&Remote{server.Client(), server.URL}).List(t.Context()); err == nil || err.Error() != "no container runtime runs here" {
		t.Error(err)
	}
}

// TestRefusalsOfAgents are told with what to do.
func TestRefusalsOfAgents(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusForbidden: "nodes/images", http.StatusUnauthorized: "refuses you", http.StatusNotFound: "older than this berth",
		http.StatusBadGateway: "answers 502",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }))
		_, _, err := (&Remote{server.Client(), server.URL}).Prune(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: nothing of %q in %v", code, want, err)
		}
		server.Close()
	}
}

// TestLoadsWait: an agent takes one archive at a time, and who waits may give up.
func TestLoadsWait(t *testing.T) {
	h := NewHandler(func(context.Context) (*Store, func(), error) { return &Store{}, func() {}, nil })
	h.loading <- struct{}{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("enough"))
	if _, err := h.dispatch(ctx, "POST load", nil, strings.NewReader("")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
