package start

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/agent/volume"
)

// The flags of credential provider plugins belong together, and plugins that
// want tokens of service accounts need an API server to get them from.
func TestCredentialProviderFlags(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plug"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "providers.yaml")
	text := `{kind: CredentialProviderConfig, apiVersion: kubelet.config.k8s.io/v1, providers: [{name: plug, matchImages: ["r.example"],
defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1, tokenAttributes: {serviceAccountTokenAudience: aud, ` +
		`cacheType: Token, requireServiceAccount: true}}]}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "u",
		Annotations: map[string]string{"a": "b"}}})
	for _, test := range []struct {
		name, config, dir string
		static            bool
		err               string
	}{
		{"none", "", "", false, ""},
		{"file", config, dir, false, ""},
		{"directory", dir, dir, false, ""},
		{"no plugins", config, "", false, "belong together"},
		{"no configuration", "", dir, false, "belong together"},
		{"no such plugin", config, t.TempDir(), false, "finding the plugin"},
		{"an empty directory", t.TempDir(), dir, false, "has no *.json, *.yaml or *.yml file"},
		{"static pods alone", config, dir, true, "without an API server"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var api kubernetes.Interface
			if !test.static {
				api = client
			}
			got, err := CredentialProviders(test.config, test.dir, api, nil)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
			if err == nil && (got != nil) != (test.config != "") {
				t.Errorf("providers %v", got)
			}
		})
	}
	m := volume.New(volume.Config{RootDir: dir, Client: client})
	defer m.Close()
	account, err := accounts{client: client, volumes: m}.Account(t.Context(), "ns", "sa")
	if err != nil || account.UID != "u" || account.Annotations["a"] != "b" {
		t.Errorf("account %+v, %v", account, err)
	}
}
