package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Explain adds to an error of TLS or authentication what to do about it. The
// certificate in question is the API server's: what it says of ours, see
// Refused.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired ||
		strings.Contains(text, "certificate has expired or is not yet valid"):
		if strings.Contains(text, " is before ") {
			return fmt.Errorf("%w: the API server's certificate is valid later only: this machine's clock is behind, or the server's was "+
				"ahead when it was made: set the clock", err)
		}
		return fmt.Errorf("%w: compare this machine's clock with the API server's; if they agree, the certificate must be renewed", err)
	case errors.As(err, &unknown) || strings.Contains(text, "certificate signed by unknown authority"):
		return fmt.Errorf("%w: the certificate-authority in the kubeconfig is not the one of this API server", err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: use an address in the kubeconfig that the API server's certificate names, or make a certificate that "+
			"names this one", err)
	case strings.Contains(text, "Unauthorized"):
		return fmt.Errorf("%w: the credentials are not accepted (a bootstrap token may have expired): make new ones", err)
	case strings.Contains(text, "forbidden"):
		return fmt.Errorf("%w: the credentials lack permission (a bootstrap token needs group system:bootstrappers and its roles)", err)
	}
	return err
}

// Refused says why an API server may refuse a client certificate, and what to
// do. cert is nil for credentials of another kind; roots, which may be nil, are
// the CAs of the kubeconfig.
func Refused(cert *x509.Certificate, roots *x509.CertPool, now time.Time) string {
	const again = "remove it and start with --bootstrap-kubeconfig, or put a new one in its place"
	stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case cert == nil:
		return "the token or password in the kubeconfig is not accepted: make a new one"
	case now.After(cert.NotAfter):
		return fmt.Sprintf("the client certificate of %s expired at %s and it is %s by this machine's clock: %s; rotateCertificates "+
			"renews it in time",
			cert.Subject.CommonName, stamp(cert.NotAfter), stamp(now), again)
	case now.Before(cert.NotBefore):
		return fmt.Sprintf("the client certificate of %s is valid from %s and it is %s by this machine's clock: set the clock",
			cert.Subject.CommonName, stamp(cert.NotBefore), stamp(now))
	}
	if roots != nil {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			return fmt.Sprintf("the client certificate of %s was signed by %q, which is not the certificate-authority in the kubeconfig: "+
				"it belongs to another cluster: %s",
				cert.Subject.CommonName, cert.Issuer.CommonName, again)
		}
	}
	return fmt.Sprintf("the client certificate of %s is in order by this machine's clock (%s): compare the API server's clock, and the "+
		"authority it accepts clients of",
		cert.Subject.CommonName, stamp(now))
}
