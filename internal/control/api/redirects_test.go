package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
)

type plainResolver struct{}

func (plainResolver) ClientConfigFor(string) (*restclient.Config, error) {
	return &restclient.Config{}, nil
}

func (plainResolver) ClientConfigForService(string, string, int) (*restclient.Config, error) {
	return &restclient.Config{}, nil
}

// TestWebhookRedirect is CVE-2020-8561: a webhook that sends the server to an
// address which only the server reaches.
func TestWebhookRedirect(t *testing.T) {
	reached := false
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer inner.Close()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/honest" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		http.Redirect(w, r, inner.URL+"/secret", http.StatusTemporaryRedirect)
	}))
	defer hook.Close()
	post := func(redirects bool, path string) error {
		s := &Server{cfg: Config{Options: &Options{WebhookRedirects: redirects}}}
		wrapped := s.webhookAuth(func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r })(
			plainResolver{})
		config, err := wrapped.ClientConfigFor("x:443")
		if err != nil {
			t.Fatal(err)
		}
		client, err := restclient.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Post(hook.URL+path, "application/json", strings.NewReader("{}"))
		if err == nil {
			answer.Body.Close()
		}
		return err
	}
	if err := post(false, "/elsewhere"); err == nil || reached || !strings.Contains(err.Error(), "--follow-webhook-redirects") {
		t.Errorf("a redirect gives %v, and the inner server was reached: %v", err, reached)
	}
	if err := post(false, "/honest"); err != nil {
		t.Errorf("a webhook that answers itself: %v", err)
	}
	if err := post(true, "/elsewhere"); err != nil || !reached {
		t.Errorf("with redirects allowed: %v, reached %v", err, reached)
	}
}
