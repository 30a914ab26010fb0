package tokens

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/utils/lru"
)

// VerifierConfig is what a Verifier needs.
type VerifierConfig struct {
	// Issuers a token may come from. The first is the current one.
	Issuers []string
	// Audiences that this API server answers to.
	Audiences []string
	Keys      *keySet
	Objects   objects
	// Now defaults to time.Now.
	Now func() time.Time
}

// verifier authenticates service account tokens. A signature is checked once
// per token and remembered; times and bound objects are checked at each use,
// so a token ends the moment the server sees its pod, secret, node or service
// account go. Safe for concurrent use.
type verifier struct {
	VerifierConfig
	// signed remembers tokens whose signature held, by digest.
	signed *lru.Cache
}

// rememberedSignatures bounds the memory of verified tokens: about 1 KiB each.
const rememberedSignatures = 4096

// clockLeeway is how far the clocks of issuer and verifier may differ.
const clockLeeway = time.Minute

// NewVerifier checks the configuration.
func NewVerifier(cfg VerifierConfig) (*verifier, error) {
	switch {
	case len(cfg.Issuers) == 0 || slices.Contains(cfg.Issuers, ""):
		return nil, errors.New("setting up service account tokens: issuer is required")
	case cfg.Keys == nil:
		return nil, errors.New("setting up service account tokens: public keys are required")
	case cfg.Objects == nil:
		return nil, errors.New("setting up service account tokens: a source of bound objects is required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = cfg.Issuers[:1]
	}
	return &verifier{VerifierConfig: cfg, signed: lru.New(rememberedSignatures)}, nil
}

// AuthenticateToken answers (nil, false, nil) for a token that is not one of
// ours, and an error for one that is ours but not valid (any more).
func (v *verifier) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, ours, err := v.signatureHolds(token)
	if !ours || err != nil {
		return nil, false, err
	}
	now := v.Now()
	if err := c.valid(now); err != nil {
		return nil, false, err
	}
	audiences, err := v.audiencesOf(ctx, c)
	if err != nil {
		return nil, false, err
	}
	if err := v.boundObjectsExist(ctx, c.Kubernetes, now); err != nil {
		return nil, false, err
	}
	if warn := c.Kubernetes.WarnAfter; warn != nil && now.After(warn.Time()) {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %.0f", c.Subject, now.Sub(warn.Time()).Seconds()))
	}
	return &authenticator.Response{User: c.identity().UserInfo(), Audiences: audiences}, true, nil
}

func (v *verifier) signatureHolds(token string) (*claims, bool, error) {
	digest := sha256.Sum256([]byte(token))
	if known, hit := v.signed.Get(digest); hit {
		return known.(*claims), true, nil
	}
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return nil, false, nil
	}
	var unverified jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&unverified); err != nil || !slices.Contains(v.Issuers, unverified.Issuer) {
		return nil, false, nil
	}
	if len(parsed.Headers) != 1 {
		return nil, true, errors.New("checking a service account token: it has more than one signature")
	}
	for _, key := range v.Keys.candidates(parsed.Headers[0].KeyID) {
		c := &claims{}
		if jose.SignatureAlgorithm(parsed.Headers[0].Algorithm) != key.alg || parsed.Claims(key.key, c) != nil {
			continue
		}
		if err := c.wellFormed(); err != nil {
			return nil, true, err
		}
		v.signed.Add(digest, c)
		return c, true, nil
	}
	return nil, true, errors.New("checking a service account token: no known key made its signature")
}

func (c *claims) wellFormed() error {
	k := c.Kubernetes
	switch {
	case k == nil || k.Namespace == "" || k.ServiceAccount.Name == "" || k.ServiceAccount.UID == "":
		return errors.New("checking a service account token: it names no service account")
	case c.Subject != serviceaccount.MakeUsername(k.Namespace, k.ServiceAccount.Name):
		return errors.New("checking a service account token: its subject is not its service account")
	case c.Expiry == nil:
		return errors.New("checking a service account token: it has no expiry")
	}
	return nil
}

func (c *claims) valid(now time.Time) error {
	switch {
	case now.Add(-clockLeeway).After(c.Expiry.Time()):
		return errors.New("service account token has expired")
	case c.NotBefore != nil && now.Add(clockLeeway).Before(c.NotBefore.Time()):
		return errors.New("service account token is not valid yet")
	}
	return nil
}

func (v *verifier) audiencesOf(ctx context.Context, c *claims) (authenticator.Audiences, error) {
	wanted, asked := authenticator.AudiencesFrom(ctx)
	if !asked {
		wanted = v.Audiences
	}
	has := authenticator.Audiences(c.Audience)
	if len(has) == 0 {
		// Tokens made by other issuers under our name may leave it out: they
		// are meant for us.
		has = v.Audiences
	}
	shared := has.Intersect(wanted)
	if len(shared) == 0 {
		return nil, fmt.Errorf("checking a service account token: its audiences %q are none of %q", []string(has), []string(wanted))
	}
	return shared, nil
}

func (v *verifier) boundObjectsExist(ctx context.Context, k *bound, now time.Time) error {
	checks := []struct {
		kind string
		ref  *ref
		get  func() (object, error)
	}{
		{"service account", &k.ServiceAccount, func() (object, error) {
			return v.Objects.ServiceAccount(ctx, k.Namespace, k.ServiceAccount.Name, k.ServiceAccount.UID)
		}},
		{"secret", k.Secret, func() (object, error) { return v.Objects.Secret(ctx, k.Namespace, k.Secret.Name, k.Secret.UID) }},
		{"pod", k.Pod, func() (object, error) { return v.Objects.Pod(ctx, k.Namespace, k.Pod.Name, k.Pod.UID) }},
		{"node", k.nodeBinding(), func() (object, error) { return v.Objects.Node(ctx, k.Node.Name, k.Node.UID) }},
	}
	for _, check := range checks {
		if check.ref == nil {
			continue
		}
		o, err := check.get()
		if err != nil {
			return fmt.Errorf("service account token has been invalidated: looking up %s %q: %w", check.kind, check.ref.Name, err)
		}
		if o.GetUID() != check.ref.UID {
			return fmt.Errorf("service account token has been invalidated: %s %q has UID %s, the token is bound to %s",
				check.kind, check.ref.Name, o.GetUID(), check.ref.UID)
		}
		if ended(o.GetDeletionTimestamp(), now) {
			return fmt.Errorf("service account token has been invalidated: %s %q is deleted", check.kind, check.ref.Name)
		}
	}
	return nil
}

// nodeBinding is the node whose end ends the token: none when the node is
// only where the bound pod runs.
func (k *bound) nodeBinding() *ref {
	if k.Pod != nil || k.Secret != nil {
		return nil
	}
	return k.Node
}

func (c *claims) identity() *serviceaccount.ServiceAccountInfo {
	k := c.Kubernetes
	info := &serviceaccount.ServiceAccountInfo{
		Namespace: k.Namespace, Name: k.ServiceAccount.Name, UID: string(k.ServiceAccount.UID),
	}
	if k.Pod != nil {
		info.PodName, info.PodUID = k.Pod.Name, string(k.Pod.UID)
	}
	if k.Node != nil {
		info.NodeName, info.NodeUID = k.Node.Name, string(k.Node.UID)
	}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	return info
}
