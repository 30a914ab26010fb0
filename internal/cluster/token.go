package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"
)

// Token is a bootstrap token as its owner sees it; the secret half is known
// only when it is made.
type Token struct {
	ID, Secret  string
	Expires     time.Time // zero: never
	Description string
}

// String is the token as it is typed.
func (t Token) String() string { return t.ID + "." + t.Secret }

// CreateToken makes a bootstrap token that lets machines join for ttl; 0 is
// for ever.
func CreateToken(ctx context.Context, client kubernetes.Interface, ttl time.Duration, description string) (Token, error) {
	t := Token{ID: randomText(6), Secret: randomText(16), Description: description}
	secret := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: api.BootstrapTokenSecretPrefix + t.ID, Namespace: metav1.NamespaceSystem},
		Type:       api.SecretTypeBootstrapToken,
		StringData: map[string]string{
			api.BootstrapTokenIDKey: t.ID, api.BootstrapTokenSecretKey: t.Secret,
			api.BootstrapTokenUsageAuthentication: "true", api.BootstrapTokenUsageSigningKey: "true",
		},
	}
	if description != "" {
		secret.StringData[api.BootstrapTokenDescriptionKey] = description
	}
	if ttl > 0 {
		t.Expires = time.Now().Add(ttl)
		secret.StringData[api.BootstrapTokenExpirationKey] = t.Expires.UTC().Format(time.RFC3339)
	}
	if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return Token{}, fmt.Errorf("creating the token: %w", err)
	}
	return t, nil
}

// Tokens lists the bootstrap tokens without their secrets.
func Tokens(ctx context.Context, client kubernetes.Interface) ([]Token, error) {
	list, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{FieldSelector: "type=" + string(api.SecretTypeBootstrapToken)})
	if err != nil {
		return nil, fmt.Errorf("listing tokens: %w", err)
	}
	var out []Token
	for _, s := range list.Items {
		t := Token{ID: string(s.Data[api.BootstrapTokenIDKey]), Description: string(s.Data[api.BootstrapTokenDescriptionKey])}
		if at, err := time.Parse(time.RFC3339, string(s.Data[api.BootstrapTokenExpirationKey])); err == nil {
			t.Expires = at
		}
		out = append(out, t)
	}
	return out, nil
}

// DeleteToken revokes a token; nodes that joined with it stay.
func DeleteToken(ctx context.Context, client kubernetes.Interface, id string) error {
	err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, api.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token %q: `berth token list` shows those there are", id)
	}
	return err
}

// CAHash pins the cluster's CA: the SHA-256 of its public key,
// written as kubeadm writes it.
func CAHash(caFile string) (string, error) {
	data, err := os.ReadFile(caFile)
	if err != nil {
		return "", fmt.Errorf("reading the cluster's CA: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return "", fmt.Errorf("reading the cluster's CA: %s holds no PEM block", caFile)
	}
	return hashOf(block.Bytes)
}

// randomText is n letters and digits, as bootstrap tokens are made of.
func randomText(n int) string {
	const from = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	for len(out) < n {
		var b [32]byte
		if _, err := rand.Read(b[:]); err != nil {
			panic(fmt.Sprintf("reading random bytes: %v", err))
		}
		for _, c := range b {
			// 252 is the largest multiple of 36 in a byte: no letter is likelier.
			if c < 252 && len(out) < n {
				out = append(out, from[int(c)%len(from)])
			}
		}
	}
	return string(out)
}

func spkiHash(spki []byte) string {
	sum := sha256.Sum256(spki)
	return "sha256:" + hex.EncodeToString(sum[:])
}
