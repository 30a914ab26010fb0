package auth

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestCertificatesAreRemembered: one connection's certificate is checked once,
// and again when the CAs change or it runs out; a bad one each time.
func TestCertificatesAreRemembered(t *testing.T) {
	checks, good, now := 0, true, time.Unix(1000, 0)
	verify := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		checks++
		if !good {
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "n"}}, true, nil
	})
	roots := x509.NewCertPool()
	c := rememberCertificates(verify, func() (x509.VerifyOptions, bool) { return x509.VerifyOptions{Roots: roots}, true })
	c.now = func() time.Time { return now }
	leaf := &x509.Certificate{NotAfter: now.Add(time.Hour)}
	ask := func(what string, cert *x509.Certificate, wantOK bool, wantChecks int) {
		t.Helper()
		req := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}
		r, ok, err := c.AuthenticateRequest(req)
		if err != nil || ok != wantOK || checks != wantChecks || ok && r.User.GetName() != "n" {
			t.Errorf("%s: %v %t %v after %d checks, want %t after %d", what, r, ok, err, checks, wantOK, wantChecks)
		}
	}
	ask("first", leaf, true, 1)
	ask("again", leaf, true, 1)
	ask("another connection", &x509.Certificate{NotAfter: leaf.NotAfter}, true, 2)
	good = false
	ask("good before", leaf, true, 2)
	roots = x509.NewCertPool()
	ask("other authorities", leaf, false, 3)
	ask("bad again", leaf, false, 4)
	good = true
	ask("good now", leaf, true, 5)
	now = now.Add(2 * time.Hour)
	ask("run out", leaf, true, 6)
	ask("run out still", leaf, true, 7)
}
