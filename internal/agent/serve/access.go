package serve

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

const (
	tokenTTL  = 2 * time.Minute
	allowTTL  = 5 * time.Minute
	denyTTL   = 30 * time.Second
	reviewMax = 10 * time.Second
)

// access decides who calls and whether they may.
type access struct {
	nodeName string
	authn    authenticator.Request
	authz    authorizer.Authorizer
	// ca is nil without a client CA file.
	ca *dynamiccertificates.DynamicFileCAContent
}

// reviewBackoff repeats a review that failed on the way, for about a second.
func reviewBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

func newAccess(cfg Config) (*access, error) {
	authentication, authorization := cfg.Kubelet.Authentication, cfg.Kubelet.Authorization
	a := &access{nodeName: cfg.NodeName}
	factory := authenticatorfactory.DelegatingAuthenticatorConfig{
		CacheTTL:                 orDefault(authentication.Webhook.CacheTTL.Duration, tokenTTL),
		TokenAccessReviewTimeout: reviewMax,
		WebhookRetryBackoff:      reviewBackoff(),
	}
	if enabled := authentication.Anonymous.Enabled; enabled != nil && *enabled {
		cfg.Log.Warn("authentication.anonymous.enabled is true: callers without credentials are let through to authorization")
		factory.Anonymous = &apiserver.AnonymousAuthConfig{Enabled: true}
	}
	if enabled := authentication.Webhook.Enabled; enabled == nil || *enabled {
		factory.TokenAccessReviewClient = cfg.Client.AuthenticationV1()
	}
	if file := authentication.X509.ClientCAFile; file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
		if err != nil {
			return nil, fmt.Errorf("loading authentication.x509.clientCAFile %s: %w", file, err)
		}
		a.ca, factory.ClientCertificateCAContentProvider = ca, ca
	}
	var err error
	if a.authn, _, err = factory.New(); err != nil {
		return nil, fmt.Errorf("setting up authentication (enable the webhook or set authentication.x509.clientCAFile): %w", err)
	}
	switch authorization.Mode {
	case kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow:
		cfg.Log.Warn("authorization.mode is AlwaysAllow: every authenticated caller may run commands in every pod of this node")
		a.authz = authorizerfactory.NewAlwaysAllowAuthorizer()
	case kubeletv1beta1.KubeletAuthorizationModeWebhook, "":
		a.authz, err = authorizerfactory.DelegatingAuthorizerConfig{
			SubjectAccessReviewClient: cfg.Client.AuthorizationV1(),
			AllowCacheTTL:             orDefault(authorization.Webhook.CacheAuthorizedTTL.Duration, allowTTL),
			DenyCacheTTL:              orDefault(authorization.Webhook.CacheUnauthorizedTTL.Duration, denyTTL),
			WebhookRetryBackoff:       reviewBackoff(),
		}.New()
		if err != nil {
			return nil, fmt.Errorf("setting up authorization: %w", err)
		}
	default:
		return nil, fmt.Errorf("setting up authorization: authorization.mode %q is neither Webhook nor AlwaysAllow", authorization.Mode)
	}
	return a, nil
}

func orDefault(value, fallback time.Duration) time.Duration {
	if value == 0 {
		return fallback
	}
	return value
}

// run reloads the client CA when its file changes.
func (a *access) run(ctx context.Context) {
	if a.ca != nil {
		a.ca.Run(ctx, 1)
	}
}

// clientCAs are offered to callers in the TLS handshake, so that they pick a
// certificate; checking it happens per request.
func (a *access) clientCAs() *x509.CertPool {
	if a.ca == nil {
		return nil
	}
	options, ok := a.ca.VerifyOptions()
	if !ok {
		return nil
	}
	return options.Roots
}

// guard lets a request through if the caller has the verb on one of the node's
// subresources; an empty verb is that of the request's method.
func (a *access) guard(verb string, subresources []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		response, ok, err := a.authn.AuthenticateRequest(req)
		if err != nil || !ok {
			http.Error(w, "Unauthorized: show a client certificate of authentication.x509.clientCAFile, or a bearer token that the API "+
				"server takes", http.StatusUnauthorized)
			return
		}
		verb := verb
		if verb == "" {
			verb = verbOf(req.Method)
		}
		for _, subresource := range subresources {
			decision, _, err := a.authz.Authorize(req.Context(), authorizer.AttributesRecord{
				User: response.User, Verb: verb, APIVersion: "v1", Resource: "nodes", Subresource: subresource,
				Name: a.nodeName, ResourceRequest: true, Path: req.URL.Path,
			})
			if err != nil {
				http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)", response.User.GetName(),
					verb, subresource), http.StatusInternalServerError)
				return
			}
			if decision == authorizer.DecisionAllow {
				next.ServeHTTP(w, req)
				return
			}
		}
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=[%s]): a ClusterRole for nodes/SUBRESOURCE "+
			"with that verb, of one of them, lets the user in", response.User.GetName(), verb, strings.Join(subresources, " ")),
			http.StatusForbidden)
	})
}

func verbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}
