package bootstrap

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
)

func TestOnlyLivingSigningTokensSign(t *testing.T) {
	now := time.Unix(1000, 0)
	token := func(id, signing, expires string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: api.BootstrapTokenSecretPrefix + id}, Type: api.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				api.BootstrapTokenIDKey: []byte(id), api.BootstrapTokenSecretKey: []byte("0123456789abcdef"),
				api.BootstrapTokenUsageSigningKey: []byte(signing), api.BootstrapTokenExpirationKey: []byte(expires)}}
	}
	got, again, err := signatures("config", []*v1.Secret{
		token("always", "true", ""), token("hourly", "true", now.Add(time.Hour).Format(time.RFC3339)),
		token("longgo", "true", now.Add(-time.Hour).Format(time.RFC3339)),
		token("silent", "false", ""), token("garble", "true", "tomorrow")}, now)
	if err != nil || again != time.Hour || len(got) != 2 {
		t.Fatalf("%d signatures, again in %s, %v", len(got), again, err)
	}
	for _, id := range []string{"always", "hourly"} {
		if !jws.DetachedTokenIsValid(got[api.JWSSignatureKeyPrefix+id], "config", id, "0123456789abcdef") {
			t.Errorf("the signature of %s does not verify", id)
		}
	}
}
