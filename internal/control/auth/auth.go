// Package auth answers, for every request, who sends it and whether they may:
// it wires authenticators and authorizers together for the API server.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/auth/nodeauthz"
	"github.com/berth-dev/berth/internal/control/auth/policy"
	"github.com/berth-dev/berth/internal/control/auth/rbac"
	"github.com/berth-dev/berth/internal/control/auth/review"
	"github.com/berth-dev/berth/internal/control/auth/tokens"
)

// Config is what New needs.
type Config struct {
	// ClientCAFile holds the PEM certificates that client certificates chain
	// to. Required.
	ClientCAFile string
	// RequestHeaderCAFile holds those of the front proxy; empty: none is
	// trusted.
	RequestHeaderCAFile string
	// RequestHeaderAllowedNames are common names the proxy's certificate may
	// bear; empty: any that chains to RequestHeaderCAFile.
	RequestHeaderAllowedNames []string
	// SASigningKeyFile signs service account tokens (PEM, RSA or ECDSA).
	// Required. Its public half is trusted as well.
	SASigningKeyFile string
	// SAPublicKeyFiles hold further keys that tokens may be signed with.
	SAPublicKeyFiles []string
	// Issuer of service account tokens, a URL. Required.
	Issuer string
	// Audiences this server answers to; empty: the issuer.
	Audiences []string
	// JWKSURI is told to OpenID clients; empty: under the issuer.
	JWKSURI string
	// MaxTokenExpiry clips requested token lifetimes; 0: no limit.
	MaxTokenExpiry time.Duration
	// NodePatience is how long a node's question about an object of a pod it
	// just learnt of may wait for this server to learn of it too. Negative:
	// not at all; 0: the default of 250 ms.
	NodePatience time.Duration
	// ResourceSlices says that the server serves resource.k8s.io/v1
	// resourceslices.
	ResourceSlices bool
	// Informers on the server's loopback client; the caller starts them after
	// New. Required.
	Informers informers.SharedInformerFactory
	// Client is the loopback client, asked where the informers do not have an
	// object yet. Nil: the informers have the last word.
	Client kubernetes.Interface
	// Options are further issuers of tokens, authorizers and the names of the
	// front proxy's headers; nil: none of them. Life bounds what issuers run
	// beside requests; nil: the process.
	Options *Options
	Life    context.Context //nolint:containedctx // see above
	// Log is told what is trusted. Required.
	Log *slog.Logger
}

const defaultNodePatience = 250 * time.Millisecond

func (c *Config) complete() error {
	for name, missing := range map[string]bool{
		"ClientCAFile": c.ClientCAFile == "", "SASigningKeyFile": c.SASigningKeyFile == "",
		"Issuer": c.Issuer == "", "Informers": c.Informers == nil, "Log": c.Log == nil,
	} {
		if missing {
			return fmt.Errorf("setting up authentication: %s is required", name)
		}
	}
	if len(c.Audiences) == 0 {
		c.Audiences = []string{c.Issuer}
	}
	if c.Life == nil {
		c.Life = context.Background()
	}
	switch {
	case c.NodePatience == 0:
		c.NodePatience = defaultNodePatience
	case c.NodePatience < 0:
		c.NodePatience = 0
	}
	return nil
}

// Auth is authentication and authorization, ready for a generic API server.
type Auth struct {
	Authenticator authenticator.Request
	// Tokens is the part of Authenticator that judges bearer tokens.
	Tokens       authenticator.Token
	Authorizer   authorizer.Authorizer
	RuleResolver authorizer.RuleResolver
	// RBAC is the RBAC part of Authorizer, for escalation checks.
	RBAC           *rbac.Authorizer
	TokenGenerator *tokens.Generator
	Discovery      *tokens.Discovery
	// ClientCA is what a TLS listener asks client certificates against: the
	// client CA and the front proxy's. The listener runs it, and with it both
	// follow their files.
	ClientCA dynamiccertificates.CAContentProvider

	cfg      Config
	insiders insiders
	objects  *tokens.CachedObjects
	node     *nodeauthz.Authorizer
}

// New reads the keys and certificates and registers its informers. Requests
// can be answered at once: members of system:masters and health checks do not
// wait for the informers.
func New(cfg Config) (*Auth, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	a := &Auth{cfg: cfg, objects: tokens.NewCachedObjects(cfg.Informers, cfg.Client)}
	if err := a.setUpTokens(); err != nil {
		return nil, err
	}
	if err := a.setUpAuthenticator(); err != nil {
		return nil, err
	}
	if err := a.setUpAuthorizer(); err != nil {
		return nil, err
	}
	cfg.Log.Info("authentication set up", "issuer", cfg.Issuer, "audiences", cfg.Audiences,
		"clientCA", cfg.ClientCAFile, "frontProxy", cfg.RequestHeaderCAFile != "")
	return a, nil
}

// HasSynced says whether answers take everything stored into account.
func (a *Auth) HasSynced() bool {
	return a.RBAC.HasSynced() && a.node.HasSynced() && a.objects.HasSynced()
}

// ReadyCheck is HasSynced as a readiness check; it names what is missing.
func (a *Auth) ReadyCheck(*http.Request) error {
	var missing []string
	for _, part := range []struct {
		name   string
		synced bool
	}{{"RBAC", a.RBAC.HasSynced()}, {"Node authorizer", a.node.HasSynced()}, {"token lookups", a.objects.HasSynced()}} {
		if !part.synced {
			missing = append(missing, part.name)
		}
	}
	if len(missing) > 0 {
		return errors.New("not in step with the store yet: " + strings.Join(missing, ", "))
	}
	return nil
}

// EnsurePolicy puts the default RBAC objects in place; see policy.Ensure.
func EnsurePolicy(ctx context.Context, client kubernetes.Interface) error {
	return policy.Ensure(ctx, client)
}

// Storage returns the storages this package answers for, by group version and
// resource: the reviews and serviceaccounts/token.
func (a *Auth) Storage() map[schema.GroupVersion]map[string]rest.Storage {
	return map[schema.GroupVersion]map[string]rest.Storage{
		authorizationv1.SchemeGroupVersion: {
			"subjectaccessreviews":      review.NewSubjectAccessReview(a.Authorizer),
			"selfsubjectaccessreviews":  review.NewSelfSubjectAccessReview(a.Authorizer),
			"localsubjectaccessreviews": review.NewLocalSubjectAccessReview(a.Authorizer),
			"selfsubjectrulesreviews":   review.NewSelfSubjectRulesReview(a.RuleResolver),
		},
		authenticationv1.SchemeGroupVersion: {
			"tokenreviews":       review.NewTokenReview(a.Tokens, a.cfg.Audiences),
			"selfsubjectreviews": review.NewSelfSubjectReview(),
		},
		corev1.SchemeGroupVersion: {
			"serviceaccounts/token": tokens.NewREST(tokens.RESTConfig{
				Generator: a.TokenGenerator, Objects: a.objects, Audiences: a.cfg.Audiences, MaxExpiry: a.cfg.MaxTokenExpiry,
			}),
		},
	}
}
