package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	unionauthorizer "k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/utils/ptr"
)

// Options are an administrator's choices about who callers are and what they
// may do, with the flags of a kube-apiserver.
type Options struct {
	// RequestHeader is the front proxy, where it is not the cluster's own.
	RequestHeader options.RequestHeaderAuthenticationOptions
	// AuthenticationConfig is a file with an AuthenticationConfiguration (JWT
	// issuers); the OIDC fields are a shorter way to name one issuer. Not both.
	AuthenticationConfig string
	OIDC                 OIDC
	// AuthorizationConfig is a file with an AuthorizationConfiguration: the
	// order of the authorizers, and webhooks among them.
	AuthorizationConfig string
}

// OIDC is one issuer of tokens, as the --oidc flags name it.
type OIDC struct {
	IssuerURL, ClientID, CAFile   string
	UsernameClaim, UsernamePrefix string
	GroupsClaim, GroupsPrefix     string
	RequiredClaims                map[string]string
	SigningAlgs                   []string
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		RequestHeader: options.RequestHeaderAuthenticationOptions{
			UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
			GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
		},
		OIDC: OIDC{UsernameClaim: "sub", SigningAlgs: []string{"RS256"}},
	}
}

// AddFlags adds the flags; names and meaning are kube-apiserver's.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.RequestHeader.AddFlags(f)
	f.StringVar(&o.AuthenticationConfig, "authentication-config", "",
		"file with an AuthenticationConfiguration: issuers of tokens (JWT); not together with --oidc-*")
	f.StringVar(&o.AuthorizationConfig, "authorization-config", "",
		"file with an AuthorizationConfiguration: authorizers in order, of type Node, RBAC and Webhook (default: Node, RBAC)")
	i := &o.OIDC
	f.StringVar(&i.IssuerURL, "oidc-issuer-url", "", "URL of an OpenID issuer whose tokens are accepted; https only")
	f.StringVar(&i.ClientID, "oidc-client-id", "", "audience that tokens of the OpenID issuer must have")
	f.StringVar(&i.CAFile, "oidc-ca-file", "", "certificates that the OpenID issuer is verified with (default: the host's)")
	f.StringVar(&i.UsernameClaim, "oidc-username-claim", i.UsernameClaim, "claim that becomes the user name")
	f.StringVar(&i.UsernamePrefix, "oidc-username-prefix", "",
		"prefix of user names; - is none (default: the issuer's URL and #, none for the claim email)")
	f.StringVar(&i.GroupsClaim, "oidc-groups-claim", "", "claim that becomes the groups (default: none)")
	f.StringVar(&i.GroupsPrefix, "oidc-groups-prefix", "", "prefix of groups")
	f.StringToStringVar(&i.RequiredClaims, "oidc-required-claim", nil, "claim=value that a token must have; may be repeated")
	f.StringSliceVar(&i.SigningAlgs, "oidc-signing-algs", i.SigningAlgs, "signing algorithms that are accepted")
}

// Validate says what cannot work.
func (o *Options) Validate() []error {
	errs := o.RequestHeader.Validate()
	i := &o.OIDC
	switch {
	case o.AuthenticationConfig != "" && i.IssuerURL != "":
		errs = append(errs, errors.New("--authentication-config and --oidc-issuer-url: give one of them"))
	case (i.IssuerURL == "") != (i.ClientID == ""):
		errs = append(errs, errors.New("--oidc-issuer-url and --oidc-client-id: give both or none"))
	}
	return errs
}

// configuration reads what names issuers of tokens; nil when nothing does.
func (o *Options) configuration() (*apiserver.AuthenticationConfiguration, error) {
	switch {
	case o.AuthenticationConfig != "":
		return readAuthentication(o.AuthenticationConfig)
	case o.OIDC.IssuerURL != "":
		return o.OIDC.configuration()
	}
	return nil, nil
}

func readAuthentication(file string) (*apiserver.AuthenticationConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	object, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config %s: %w", file, err)
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("--authentication-config %s: it holds a %T, not an AuthenticationConfiguration", file, object)
	}
	if config.Anonymous != nil {
		return nil, fmt.Errorf("--authentication-config %s: anonymous: cannot be set: requests without credentials reach the health "+
			"checks and /version, and nothing else", file)
	}
	return config, nil
}

func (i *OIDC) configuration() (*apiserver.AuthenticationConfiguration, error) {
	username := apiserver.PrefixedClaimOrExpression{Claim: i.UsernameClaim, Prefix: ptr.To(i.UsernamePrefix)}
	switch {
	case i.UsernamePrefix == "-":
		username.Prefix = ptr.To("")
	case i.UsernamePrefix == "" && i.UsernameClaim != "email":
		username.Prefix = ptr.To(i.IssuerURL + "#")
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer:        apiserver.Issuer{URL: i.IssuerURL, Audiences: []string{i.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{Username: username},
	}
	if i.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: i.GroupsClaim, Prefix: ptr.To(i.GroupsPrefix)}
	}
	for claim, value := range i.RequiredClaims {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	if i.CAFile != "" {
		data, err := os.ReadFile(i.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(data)
	}
	return &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}, nil
}

// issuers makes an authenticator for each issuer that the options name. No
// other may speak for the server's own issuer.
func (o *Options) issuers(ctx context.Context, own string) ([]authenticator.Token, error) {
	if o == nil {
		return nil, nil
	}
	config, err := o.configuration()
	if err != nil || config == nil {
		return nil, err
	}
	compiler := authenticationcel.NewDefaultCompiler()
	if err := validation.ValidateAuthenticationConfiguration(compiler, config, []string{own}).ToAggregate(); err != nil {
		return nil, fmt.Errorf("--authentication-config or --oidc-*: %w", err)
	}
	var out []authenticator.Token
	for _, jwt := range config.JWT {
		chosen := oidc.Options{JWTAuthenticator: jwt, Compiler: compiler, SupportedSigningAlgs: o.OIDC.SigningAlgs,
			DisallowedIssuers: []string{own}}
		if o.AuthenticationConfig != "" {
			chosen.SupportedSigningAlgs = oidc.AllValidSigningAlgorithms()
		}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			if chosen.CAContentProvider, err = dynamiccertificates.NewStaticCAContent("token-issuer", []byte(ca)); err != nil {
				return nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
			}
		}
		one, err := oidc.New(ctx, chosen)
		if err != nil {
			return nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
		}
		out = append(out, one)
	}
	return out, nil
}

// webhookBackoff is how soon an authorization webhook that failed is asked
// again.
const webhookBackoff = 500 * time.Millisecond

// authorizers puts the configured authorizers in order; own are those of this
// server by type. Without a configuration it is Node, RBAC.
func (o *Options) authorizers(own map[string]authorizer.Authorizer) ([]unionauthorizer.NamedAuthorizer, error) {
	if o == nil || o.AuthorizationConfig == "" {
		return []unionauthorizer.NamedAuthorizer{
			{AuthorizerName: "node", Authorizer: own["Node"]}, {AuthorizerName: "rbac", Authorizer: own["RBAC"]},
		}, nil
	}
	config, err := load.LoadFromFile(o.AuthorizationConfig)
	if err != nil {
		return nil, fmt.Errorf("--authorization-config %s: %w", o.AuthorizationConfig, err)
	}
	compiler := authorizationcel.NewDefaultCompiler()
	known := sets.New("Node", "RBAC", "Webhook")
	if err := validation.ValidateAuthorizationConfiguration(compiler, field.NewPath("authorizers"), config, known,
		sets.New("Webhook")).ToAggregate(); err != nil {
		return nil, fmt.Errorf("--authorization-config %s: %w", o.AuthorizationConfig, err)
	}
	var out []unionauthorizer.NamedAuthorizer
	for _, a := range config.Authorizers {
		one := own[string(a.Type)]
		if a.Type == "Webhook" {
			if one, err = webhookAuthorizer(a, compiler); err != nil {
				return nil, fmt.Errorf("--authorization-config %s: webhook %s: %w", o.AuthorizationConfig, a.Name, err)
			}
		}
		out = append(out, unionauthorizer.NamedAuthorizer{AuthorizerName: a.Name, Authorizer: one})
	}
	return out, nil
}

func webhookAuthorizer(a apiserver.AuthorizerConfiguration, compiler authorizationcel.Compiler) (authorizer.Authorizer, error) {
	w := a.Webhook
	if w.ConnectionInfo.KubeConfigFile == nil {
		return nil, errors.New("connectionInfo.kubeConfigFile is required")
	}
	config, err := webhookutil.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = w.Timeout.Duration
	onError := authorizer.DecisionNoOpinion
	if w.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	allowed, refused := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		allowed = 0
	}
	if !w.CacheUnauthorizedRequests {
		refused = 0
	}
	return webhook.New(config, w.SubjectAccessReviewVersion, allowed, refused,
		webhookutil.DefaultRetryBackoffWithInitialDelay(webhookBackoff),
		onError, w.MatchConditions, a.Name, metrics.NoopAuthorizerMetrics{}, compiler)
}
