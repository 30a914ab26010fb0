package tokens

import (
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

func TestTokenRequests(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	boundTo := func(kind, name, uid string) *authenticationv1.BoundObjectReference {
		return &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: name, UID: types.UID(uid)}
	}
	for _, c := range []struct {
		name   string
		spec   authenticationv1.TokenRequestSpec
		change func(w *cluster)
		// want is part of the error, or "" with the times below in seconds.
		want                 string
		code                 int32
		shown, exp, warnedAt int64
	}{
		{name: "defaults", shown: 3600, exp: 3600},
		{name: "ten minutes", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(600)}, shown: 600, exp: 600},
		{name: "too short", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(599)}, want: "less than 10 minutes",
			code: 422},
		{name: "too long", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1<<32 + 1)}, want: "larger than 2^32",
			code: 422},
		{name: "clipped", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1 << 32)}, shown: 48 * 3600, exp: 48 * 3600},
		{name: "projected for a pod", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(3607),
			BoundObjectRef: boundTo("Pod", "web", "web-uid")}, shown: 3607, exp: 365 * 86400, warnedAt: 3607},
		{name: "projected for another audience", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(3607),
			Audiences: []string{"vault"}, BoundObjectRef: boundTo("Pod", "web", "")}, shown: 3607, exp: 3607},
		{name: "projected but unbound", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(3607)}, shown: 3607, exp: 3607},
		{name: "pod of another incarnation", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "web", "old")},
			want: "does not match the UID in record", code: 409},
		{name: "pod of another account", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "web", "")},
			change: func(w *cluster) { w.pod.Spec.ServiceAccountName = "else" }, want: "different serviceaccount name", code: 400},
		{name: "pod missing", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "nope", "")}, want: "not found",
			code: 404},
		{name: "account missing", change: func(w *cluster) { w.account = nil }, want: "not found", code: 404},
		{name: "node", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Node", "n1", "n1-uid")}, shown: 3600, exp: 3600},
		{name: "secret", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Secret", "s", "bad")}, want: "UID", code: 409},
		{name: "config map", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("ConfigMap", "c", "")},
			want: "allowed are v1 Pod, Node and Secret", code: 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setUp(t, newKey(t, "ecdsa"))
			if c.change != nil {
				c.change(b.cluster)
			}
			r := NewREST(RESTConfig{Generator: b.generator, Objects: b.cluster, Audiences: []string{"api"}, MaxExpiry: 48 * time.Hour,
				Now: func() time.Time { return start }})
			ctx := genericapirequest.WithNamespace(t.Context(), "team")
			out, err := r.Create(ctx, "bot", &authenticationv1.TokenRequest{Spec: c.spec}, nil, &metav1.CreateOptions{})
			if c.want != "" {
				status, isStatus := err.(apierrors.APIStatus)
				if !isStatus || status.Status().Code != c.code || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got error %v, want %d with %q", err, c.code, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			status := out.(*authenticationv1.TokenRequest).Status
			parsed, err := jwt.ParseSigned(status.Token)
			if err != nil {
				t.Fatal(err)
			}
			var got claims
			if err := parsed.UnsafeClaimsWithoutVerification(&got); err != nil {
				t.Fatal(err)
			}
			since := func(at time.Time) int64 { return int64(at.Sub(start).Seconds()) }
			if since(status.ExpirationTimestamp.Time) != c.shown || since(got.Expiry.Time()) != c.exp {
				t.Errorf("shown expiry %d s, real %d s; want %d, %d", since(status.ExpirationTimestamp.Time), since(got.Expiry.Time()),
					c.shown, c.exp)
			}
			if warn := got.Kubernetes.WarnAfter; (warn != nil) != (c.warnedAt != 0) || warn != nil && since(warn.Time()) != c.warnedAt {
				t.Errorf("warnafter %v, want %d s", warn, c.warnedAt)
			}
		})
	}
}

func TestBootstrapTokens(t *testing.T) {
	const id, secret = "abcdef", "0123456789abcdef"
	valid := func() *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
			Type:       bootstrapapi.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				"token-id": []byte(id), "token-secret": []byte(secret), "usage-bootstrap-authentication": []byte("true"),
				"expiration": []byte(start.Add(time.Hour).Format(time.RFC3339)), "auth-extra-groups": []byte("system:bootstrappers:berth"),
			},
		}
	}
	for _, c := range []struct {
		name, token string
		change      func(s *corev1.Secret)
		want        bool
	}{
		{"valid", id + "." + secret, func(*corev1.Secret) {}, true},
		{"never expires", id + "." + secret, func(s *corev1.Secret) { delete(s.Data, "expiration") }, true},
		{"wrong secret", id + ".fedcba9876543210", func(*corev1.Secret) {}, false},
		{"unknown id", "zzzzzz." + secret, func(*corev1.Secret) {}, false},
		{"not this form", "Bearer", func(*corev1.Secret) {}, false},
		{"expired", id + "." + secret,
			func(s *corev1.Secret) { s.Data["expiration"] = []byte(start.Add(-time.Second).Format(time.RFC3339)) }, false},
		{"expiry unreadable", id + "." + secret, func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") }, false},
		{"for signing only", id + "." + secret, func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }, false},
		{"other type", id + "." + secret, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		{"being deleted", id + "." + secret, func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: start} }, false},
		{"id differs", id + "." + secret, func(s *corev1.Secret) { s.Data["token-id"] = []byte("bcdefg") }, false},
		{"group out of bounds", id + "." + secret, func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") },
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster()
			w.secret = valid()
			c.change(w.secret)
			b := &Bootstrap{Objects: w, Now: func() time.Time { return start }}
			got, ok, err := b.AuthenticateToken(t.Context(), c.token)
			if ok != c.want || err != nil {
				t.Fatalf("got %v, %v, want %v", ok, err, c.want)
			}
			if ok && (got.User.GetName() != "system:bootstrap:abcdef" || strings.Join(got.User.GetGroups(), ",") == "") {
				t.Errorf("user %+v", got.User)
			}
			if ok && strings.Join(got.User.GetGroups(), ",") != "system:bootstrappers,system:bootstrappers:berth" {
				t.Errorf("groups %v", got.User.GetGroups())
			}
		})
	}
}
