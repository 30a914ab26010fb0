package api

import (
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
)

// webhookAuth adds to the calls of admission webhooks that they are not
// redirected: who writes a webhook configuration would make the server send
// requests to any address it reaches, with the answers in its log
// (CVE-2020-8561, kubernetes/kubernetes#104720).
func (s *Server) webhookAuth(next webhook.AuthenticationInfoResolverWrapper) webhook.AuthenticationInfoResolverWrapper {
	if s.cfg.Options.WebhookRedirects {
		return next
	}
	return func(resolver webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return noRedirectResolver{next(resolver)}
	}
}

// noRedirectResolver makes clients that follow no redirect.
type noRedirectResolver struct {
	webhook.AuthenticationInfoResolver
}

func (s noRedirectResolver) ClientConfigFor(hostPort string) (*restclient.Config, error) {
	return withoutRedirects(s.AuthenticationInfoResolver.ClientConfigFor(hostPort))
}

func (s noRedirectResolver) ClientConfigForService(name, namespace string, port int) (*restclient.Config, error) {
	return withoutRedirects(s.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port))
}

// withoutRedirects returns a copy of config whose clients follow no redirect.
func withoutRedirects(config *restclient.Config, err error) (*restclient.Config, error) {
	if err != nil {
		return nil, err
	}
	config = restclient.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return noRedirect{next} })
	return config, nil
}

type noRedirect struct{ next http.RoundTripper }

func (n noRedirect) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := n.next.RoundTrip(r)
	if err != nil || answer.StatusCode < 300 || answer.StatusCode > 399 {
		return answer, err
	}
	answer.Body.Close()
	return nil, fmt.Errorf("the webhook answers with a redirect (status %d), which is not followed; name its own address, or start the "+
		"server with --follow-webhook-redirects", answer.StatusCode)
}
