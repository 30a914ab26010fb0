package tokens

import (
	"context"
	"crypto/subtle"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/cluster-bootstrap/util/secrets"
)

// Bootstrap authenticates tokens of the form "<id>.<secret>" held in Secrets
// named bootstrap-token-<id> in kube-system. Safe for concurrent use.
type Bootstrap struct {
	Objects objects
	// Now defaults to time.Now.
	Now func() time.Time
}

// AuthenticateToken answers (nil, false, nil) for anything that is not a
// bootstrap token in force: the reason never reaches the caller, since the
// token may be a guess.
func (b *Bootstrap) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	id, secret, err := splitBootstrap(token)
	if err != nil {
		return nil, false, nil
	}
	held, err := b.Objects.Secret(ctx, metav1.NamespaceSystem, bootstrapapi.BootstrapTokenSecretPrefix+id, "")
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("looking up bootstrap token %q: %w", id, err)
	}
	now := time.Now
	if b.Now != nil {
		now = b.Now
	}
	groups, inForce := bootstrapGroups(held, id, secret, now())
	if !inForce {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: bootstrapapi.BootstrapUserPrefix + id, Groups: groups}}, true, nil
}

func splitBootstrap(token string) (id, secret string, err error) {
	if !bootstraputil.IsValidBootstrapToken(token) {
		return "", "", fmt.Errorf("reading a bootstrap token: it must match %s", bootstrapapi.BootstrapTokenPattern)
	}
	return token[:bootstrapapi.BootstrapTokenIDBytes], token[bootstrapapi.BootstrapTokenIDBytes+1:], nil
}

// bootstrapGroups judges one Secret: a live bootstrap token, meant for
// authentication, not expired, with this very id and secret.
func bootstrapGroups(held *corev1.Secret, id, secret string, now time.Time) ([]string, bool) {
	if held.DeletionTimestamp != nil || held.Type != bootstrapapi.SecretTypeBootstrapToken || held.Data == nil {
		return nil, false
	}
	right := secrets.GetData(held, bootstrapapi.BootstrapTokenSecretKey)
	if right == "" || subtle.ConstantTimeCompare([]byte(right), []byte(secret)) != 1 {
		return nil, false
	}
	if secrets.GetData(held, bootstrapapi.BootstrapTokenIDKey) != id || secrets.HasExpired(held, now) ||
		secrets.GetData(held, bootstrapapi.BootstrapTokenUsageAuthentication) != "true" {
		return nil, false
	}
	groups, err := secrets.GetGroups(held)
	return groups, err == nil
}
