package bootstrap

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/cluster-bootstrap/token/api"
)

// TestExpires: when a token is of no more use. A time that cannot be read must
// not let a token live for ever.
func TestExpires(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		text string
		at   time.Time
		ok   bool
	}{
		{"", time.Time{}, false}, {"2030-01-02T03:04:05Z", at, true}, {"2030-01-02T05:04:05+02:00", at, true},
		{"tomorrow", time.Time{}, true}, {"1893553445", time.Time{}, true}, {" ", time.Time{}, true},
	} {
		got, ok := expires(&v1.Secret{Data: map[string][]byte{api.BootstrapTokenExpirationKey: []byte(c.text)}})
		if !got.Equal(c.at) || ok != c.ok {
			t.Errorf("%q: %s, %v; want %s, %v", c.text, got, ok, c.at, c.ok)
		}
	}
}

// TestWhatSigns: everything that keeps a secret from signing, one at a time.
func TestWhatSigns(t *testing.T) {
	now := time.Unix(1000, 0)
	for why, change := range map[string]func(*v1.Secret){
		"":                        func(*v1.Secret) {},
		"another type":            func(s *v1.Secret) { s.Type = v1.SecretTypeOpaque },
		"being deleted":           func(s *v1.Secret) { s.DeletionTimestamp = &metav1.Time{} },
		"no secret":               func(s *v1.Secret) { delete(s.Data, api.BootstrapTokenSecretKey) },
		"a name of another token": func(s *v1.Secret) { s.Name = api.BootstrapTokenSecretPrefix + "zzzzzz" },
		"not for signing":         func(s *v1.Secret) { delete(s.Data, api.BootstrapTokenUsageSigningKey) },
		"expires now": func(s *v1.Secret) {
			s.Data[api.BootstrapTokenExpirationKey] = []byte(now.UTC().Format(time.RFC3339))
		},
	} {
		s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: api.BootstrapTokenSecretPrefix + "abcdef"}, Type: api.SecretTypeBootstrapToken,
			Data: map[string][]byte{api.BootstrapTokenIDKey: []byte("abcdef"), api.BootstrapTokenSecretKey: []byte("0123456789abcdef"),
				api.BootstrapTokenUsageSigningKey: []byte("true")}}
		change(s)
		got, again, err := signatures("config", []*v1.Secret{s}, now)
		if err != nil || (len(got) == 1) != (why == "") || again != 0 {
			t.Errorf("%q: %d signatures, again in %s, %v", why, len(got), again, err)
		}
	}
}

// TestSignatureIsTheFiles: another kubeconfig has another signature; the first
// expiry of several decides when to look again.
func TestSignatureIsTheFiles(t *testing.T) {
	now := time.Unix(1000, 0)
	token := func(id string, left time.Duration) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: api.BootstrapTokenSecretPrefix + id}, Type: api.SecretTypeBootstrapToken,
			Data: map[string][]byte{api.BootstrapTokenIDKey: []byte(id), api.BootstrapTokenSecretKey: []byte("0123456789abcdef"),
				api.BootstrapTokenUsageSigningKey: []byte("true"),
				api.BootstrapTokenExpirationKey:   []byte(now.Add(left).UTC().Format(time.RFC3339))}}
	}
	list := []*v1.Secret{token("aaaaaa", 3*time.Hour), token("bbbbbb", time.Hour), token("cccccc", 2*time.Hour)}
	one, again, err := signatures("one", list, now)
	if err != nil || again != time.Hour || len(one) != 3 {
		t.Fatalf("%d signatures, again in %s, %v", len(one), again, err)
	}
	two, _, err := signatures("two", list, now)
	if err != nil {
		t.Fatal(err)
	}
	for key := range one {
		if one[key] == two[key] {
			t.Errorf("%s does not depend on what is signed", key)
		}
	}
}
