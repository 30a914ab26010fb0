package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/keyutil"

	"github.com/berth-dev/berth/internal/control/auth/tokens"
)

// testCA signs client certificates in tests.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newTestCA(t *testing.T, name string) *testCA {
	t.Helper()
	a := &testCA{file: filepath.Join(t.TempDir(), name+".crt")}
	a.key = newKey(t)
	a.cert = a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, a.key)
	if err := os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *testCA) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(1)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *testCA) client(t *testing.T, name string, groups ...string) *x509.Certificate {
	return a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, newKey(t))
}

type setup struct {
	*Auth
	clients, proxies *testCA
	account          *corev1.ServiceAccount
}

func setUp(t *testing.T, objects ...runtime.Object) *setup {
	t.Helper()
	s := &setup{clients: newTestCA(t, "clients"), proxies: newTestCA(t, "proxies")}
	s.account = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "bot", UID: "1"}}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "sa.key")
	if err := os.WriteFile(keyFile, keyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(append(objects, s.account)...)
	factory := informers.NewSharedInformerFactory(client, 0)
	s.Auth, err = New(Config{
		ClientCAFile: s.clients.file, RequestHeaderCAFile: s.proxies.file, SASigningKeyFile: keyFile,
		Issuer: "https://berth.test", Audiences: []string{"api"}, Informers: factory, Client: client, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ReadyCheck(nil); err == nil || !strings.Contains(err.Error(), "RBAC, Node authorizer, token lookups") {
		t.Errorf("before the informers start, readiness says %v", err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	// Handlers run moments after the lists arrive.
	if !cache.WaitForCacheSync(t.Context().Done(), s.HasSynced) {
		t.Fatal("authorizers never caught up with the informers")
	}
	return s
}

func TestWhoSendsARequest(t *testing.T) {
	s := setUp(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-authentication": []byte("true")},
	})
	bot, _, err := s.TokenGenerator.Generate(tokens.Binding{ServiceAccount: s.account}, tokens.Terms{Audiences: []string{"api"},
		IssuedAt: time.Now(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		cert       *x509.Certificate
		header     map[string]string
		want       string // user [groups], "" for nobody
	}{
		{name: "client certificate", path: "/api", cert: s.clients.client(t, "ann", "devs"), want: "ann [devs system:authenticated]"},
		{name: "certificate of another CA", path: "/api", cert: newTestCA(t, "x").client(t, "ann", "system:masters")},
		{name: "service account", path: "/api", header: map[string]string{"Authorization": "Bearer " + bot},
			want: "system:serviceaccount:team:bot [system:serviceaccounts system:serviceaccounts:team system:authenticated]"},
		{name: "bootstrap token", path: "/api", header: map[string]string{"Authorization": "Bearer abcdef.0123456789abcdef"},
			want: "system:bootstrap:abcdef [system:bootstrappers system:authenticated]"},
		{name: "wrong token", path: "/api", header: map[string]string{"Authorization": "Bearer abcdef.0123456789abcdeg"}},
		{name: "wrong token on an open path", path: "/healthz",
			header: map[string]string{"Authorization": "Bearer abcdef.0123456789abcdeg"}},
		{name: "front proxy", path: "/api", cert: s.proxies.client(t, "proxy"), header: map[string]string{"X-Remote-User": "eve",
			"X-Remote-Group": "ops"}, want: "eve [ops system:authenticated]"},
		{name: "proxy headers without proxy", path: "/api", header: map[string]string{"X-Remote-User": "eve"}},
		{name: "proxy headers from a client", path: "/api", cert: s.clients.client(t, "ann"),
			header: map[string]string{"X-Remote-User": "eve"}, want: "ann [system:authenticated]"},
		{name: "nobody", path: "/api"},
		{name: "nobody, health", path: "/healthz", want: "system:anonymous [system:unauthenticated]"},
		{name: "nobody, health check", path: "/livez/etcd", want: "system:anonymous [system:unauthenticated]"},
		{name: "nobody, ready", path: "/readyz", want: "system:anonymous [system:unauthenticated]"},
		{name: "nobody, version", path: "/version", want: "system:anonymous [system:unauthenticated]"},
		{name: "nobody, like health", path: "/healthzz"},
		{name: "nobody, metrics", path: "/metrics"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, c.path, nil).WithContext(t.Context())
			req.TLS = &tls.ConnectionState{}
			if c.cert != nil {
				req.TLS.PeerCertificates = []*x509.Certificate{c.cert}
			}
			for k, v := range c.header {
				req.Header.Set(k, v)
			}
			got, ok, err := s.Authenticator.AuthenticateRequest(req)
			who := ""
			if ok && err == nil {
				who = got.User.GetName() + " [" + strings.Join(got.User.GetGroups(), " ") + "]"
			}
			if who != c.want {
				t.Errorf("got %q (%v), want %q", who, err, c.want)
			}
		})
	}
	if err := s.ReadyCheck(nil); err != nil || !s.HasSynced() {
		t.Errorf("with informers in step, readiness says %v", err)
	}
}

// answer creates a review as the named user and returns it answered.
func answer[T runtime.Object](t *testing.T, s *setup, resource string, who user.Info, review T) (T, error) {
	t.Helper()
	gvk := authorizationv1.SchemeGroupVersion
	if strings.Contains(resource, "tokenreview") || resource == "selfsubjectreviews" {
		gvk = authenticationv1.SchemeGroupVersion
	}
	ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(t.Context(), "team"), who)
	out, err := s.Storage()[gvk][resource].(rest.Creater).Create(ctx, review, nil, &metav1.CreateOptions{})
	if err != nil {
		var none T
		return none, err
	}
	return out.(T), nil
}

func TestReviews(t *testing.T) {
	s := setUp(t,
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "r"},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann"}}},
	)
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{"devs"}, Extra: map[string][]string{"k": {"v"}}}
	getPods := &authorizationv1.ResourceAttributes{Namespace: "team", Verb: "get", Resource: "pods"}
	sar, err := answer(t, s, "subjectaccessreviews", ann,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "ann", ResourceAttributes: getPods}})
	if err != nil || !sar.Status.Allowed || !strings.Contains(sar.Status.Reason, `RoleBinding "b/team"`) {
		t.Errorf("SubjectAccessReview: %+v, %v", sar, err)
	}
	for _, bad := range []authorizationv1.SubjectAccessReviewSpec{
		{ResourceAttributes: getPods}, {User: "ann"}, {User: "ann", ResourceAttributes: getPods,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/x"}},
		{User: "ann", ResourceAttributes: &authorizationv1.ResourceAttributes{FieldSelector: &authorizationv1.FieldSelectorAttributes{}}},
	} {
		if _, err := answer(t, s, "subjectaccessreviews", ann, &authorizationv1.SubjectAccessReview{Spec: bad}); err == nil {
			t.Errorf("SubjectAccessReview with %+v is accepted", bad)
		}
	}
	self, err := answer(t, s, "selfsubjectaccessreviews", ann,
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}}})
	if err != nil || self.Status.Allowed || self.Status.Denied {
		t.Errorf("SelfSubjectAccessReview: %+v, %v", self, err)
	}
	elsewhere := getPods.DeepCopy()
	elsewhere.Namespace = "other"
	if _, err := answer(t, s, "localsubjectaccessreviews", ann,
		&authorizationv1.LocalSubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "ann",
			ResourceAttributes: elsewhere}}); err == nil {
		t.Error("LocalSubjectAccessReview for another namespace is accepted")
	}
	node, err := answer(t, s, "subjectaccessreviews", ann,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:node:n1", Groups: []string{"system:nodes"}, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "list", Resource: "pods", FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName=n1"},
			}}})
	if err != nil || !node.Status.Allowed {
		t.Errorf("SubjectAccessReview with a field selector: %+v, %v", node, err)
	}
	rules, err := answer(t, s, "selfsubjectrulesreviews", ann,
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "team"}})
	if err != nil || len(rules.Status.ResourceRules) != 1 || rules.Status.Incomplete {
		t.Errorf("SelfSubjectRulesReview: %+v, %v", rules, err)
	}
	me, err := answer(t, s, "selfsubjectreviews", ann, &authenticationv1.SelfSubjectReview{})
	if err != nil || me.Status.UserInfo.Username != "ann" || me.Status.UserInfo.Extra["k"][0] != "v" {
		t.Errorf("SelfSubjectReview: %+v, %v", me, err)
	}
	bot, _, err := s.TokenGenerator.Generate(tokens.Binding{ServiceAccount: s.account}, tokens.Terms{Audiences: []string{"vault"},
		IssuedAt: time.Now(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		audiences []string
		want      bool
	}{{[]string{"vault", "x"}, true}, {nil, false}} {
		r, err := answer(t, s, "tokenreviews", ann, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: bot,
			Audiences: c.audiences}})
		if err != nil || r.Status.Authenticated != c.want || c.want && (r.Status.Audiences[0] != "vault" ||
			r.Status.User.Username != "system:serviceaccount:team:bot") {
			t.Errorf("TokenReview for %v: %+v, %v", c.audiences, r, err)
		}
	}
}
