package tokens

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
)

const issuer = "https://berth.test"

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// cluster is an Objects over maps that tests change between uses.
type cluster struct {
	account *corev1.ServiceAccount
	pod     *corev1.Pod
	secret  *corev1.Secret
	node    *corev1.Node
}

func find[T any, P interface {
	*T
	metav1.Object
}](o P, resource, name string) (P, error) {
	if o == nil || o.GetName() != name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return o, nil
}

func (w *cluster) ServiceAccount(_ context.Context, _, name string, _ types.UID) (*corev1.ServiceAccount, error) {
	return find(w.account, "serviceaccounts", name)
}
func (w *cluster) Pod(_ context.Context, _, name string, _ types.UID) (*corev1.Pod, error) {
	return find(w.pod, "pods", name)
}
func (w *cluster) Secret(_ context.Context, _, name string, _ types.UID) (*corev1.Secret, error) {
	return find(w.secret, "secrets", name)
}
func (w *cluster) Node(_ context.Context, name string, _ types.UID) (*corev1.Node, error) {
	return find(w.node, "nodes", name)
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name + "-uid")}
}

func newCluster() *cluster {
	return &cluster{
		account: &corev1.ServiceAccount{ObjectMeta: meta("bot")},
		pod:     &corev1.Pod{ObjectMeta: meta("web"), Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "bot"}},
		secret:  &corev1.Secret{ObjectMeta: meta("s")},
		node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1-uid"}},
	}
}

func newKey(t testing.TB, kind string) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	if kind == "rsa" {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

type bench struct {
	*cluster
	now       time.Time
	generator *Generator
	verifier  *verifier
}

func setUp(t testing.TB, key crypto.Signer) *bench {
	t.Helper()
	b := &bench{cluster: newCluster(), now: start}
	set, err := newKeySet(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if b.generator, err = newGeneratorFromKey(issuer, key); err != nil {
		t.Fatal(err)
	}
	b.verifier, err = NewVerifier(VerifierConfig{
		Issuers: []string{issuer}, Audiences: []string{"api"}, Keys: set, Objects: b.cluster, Now: func() time.Time { return b.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) token(t testing.TB, to Binding, audiences ...string) string {
	t.Helper()
	to.ServiceAccount = b.account
	token, _, err := b.generator.Generate(to, Terms{Audiences: audiences, IssuedAt: start, Expires: start.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokenLife(t *testing.T) {
	deleted := &metav1.Time{Time: start.Add(10 * time.Minute)}
	for _, c := range []struct {
		name   string
		bind   func(b *bench) Binding
		change func(b *bench)
		want   string // "" is valid; otherwise a part of the error
	}{
		{name: "fresh", change: func(*bench) {}},
		{name: "expired", change: func(b *bench) { b.now = start.Add(time.Hour + 61*time.Second) }, want: "expired"},
		{name: "expired within leeway", change: func(b *bench) { b.now = start.Add(time.Hour + 59*time.Second) }},
		{name: "not yet valid", change: func(b *bench) { b.now = start.Add(-61 * time.Second) }, want: "not valid yet"},
		{name: "account gone", change: func(b *bench) { b.account = nil }, want: `service account "bot"`},
		{name: "account made anew",
			change: func(b *bench) { b.account = &corev1.ServiceAccount{ObjectMeta: meta("bot")}; b.account.UID = "new" }, want: "UID new"},
		{name: "account deleted long ago",
			change: func(b *bench) { b.account.DeletionTimestamp = deleted; b.now = start.Add(12 * time.Minute) }, want: "is deleted"},
		{name: "account deleted just now", change: func(b *bench) {
			b.account.DeletionTimestamp = deleted
			b.now = start.Add(10*time.Minute + 59*time.Second)
		}},
		{name: "pod there", bind: ofPod, change: func(*bench) {}},
		{name: "pod gone", bind: ofPod, change: func(b *bench) { b.pod = nil }, want: `pod "web"`},
		{name: "pod made anew", bind: ofPod, change: func(b *bench) { b.pod.UID = "new" }, want: "UID new"},
		{name: "pod deleted", bind: ofPod,
			change: func(b *bench) { b.pod.DeletionTimestamp = deleted; b.now = start.Add(12 * time.Minute) }, want: "is deleted"},
		{name: "node of pod gone", bind: ofPod, change: func(b *bench) { b.node = nil }},
		{name: "node gone", bind: func(b *bench) Binding { return Binding{Node: b.node} }, change: func(b *bench) { b.node = nil },
			want: `node "n1"`},
		{name: "secret gone", bind: func(b *bench) Binding { return Binding{Secret: b.secret} }, change: func(b *bench) { b.secret = nil },
			want: `secret "s"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setUp(t, newKey(t, "ecdsa"))
			to := Binding{}
			if c.bind != nil {
				to = c.bind(b)
			}
			token := b.token(t, to, "api")
			if _, ok, err := b.verifier.AuthenticateToken(t.Context(), token); !ok || err != nil {
				t.Fatalf("before the change the token is refused: %v", err)
			}
			c.change(b)
			_, ok, err := b.verifier.AuthenticateToken(t.Context(), token)
			if c.want == "" && (!ok || err != nil) {
				t.Errorf("refused: %v", err)
			}
			if c.want != "" && (ok || err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, %v, want an error with %q", ok, err, c.want)
			}
		})
	}
}

func ofPod(b *bench) Binding { return Binding{Pod: b.pod, Node: b.node} }

func TestForeignAndForgedTokens(t *testing.T) {
	key := newKey(t, "rsa")
	b := setUp(t, key)
	good := b.token(t, Binding{}, "api")
	parts := strings.Split(good, ".")
	other := setUp(t, newKey(t, "rsa"))
	foreign, err := newGeneratorFromKey("https://elsewhere", key)
	if err != nil {
		t.Fatal(err)
	}
	foreignToken, _, err := foreign.Generate(Binding{ServiceAccount: b.account}, Terms{IssuedAt: start, Expires: start.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	hmacKey, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	hmac, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: hmacKey}, nil)
	if err != nil {
		t.Fatal(err)
	}
	confused, err := jwt.Signed(hmac).Claims(claimsFor(issuer, "x", Binding{ServiceAccount: b.account},
		Terms{Expires: start.Add(time.Hour)})).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := newSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	legacy, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": issuer, "sub": "system:serviceaccount:team:bot",
		"kubernetes.io/serviceaccount/namespace": "team", "kubernetes.io/serviceaccount/service-account.name": "bot",
	}).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	impostor := claimsFor(issuer, "x", Binding{ServiceAccount: b.account}, Terms{Expires: start.Add(time.Hour)})
	impostor.Subject = "system:serviceaccount:kube-system:admin"
	misnamed, err := jwt.Signed(signer).Claims(impostor).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, token, want string }{
		{"not a JWT", "hello", ""},
		{"another issuer", foreignToken, ""},
		{"another key", other.token(t, Binding{}, "api"), "no known key"},
		{"payload swapped", parts[0] + "." + strings.Split(b.token(t, Binding{Pod: b.pod}, "api"), ".")[1] + "." + parts[2],
			"no known key"},
		{"public key as HMAC secret", confused, "no known key"},
		{"legacy token", legacy, "names no service account"},
		{"subject is someone else", misnamed, "not its service account"},
		{"no audience shared", b.token(t, Binding{}, "vault"), "audiences"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, ok, err := b.verifier.AuthenticateToken(t.Context(), c.token)
			switch {
			case ok:
				t.Error("accepted")
			case c.want == "" && err != nil:
				t.Errorf("a token that is not ours gives error %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestIdentityAndAudiences(t *testing.T) {
	b := setUp(t, newKey(t, "ecdsa"))
	token := b.token(t, ofPod(b), "api", "vault")
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault", "other"})
	got, ok, err := b.verifier.AuthenticateToken(ctx, token)
	if !ok || err != nil {
		t.Fatal(err)
	}
	if len(got.Audiences) != 1 || got.Audiences[0] != "vault" {
		t.Errorf("audiences %v, want [vault]", got.Audiences)
	}
	u := got.User
	extra := u.GetExtra()
	if !strings.HasPrefix(extra["authentication.kubernetes.io/credential-id"][0], "JTI=") {
		t.Errorf("credential id %v", extra)
	}
	delete(extra, "authentication.kubernetes.io/credential-id")
	text, err := json.Marshal(map[string]any{"name": u.GetName(), "uid": u.GetUID(), "groups": u.GetGroups(), "extra": extra})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"extra":{"authentication.kubernetes.io/node-name":["n1"],"authentication.kubernetes.io/node-uid":["n1-uid"],` +
		`"authentication.kubernetes.io/pod-name":["web"],"authentication.kubernetes.io/pod-uid":["web-uid"]},` +
		`"groups":["system:serviceaccounts","system:serviceaccounts:team"],"name":"system:serviceaccount:team:bot","uid":"bot-uid"}`
	if string(text) != want {
		t.Errorf("identity\n got %s\nwant %s", text, want)
	}
}

func TestClaimsOnTheWire(t *testing.T) {
	w := newCluster()
	terms := Terms{Audiences: []string{"api"}, IssuedAt: start, Expires: start.Add(time.Hour), WarnAfter: start.Add(time.Minute)}
	for _, c := range []struct {
		name string
		to   Binding
		want string
	}{
		{"pod", Binding{w.account, w.pod, nil, w.node},
			`{"namespace":"team","serviceaccount":{"name":"bot","uid":"bot-uid"},"pod":{"name":"web","uid":"web-uid"},` +
				`"node":{"name":"n1","uid":"n1-uid"},"warnafter":1767323105}`},
		{"pod on lost node", Binding{w.account, w.pod, nil, nil},
			`{"namespace":"team","serviceaccount":{"name":"bot","uid":"bot-uid"},"pod":{"name":"web","uid":"web-uid"},` +
				`"node":{"name":"n1"},"warnafter":1767323105}`},
		{"secret", Binding{w.account, nil, w.secret, nil},
			`{"namespace":"team","serviceaccount":{"name":"bot","uid":"bot-uid"},"secret":{"name":"s","uid":"s-uid"},` +
				`"warnafter":1767323105}`},
	} {
		got, err := json.Marshal(claimsFor(issuer, "id", c.to, terms))
		if err != nil {
			t.Fatal(err)
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(got, &whole); err != nil {
			t.Fatal(err)
		}
		if string(whole["kubernetes.io"]) != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, whole["kubernetes.io"], c.want)
		}
		if string(whole["exp"]) != "1767326645" || string(whole["nbf"]) != "1767323045" || string(whole["jti"]) != `"id"` {
			t.Errorf("%s: registered claims %s", c.name, got)
		}
	}
}

func TestKeyFilesAndDiscovery(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for i, kind := range []string{"rsa", "ecdsa"} {
		pem, err := keyutil.MarshalPrivateKeyToPEM(newKey(t, kind))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(dir, kind))
		if err := os.WriteFile(files[i], pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, err := LoadKeySet(append(files, files[0])...)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		g, err := NewGenerator(issuer, file)
		if err != nil {
			t.Fatal(err)
		}
		w := newCluster()
		v, err := NewVerifier(VerifierConfig{Issuers: []string{issuer}, Keys: set, Objects: w})
		if err != nil {
			t.Fatal(err)
		}
		token, _, err := g.Generate(Binding{ServiceAccount: w.account}, Terms{Audiences: []string{issuer}, IssuedAt: time.Now(),
			Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := v.AuthenticateToken(t.Context(), token); !ok {
			t.Errorf("token signed with %s is refused: %v", filepath.Base(file), err)
		}
	}
	d, err := NewDiscovery(issuer+"/", "", set)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"issuer":"https://berth.test/","jwks_uri":"https://berth.test/openid/v1/jwks","response_types_supported":["id_token"],` +
		`"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","RS256"]}`
	if string(d.Configuration) != want {
		t.Errorf("configuration\n got %s\nwant %s", d.Configuration, want)
	}
	var jwks jose.JSONWebKeySet
	if err := json.Unmarshal(d.JWKS, &jwks); err != nil || len(jwks.Keys) != 2 {
		t.Fatalf("key set %s: %v", d.JWKS, err)
	}
	for _, key := range jwks.Keys {
		if !key.IsPublic() || key.Use != "sig" || key.KeyID == "" {
			t.Errorf("key %+v is not a public signing key with an ID", key)
		}
	}
	if _, err := LoadKeySet(filepath.Join(dir, "absent")); err == nil {
		t.Error("an absent key file gives no error")
	}
}

// BenchmarkAuthenticate is the price of a request with a token seen before.
func BenchmarkAuthenticate(b *testing.B) {
	w := setUp(b, newKey(b, "rsa"))
	token := w.token(b, ofPod(w), "api")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := w.verifier.AuthenticateToken(b.Context(), token); !ok {
			b.Fatal(err)
		}
	}
}
