package auth

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	unionauthorizer "k8s.io/apiserver/pkg/authorization/union"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestIssuer: a token of the named OpenID issuer makes a user; one for another
// audience does not.
func TestIssuer(t *testing.T) {
	key := newKey(t)
	var url string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "openid-configuration") {
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": url, "jwks_uri": url + "/keys"})
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256",
			Use: "sig"}}})
	}))
	t.Cleanup(server.Close)
	url = server.URL
	o := NewOptions()
	o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.GroupsClaim, o.OIDC.SigningAlgs = url, "berth", "groups", []string{"ES256"}
	o.OIDC.CAFile = writeFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	issuers, err := o.issuers(t.Context(), "https://own.test")
	if err != nil || len(issuers) != 1 {
		t.Fatalf("issuers %v, %v", issuers, err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token := func(audience string) string {
		text, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": url, "aud": audience, "sub": "ann", "groups": []string{"devs"},
			"exp": time.Now().Add(time.Hour).Unix()}).CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	// The keys are fetched in the background.
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		answer, ok, err := issuers[0].AuthenticateToken(ctx, token("berth"))
		return err == nil && ok && answer.User.GetName() == url+"#ann" && answer.User.GetGroups()[0] == "devs", nil
	})
	if err != nil {
		t.Fatalf("the token was never accepted: %v", err)
	}
	if _, ok, err := issuers[0].AuthenticateToken(t.Context(), token("other")); ok {
		t.Errorf("a token for another audience is accepted (%v)", err)
	}
	o.OIDC.IssuerURL = "https://own.test"
	if _, err := o.issuers(t.Context(), "https://own.test"); err == nil {
		t.Error("another may speak for the server's own issuer")
	}
	o.AuthenticationConfig = "x"
	if errs := o.Validate(); len(errs) == 0 {
		t.Error("a file and flags together are accepted")
	}
}

// TestAuthorizationFile: a webhook before RBAC denies, and one with a
// condition is not asked for other requests.
func TestAuthorizationFile(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: review.Spec.User == "eve", Reason: "the hook says no"}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	kubeconfig := writeFile(t, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \""+server.URL+
		"\"}}]\ncontexts: [{name: c, context: {cluster: c}}]\n")
	o := NewOptions()
	o.AuthorizationConfig = writeFile(t, `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: hook
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: `+kubeconfig+`}
- {type: RBAC, name: rbac}
`)
	everything := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	})
	named, err := o.authorizers(map[string]authorizer.Authorizer{"Node": everything, "RBAC": everything})
	if err != nil || len(named) != 2 {
		t.Fatalf("authorizers %v, %v", named, err)
	}
	chain, err := unionauthorizer.New(named...)
	if err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]authorizer.Decision{"eve": authorizer.DecisionDeny, "ann": authorizer.DecisionAllow} {
		got, _, err := chain.Authorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: who}, Verb: "get",
			Resource: "pods", ResourceRequest: true})
		if got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", who, got, err, want)
		}
	}
	o.AuthorizationConfig = writeFile(t,
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: AlwaysAllow, name: a}]\n")
	if _, err := o.authorizers(nil); err == nil {
		t.Error("AlwaysAllow is accepted")
	}
}
