package encryption

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kms/pkg/service"
)

// vault is a KMS v2 plugin whose "encryption" turns bytes round: what matters
// is who is asked for what.
type vault struct{}

func turned(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out
}

func (vault) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	return &service.EncryptResponse{Ciphertext: turned(data), KeyID: "k1"}, nil
}

func (vault) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	if r.KeyID != "k1" {
		return nil, errors.New("no such key")
	}
	return turned(r.Ciphertext), nil
}

func (vault) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: "k1"}, nil
}

var key = strings.NewReplacer("1", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)), "2",
	base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{2}, 32)))

func configuration(providers ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - " +
		strings.Join(providers, "\n  - ") + "\n  - identity: {}\n"
}

func aes(kind, name, n string) string {
	return fmt.Sprintf("%s: {keys: [{name: %s, secret: %q}]}", kind, name, key.Replace(n))
}

var secrets = schema.GroupResource{Resource: "secrets"}

const clear = "the clear text"

func seal(t *testing.T, e *Encryption) []byte {
	t.Helper()
	out, err := e.Transformer(secrets).TransformToStorage(t.Context(), []byte(clear), value.DefaultContext("/registry/secrets/ns/s"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte(clear)) {
		t.Errorf("stored in clear text: %q", out)
	}
	return out
}

func unseal(t *testing.T, e *Encryption, sealed []byte, place string) (string, error) {
	t.Helper()
	out, _, err := e.Transformer(secrets).TransformFromStorage(t.Context(), sealed, value.DefaultContext(place))
	return string(out), err
}

// TestProviders: each provider that --encryption-provider-config may name seals
// and opens; what was sealed for one object opens as no other; bytes that
// changed do not open; a configuration without the key opens nothing; other
// resources stay as they are.
func TestProviders(t *testing.T) {
	for _, test := range []struct{ name, provider, prefix string }{
		{"aescbc", aes("aescbc", "a", "1"), "k8s:enc:aescbc:v1:a:"},
		{"aesgcm", aes("aesgcm", "a", "1"), "k8s:enc:aesgcm:v1:a:"},
		{"secretbox", aes("secretbox", "a", "1"), "k8s:enc:secretbox:v1:a:"},
		{"kms", kms(startVault(t)), "k8s:enc:kms:v2:vault:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := load(t, configuration(test.provider))
			if test.name == "kms" { // it is asked in the background for the key in use
				for e.HealthCheck().Check(httptest.NewRequest("GET", "/healthz", nil)) != nil && t.Context().Err() == nil {
					<-time.After(10 * time.Millisecond)
				}
			}
			sealed := seal(t, e)
			if !bytes.HasPrefix(sealed, []byte(test.prefix)) {
				t.Errorf("stored as %q", sealed[:min(len(sealed), 40)])
			}
			if got, err := unseal(t, e, sealed, "/registry/secrets/ns/s"); err != nil || got != clear {
				t.Errorf("opened as %q, %v", got, err)
			}
			if got, err := unseal(t, e, []byte(clear), "/registry/secrets/ns/s"); err != nil || got != clear {
				t.Errorf("what was there before the keys opens as %q, %v", got, err)
			}
			// AES-CBC and secretbox do not bind the place (upstream's formats).
			if test.name == "aesgcm" || test.name == "kms" {
				if got, err := unseal(t, e, sealed, "/registry/secrets/ns/other"); err == nil {
					t.Errorf("opened in another place: %q", got)
				}
			}
			if test.name != "aescbc" {
				broken := bytes.Clone(sealed)
				broken[len(broken)-1] ^= 1
				if got, err := unseal(t, e, broken, "/registry/secrets/ns/s"); err == nil {
					t.Errorf("changed bytes opened: %q", got)
				}
			}
			if got, err := unseal(t, load(t, configuration(aes("secretbox", "b", "2"))), sealed, "/registry/secrets/ns/s"); err == nil {
				t.Errorf("opened without the key: %q", got)
			}
			maps := schema.GroupResource{Resource: "configmaps"}
			if out, err := e.Transformer(maps).TransformToStorage(t.Context(), []byte(clear), value.DefaultContext("x")); err != nil ||
				string(out) != clear {
				t.Errorf("a ConfigMap is stored as %q, %v", out, err)
			}
		})
	}
}

func load(t *testing.T, text string) *Encryption {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Load(t.Context(), file, "server")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestReload: a changed file counts at once, what the old keys sealed opens as
// long as they are in it, and a file that cannot be used changes nothing.
func TestReload(t *testing.T) {
	e := load(t, configuration(aes("aescbc", "old", "1")))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Follow(ctx, slog.New(slog.DiscardHandler)) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	before := seal(t, e)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(e.file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(e.file+".new", e.file); err != nil {
			t.Fatal(err)
		}
		_ = e.Reload() // the watch does the same; either may come first
	}
	write(configuration(aes("aesgcm", "new", "2"), aes("aescbc", "old", "1")))
	if sealed := seal(t, e); !bytes.HasPrefix(sealed, []byte("k8s:enc:aesgcm:v1:new:")) {
		t.Errorf("after the change stored as %q", sealed[:30])
	}
	if got, err := unseal(t, e, before, "/registry/secrets/ns/s"); err != nil || got != clear {
		t.Errorf("the old key's: %q, %v", got, err)
	}
	write(configuration("aesgcm: {keys: [{name: x, secret: dG9vIHNob3J0}]}"))
	if sealed := seal(t, e); !bytes.HasPrefix(sealed, []byte("k8s:enc:aesgcm:v1:new:")) {
		t.Errorf("a bad file was taken over: stored as %q", sealed[:30])
	}
	write(configuration(aes("aesgcm", "new", "2")))
	if got, err := unseal(t, e, before, "/registry/secrets/ns/s"); err == nil {
		t.Errorf("opened without its key: %q", got)
	}
	write(configuration(kms(startVault(t)), aes("aesgcm", "new", "2")))
	if sealed := seal(t, e); !bytes.HasPrefix(sealed, []byte("k8s:enc:kms:v2:vault:")) {
		t.Errorf("with a KMS stored as %q", sealed[:30])
	}
}

func kms(endpoint string) string {
	return fmt.Sprintf("kms: {apiVersion: v2, name: vault, endpoint: %q, timeout: 1m}", endpoint)
}

func startVault(t *testing.T) (endpoint string) {
	endpoint = "unix://" + filepath.Join(t.TempDir(), "kms.sock")
	plugin := service.NewGRPCService(strings.TrimPrefix(endpoint, "unix://"), time.Minute, vault{})
	served := make(chan error, 1)
	go func() { served <- plugin.ListenAndServe() }()
	t.Cleanup(func() { plugin.Close(); <-served })
	for { // it listens soon
		if _, err := os.Stat(strings.TrimPrefix(endpoint, "unix://")); err == nil || t.Context().Err() != nil {
			return endpoint
		}
		<-time.After(time.Millisecond)
	}
}
