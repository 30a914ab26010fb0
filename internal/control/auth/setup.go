package auth

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	unionrequest "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	uniontoken "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	unionauthorizer "k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/berth-dev/berth/internal/control/auth/nodeauthz"
	"github.com/berth-dev/berth/internal/control/auth/rbac"
	"github.com/berth-dev/berth/internal/control/auth/tokens"
)

// open are the paths anyone may read, with what lies below them: whether the
// server is well, and what it is. They depend on nothing stored, so that a
// probe is answered while the store is not.
var open = []string{"/healthz", "/livez", "/readyz", "/version"}

func isOpen(path string) bool {
	return slices.ContainsFunc(open, func(root string) bool {
		rest, under := strings.CutPrefix(path, root)
		return under && (rest == "" || rest[0] == '/')
	})
}

func (a *Auth) setUpTokens() error {
	keys, err := tokens.LoadKeySet(append([]string{a.cfg.SASigningKeyFile}, a.cfg.SAPublicKeyFiles...)...)
	if err != nil {
		return err
	}
	if a.TokenGenerator, err = tokens.NewGenerator(a.cfg.Issuer, a.cfg.SASigningKeyFile); err != nil {
		return err
	}
	if a.Discovery, err = tokens.NewDiscovery(a.cfg.Issuer, a.cfg.JWKSURI, keys); err != nil {
		return err
	}
	verifier, err := tokens.NewVerifier(tokens.VerifierConfig{
		Issuers: []string{a.cfg.Issuer}, Audiences: a.cfg.Audiences, Keys: keys, Objects: a.objects,
	})
	if err != nil {
		return err
	}
	bootstrap := authenticator.WrapAudienceAgnosticToken(a.cfg.Audiences, &tokens.Bootstrap{Objects: a.objects})
	chain := []authenticator.Token{verifier, bootstrap}
	issuers, err := a.cfg.Options.issuers(a.cfg.Life, a.cfg.Issuer)
	if err != nil {
		return err
	}
	for _, issuer := range issuers {
		chain = append(chain, authenticator.WrapAudienceAgnosticToken(a.cfg.Audiences, issuer))
	}
	a.Tokens = group.NewTokenGroupAdder(uniontoken.New(chain...), []string{user.AllAuthenticated})
	return nil
}

// setUpAuthenticator tries, in this order: the front proxy, which speaks for
// others; client certificates; tokens of
// this process's own parts; tokens; and no one in particular.
func (a *Auth) setUpAuthenticator() error {
	var chain []authenticator.Request
	proxy := a.frontProxy()
	if proxy.ClientCAFile != "" {
		proxyCA, err := caFile("request-header", proxy.ClientCAFile)
		if err != nil {
			return err
		}
		chain = append(chain, headerrequest.NewDynamicVerifyOptionsSecure(proxyCA.VerifyOptions,
			headerrequest.StaticStringSlice(proxy.AllowedNames),
			headerrequest.StaticStringSlice(proxy.UsernameHeaders), headerrequest.StaticStringSlice(proxy.UIDHeaders),
			headerrequest.StaticStringSlice(proxy.GroupHeaders), headerrequest.StaticStringSlice(proxy.ExtraHeaderPrefixes)))
		a.ClientCA = proxyCA
	}
	clientCA, err := caFile("client-ca", a.cfg.ClientCAFile)
	if err != nil {
		return err
	}
	if a.ClientCA == nil {
		a.ClientCA = clientCA
	} else {
		a.ClientCA = dynamiccertificates.NewUnionCAContentProvider(clientCA, a.ClientCA)
	}
	// Certificates and proxies know no audience: they speak to this server.
	certificates := rememberCertificates(x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion), clientCA.VerifyOptions)
	chain = append(chain, certificates, bearertoken.New(&a.insiders), bearertoken.New(a.Tokens),
		websocket.NewProtocolAuthenticator(a.Tokens))
	known := group.NewAuthenticatedGroupAdder(unionrequest.New(chain...))
	a.Authenticator = unionrequest.NewFailOnError(known, authenticator.RequestFunc(anonymous))
	return nil
}

// frontProxy is the proxy that may speak for others: the administrator's, or
// else the cluster's own.
func (a *Auth) frontProxy() options.RequestHeaderAuthenticationOptions {
	chosen := a.cfg.Options
	if chosen == nil {
		chosen = NewOptions()
	}
	proxy := chosen.RequestHeader
	if proxy.ClientCAFile == "" {
		proxy.ClientCAFile = a.cfg.RequestHeaderCAFile
	}
	if len(proxy.AllowedNames) == 0 {
		proxy.AllowedNames = a.cfg.RequestHeaderAllowedNames
	}
	return proxy
}

func caFile(purpose, file string) (*dynamiccertificates.DynamicFileCAContent, error) {
	content, err := dynamiccertificates.NewDynamicCAContentFromFile(purpose, file)
	if err != nil {
		return nil, fmt.Errorf("reading %s certificates from %s: %w", purpose, file, err)
	}
	return content, nil
}

// anonymous admits no one in particular, to the open paths only: a request
// without credentials elsewhere is unauthenticated (401) and not forbidden.
func anonymous(req *http.Request) (*authenticator.Response, bool, error) {
	if !isOpen(req.URL.Path) {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{
		User:      &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
		Audiences: audiences,
	}, true, nil
}

func (a *Auth) setUpAuthorizer() error {
	var paths []string
	for _, root := range open {
		paths = append(paths, root, root+"/*")
	}
	openPaths, err := path.NewAuthorizer(paths)
	if err != nil {
		return fmt.Errorf("setting up the open paths: %w", err)
	}
	a.node, err = nodeauthz.New(nodeauthz.Config{
		Informers: a.cfg.Informers, ResourceSlices: a.cfg.ResourceSlices, Patience: a.cfg.NodePatience,
	})
	if err != nil {
		return err
	}
	if a.RBAC, err = rbac.New(a.cfg.Informers); err != nil {
		return err
	}
	a.RuleResolver = a.RBAC
	chain := []unionauthorizer.NamedAuthorizer{
		{AuthorizerName: "open-paths", Authorizer: openPaths},
		{AuthorizerName: "masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
	}
	configured, err := a.cfg.Options.authorizers(map[string]authorizer.Authorizer{"Node": a.node, "RBAC": a.RBAC})
	if err != nil {
		return err
	}
	rights, err := unionauthorizer.New(configured...)
	if err != nil {
		return fmt.Errorf("chaining authorizers: %w", err)
	}
	chain = append(append(chain, configured...), unionauthorizer.NamedAuthorizer{AuthorizerName: "local-volumes",
		Authorizer: localVolumes{rights}})
	if a.Authorizer, err = unionauthorizer.New(chain...); err != nil {
		return fmt.Errorf("chaining authorizers: %w", err)
	}
	return nil
}
