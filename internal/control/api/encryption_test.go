package api_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/api/encryption"
)

const clearText = "the-clear-text-of-a-secret"

func stored(t *testing.T, env *apitest.Env, name string) []byte {
	t.Helper()
	got, err := env.Store.Client().Get(t.Context(), "/registry/secrets/default/"+name)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("reading secret %s from the store: %v, %v", name, got, err)
	}
	return got.Kvs[0].Value
}

func makeSecret(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": clearText}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSecretsAtRest is the holder of a backup: who has the store's bytes reads
// no Secret, neither before a rotation nor after, and an old key opens nothing.
func TestSecretsAtRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := encryption.Create(file); err != nil {
		t.Fatal(err)
	}
	if err := encryption.Create(file); err == nil {
		t.Error("the keys of a cluster were replaced")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the keys' file has mode %v, %v", info.Mode(), err)
	}
	// A cluster from before: its secret is stored clear.
	dir := t.TempDir()
	old := apitest.StartEnv(t, apitest.WithDir(dir))
	makeSecret(t, kubernetes.NewForConfigOrDie(old.Config), "from-before")
	if !bytes.Contains(stored(t, old, "from-before"), []byte(clearText)) {
		t.Fatal("the test looks for a text that is not there")
	}
	old.Stop()

	env := apitest.StartEnv(t, apitest.WithDir(dir), apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Audit.LogOptions.Path, c.Options.Fairness = "", false
		c.Options.EncryptionConfig = file
	}))
	client := kubernetes.NewForConfigOrDie(env.Config)
	makeSecret(t, client, "new")
	expectKey := func(name, key string) {
		t.Helper()
		if value := stored(t, env, name); bytes.Contains(value, []byte(clearText)) ||
			!bytes.HasPrefix(value, []byte("k8s:enc:secretbox:v1:"+key+":")) {
			t.Errorf("secret %s is stored as %q..., want it under key %s", name, value[:min(len(value), 40)], key)
		}
	}
	readable := func(names ...string) {
		t.Helper()
		for _, name := range names {
			got, err := client.CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || string(got.Data["k"]) != clearText {
				t.Errorf("secret %s cannot be read: %v", name, err)
			}
		}
	}
	expectKey("new", "1")
	readable("new", "from-before")

	if err := encryption.AddKey(file); err != nil {
		t.Fatal(err)
	}
	if n, err := env.Server.Reencrypt(t.Context()); err != nil || n < 2 {
		t.Fatalf("rewrote %d, %v", n, err)
	}
	expectKey("new", "2")
	expectKey("from-before", "2")
	if err := encryption.DropOldKeys(file); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Server.Reencrypt(t.Context()); err != nil {
		t.Fatal(err)
	}
	readable("new", "from-before")
	makeSecret(t, client, "third")
	expectKey("third", "2")
}

// TestAuditLog: the built-in policy says who did what to which Secret, and
// never what is in it.
func TestAuditLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Audit.LogOptions.Path, c.Options.Fairness = file, false
	}))
	ann := kubernetes.NewForConfigOrDie(env.As(t, "ann", "system:masters"))
	makeSecret(t, ann, "audited")
	if _, err := ann.CoreV1().Secrets("default").Get(t.Context(), "audited", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	env.Stop() // writes what is buffered
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{`"verb":"create"`, `"verb":"get"`, `"username":"ann"`, `"name":"audited"`, `"level":"Metadata"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the audit log has no %s", want)
		}
	}
	for _, never := range []string{clearText, `"requestObject"`, `"responseObject"`, "system:apiserver", "/healthz"} {
		if strings.Contains(text, never) {
			t.Errorf("the audit log has %s", never)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the audit log has mode %v, %v; want 0600", info.Mode(), err)
	}
}
