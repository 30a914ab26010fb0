package launch

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/agent/certs"
)

// advised adds to what goes wrong with credentials what to do about it: to
// errors of TLS in their text, and to a refusal in the log, once until requests
// are accepted again.
type advised struct {
	next http.RoundTripper
	log  *slog.Logger
	// certificate is the client certificate in use; nil for none.
	certificate func() *x509.Certificate
	roots       *x509.CertPool
	told        atomic.Bool
}

// advise wraps the transport of a client configuration made from base.
// current, if set, is asked for the client certificate instead.
func advise(settings, base *rest.Config, current func() *tls.Certificate, log *slog.Logger) {
	a := &advised{next: settings.Transport, log: log, roots: authorities(base)}
	a.certificate = func() *x509.Certificate {
		if current != nil {
			return leaf(current())
		}
		pair, err := keyPair(base)
		if err != nil {
			return nil
		}
		return leaf(&pair)
	}
	settings.Transport = a
}

// RoundTrip implements http.RoundTripper.
func (a *advised) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := a.next.RoundTrip(req)
	switch {
	case err != nil:
		return res, certs.Explain(err)
	case res.StatusCode == http.StatusUnauthorized:
		if a.told.CompareAndSwap(false, true) {
			a.log.Error("the API server refuses this node's credentials", "because", certs.Refused(a.certificate(), a.roots, time.Now()))
		}
	case res.StatusCode < http.StatusBadRequest:
		a.told.Store(false)
	}
	return res, nil
}

// WrappedRoundTripper lets clients find what is below, to close what is idle.
func (a *advised) WrappedRoundTripper() http.RoundTripper { return a.next }

func keyPair(c *rest.Config) (tls.Certificate, error) {
	if len(c.CertData) > 0 {
		return tls.X509KeyPair(c.CertData, c.KeyData)
	}
	return tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
}

func leaf(pair *tls.Certificate) *x509.Certificate {
	if pair == nil || len(pair.Certificate) == 0 {
		return nil
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil
	}
	return cert
}

func authorities(c *rest.Config) *x509.CertPool {
	text := c.CAData
	if len(text) == 0 && c.CAFile != "" {
		text, _ = os.ReadFile(c.CAFile) // one that cannot be read fails elsewhere, by name
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil
	}
	return pool
}
