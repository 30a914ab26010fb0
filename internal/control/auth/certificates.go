package auth

import (
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// Certificates that were found good are remembered, since a client sends
// thousands of requests over one connection and checking the same signature
// each time costs a twentieth of a small write. rememberedCertificates bounds
// how many, rememberFor how long one is held that no one shows any more.
const (
	rememberedCertificates = 8192
	rememberFor            = 10 * time.Minute
)

// certificates answers for a client certificate that verify found good, as
// long as it is valid and the CAs are the same.
type certificates struct {
	verify authenticator.Request
	// options tells the CAs in force; a change of the file makes new
	// ones.
	options func() (x509.VerifyOptions, bool)
	// good maps the certificate object, of which each connection has its own, to
	// what was found.
	good *cache.LRUExpireCache
	now  func() time.Time
}

type found struct {
	response *authenticator.Response
	roots    *x509.CertPool
}

func rememberCertificates(verify authenticator.Request, options func() (x509.VerifyOptions, bool)) *certificates {
	return &certificates{verify: verify, options: options, good: cache.NewLRUExpireCache(rememberedCertificates), now: time.Now}
}

// AuthenticateRequest implements authenticator.Request.
func (c *certificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	options, ok := c.options()
	if !ok || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return c.verify.AuthenticateRequest(req)
	}
	chain := req.TLS.PeerCertificates
	if known, ok := c.good.Get(chain[0]); ok {
		if f := known.(found); f.roots == options.Roots && c.valid(chain) {
			response := *f.response
			return &response, true, nil
		}
	}
	response, ok, err := c.verify.AuthenticateRequest(req)
	if ok && err == nil {
		c.good.Add(chain[0], found{response, options.Roots}, rememberFor)
	}
	return response, ok, err
}

func (c *certificates) valid(chain []*x509.Certificate) bool {
	now := c.now()
	for _, cert := range chain {
		if now.After(cert.NotAfter) {
			return false
		}
	}
	return true
}
