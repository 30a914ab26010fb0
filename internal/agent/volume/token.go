package volume

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	authentication "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

const (
	tokenDefaultSeconds = 3600
	// tokenMaxAge is when even a long-lived token is renewed.
	tokenMaxAge = 24 * time.Hour
	// tokenJitter spreads renewals of pods that started together.
	tokenJitter = 10 * time.Second
)

// tokenKey is what a token is good for.
type tokenKey struct {
	pod      types.UID
	audience string
	seconds  int64
}

// token is a service account token and its life.
type token struct {
	value           string
	issued, expires time.Time
}

// renewAt is when a token should be replaced: at 80 % of its life, or at a day
// when that comes first, less a share of the jitter that is fixed per pod.
func (t token) renewAt(uid types.UID) time.Time {
	life := t.expires.Sub(t.issued) * 8 / 10
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid))
	jitter := time.Duration(h.Sum32()) % tokenJitter
	return t.issued.Add(min(life, tokenMaxAge) - min(jitter, life/10))
}

// tokens requests and keeps service account tokens.
type tokens struct {
	client kubernetes.Interface
	clock  clock.PassiveClock

	mu    sync.Mutex
	cache map[tokenKey]token
}

func newTokens(client kubernetes.Interface, clk clock.PassiveClock) *tokens {
	return &tokens{client: client, clock: clk, cache: map[tokenKey]token{}}
}

// get returns a token that is not due for renewal, and when it will be.
// present is what the volume holds now: a restarted agent goes on with it. When
// renewing fails, a token that is still good is returned with the error, and
// the time to try again.
func (t *tokens) get(ctx context.Context, pod *v1.Pod, p *v1.ServiceAccountTokenProjection, present string) (string, time.Time, error) {
	seconds := int64(tokenDefaultSeconds)
	if p.ExpirationSeconds != nil {
		seconds = *p.ExpirationSeconds
	}
	k := tokenKey{pod.UID, p.Audience, seconds}
	now := t.clock.Now()
	t.mu.Lock()
	held, ok := t.cache[k]
	t.mu.Unlock()
	if !ok && present != "" {
		held, ok = parseToken(present)
	}
	if ok && now.Before(held.renewAt(pod.UID)) {
		t.keep(k, held)
		return held.value, held.renewAt(pod.UID), nil
	}
	fresh, err := t.request(ctx, pod, p.Audience, seconds)
	if err == nil {
		t.keep(k, fresh)
		return fresh.value, fresh.renewAt(pod.UID), nil
	}
	if ok && now.Before(held.expires) {
		return held.value, now.Add(max(tokenJitter, held.expires.Sub(now)/20)), err
	}
	return "", time.Time{}, err
}

// Token is a token of the pod's service account for an audience, bound to the
// pod; one that is not due for renewal is handed out again.
func (m *Manager) Token(ctx context.Context, pod *v1.Pod, audience string) (string, error) {
	if m.tokens == nil {
		return "", errors.New("requesting a service account token: the node agent runs without an API server")
	}
	value, _, err := m.tokens.get(ctx, pod, &v1.ServiceAccountTokenProjection{Audience: audience}, "")
	if value != "" {
		return value, nil
	}
	return "", err
}

func (t *tokens) keep(k tokenKey, v token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cache[k] = v
}

// forget drops the tokens of a pod.
func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.cache {
		if k.pod == uid {
			delete(t.cache, k)
		}
	}
}

func (t *tokens) request(ctx context.Context, pod *v1.Pod, audience string, seconds int64) (token, error) {
	name := pod.Spec.ServiceAccountName
	req := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if audience != "" {
		req.Spec.Audiences = []string{audience}
	}
	issued := t.clock.Now()
	tr, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, name, req, metav1.CreateOptions{})
	if err != nil {
		return token{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	return token{value: tr.Status.Token, issued: issued, expires: tr.Status.ExpirationTimestamp.Time}, nil
}

// parseToken reads the life of a token from its claims. The signature is not
// checked: the file was written by this agent.
func parseToken(s string) (token, bool) {
	var parts [3]string
	n := 0
	for start, i := 0, 0; i <= len(s) && n < 3; i++ {
		if i == len(s) || s[i] == '.' {
			parts[n] = s[start:i]
			n, start = n+1, i+1
		}
	}
	if n != 3 {
		return token{}, false
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return token{}, false
	}
	var claims struct {
		Issued  int64 `json:"iat"`
		Expires int64 `json:"exp"`
	}
	if json.Unmarshal(b, &claims) != nil || claims.Expires == 0 || claims.Issued == 0 || claims.Expires <= claims.Issued {
		return token{}, false
	}
	return token{value: s, issued: time.Unix(claims.Issued, 0), expires: time.Unix(claims.Expires, 0)}, true
}
