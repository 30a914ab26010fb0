package validate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificates "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of a request for a pod's certificate.
const (
	maxStubRequest      = 10 << 10  // bytes
	maxCertificateChain = 100 << 10 // bytes
	maxRequestUID       = 128       // bytes

	minPodCertificateSeconds int32 = 3600
	// maxPodCertificateSeconds is 91 days, maxKubernetesSeconds what signers of
	// the Kubernetes project may give.
	maxPodCertificateSeconds int32 = 7862400
	maxKubernetesSeconds     int32 = 86400

	// refreshMargin keeps beginRefreshAt away from both ends of the life.
	refreshMargin = 10 * time.Minute
	// clockMargin is how far notBefore may be from the server's clock.
	clockMargin = 5 * time.Minute
)

// PodKeyTypes are the kinds of key that a pod's certificate may be for.
var PodKeyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

// podAnswers are the conditions that end a request; at most one is there.
var podAnswers = []string{certificates.PodCertificateRequestConditionTypeIssued,
	certificates.PodCertificateRequestConditionTypeDenied, certificates.PodCertificateRequestConditionTypeFailed}

func PodCertificateRequest(r *certificates.PodCertificateRequest) errs {
	s := &r.Spec
	all := signerName(specPath.Child("signerName"), s.SignerName)
	all = append(all, userAnnotations(specPath.Child("unverifiedUserAnnotations"), s.UnverifiedUserAnnotations)...)
	for _, name := range []struct{ field, value string }{
		{"podName", s.PodName}, {"serviceAccountName", s.ServiceAccountName}, {"nodeName", string(s.NodeName)},
	} {
		all = append(all, invalid(specPath.Child(name.field), name.value, apivalidation.NameIsDNSSubdomain(name.value, false))...)
	}
	for _, uid := range []struct{ field, value string }{
		{"podUID", string(s.PodUID)}, {"serviceAccountUID", string(s.ServiceAccountUID)}, {"nodeUID", string(s.NodeUID)},
	} {
		at := specPath.Child(uid.field)
		if uid.value == "" {
			all = append(all, field.Invalid(at, uid.value, "must not be empty"))
		}
		if len(uid.value) > maxRequestUID {
			all = append(all, field.TooLong(at, uid.value, maxRequestUID))
		}
	}
	at := specPath.Child("maxExpirationSeconds")
	if s.MaxExpirationSeconds == nil {
		return append(all, field.Required(at, "must be set"))
	}
	if most := mostSeconds(s.SignerName); *s.MaxExpirationSeconds < minPodCertificateSeconds || *s.MaxExpirationSeconds > most {
		all = append(all, field.Invalid(at, *s.MaxExpirationSeconds, fmt.Sprintf("must be in the range [%d, %d]", minPodCertificateSeconds,
			most)))
	}
	return append(all, stubRequest(specPath.Child("stubPKCS10Request"), s.StubPKCS10Request)...)
}

// mostSeconds is the longest life of a certificate that may be asked of a signer.
func mostSeconds(signer string) int32 {
	if domain, _, _ := strings.Cut(signer, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		return maxKubernetesSeconds
	}
	return maxPodCertificateSeconds
}

// stubRequest wants a request that its own key signed, with a key of a kind
// that pods may have. Signers rely on this and check neither again.
func stubRequest(p *field.Path, der []byte) errs {
	if len(der) > maxStubRequest {
		return errs{field.TooLong(p, "", maxStubRequest)}
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return errs{field.Invalid(p, "<value omitted>", "must be a valid PKCS#10 request in DER")}
	}
	switch key := request.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return errs{field.Invalid(p, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256, P384, or P521")}
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return errs{field.Invalid(p, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")}
		}
	default:
		return errs{field.Invalid(p, "<value omitted>", "unknown public key type; supported types are Ed25519, ECDSA, and RSA")}
	}
	if request.CheckSignature() != nil {
		return errs{field.Invalid(p, "<value omitted>", "could not verify the request's signature")}
	}
	return nil
}

// maxSignerPath leaves room for a namespace and the name of an object in it.
const maxSignerPath = validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 1

// signerName wants a domain of labels, at least two, and a path of subdomains.
func signerName(p *field.Path, name string) errs {
	if name == "" {
		return errs{field.Required(p, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return errs{field.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var all errs
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		all = append(all, field.TooLong(p, "", validation.DNS1123SubdomainMaxLength))
	}
	all = append(all, eachLabel(p, domain, validation.IsDNS1123Label)...)
	if !strings.Contains(domain, ".") {
		all = append(all, field.Invalid(p, domain, "should be a domain with at least two segments separated by dots"))
	}
	all = append(all, eachLabel(p, path, validation.IsDNS1123Subdomain)...)
	if most := validation.DNS1123SubdomainMaxLength + 1 + maxSignerPath; len(name) > most {
		all = append(all, field.TooLong(p, "", most))
	}
	return all
}

// eachLabel reports the first bad part of a dotted name.
func eachLabel(p *field.Path, text string, rule func(string) []string) errs {
	for _, label := range strings.Split(text, ".") {
		if bad := rule(label); len(bad) > 0 {
			var all errs
			for _, message := range bad {
				all = append(all, field.Invalid(p, text, fmt.Sprintf("validating label %q: %s", label, message)))
			}
			return all
		}
	}
	return nil
}

// userAnnotations are words for the signer: like annotations, but each key has
// a domain, so that signers can tell whose it is.
func userAnnotations(p *field.Path, annotations map[string]string) errs {
	all := apivalidation.ValidateAnnotations(annotations, p)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		all = append(all, validation.IsDomainPrefixedKey(p.Key(key), key)...)
	}
	return all
}

// PodCertificateRequestUpdate: nothing but the metadata changes through the
// object itself.
func PodCertificateRequestUpdate(changed, old *certificates.PodCertificateRequest) errs {
	return immutable(specPath, changed.Spec, old.Spec)
}

// PodCertificateRequestStatusUpdate lets a signer answer once: with a
// certificate, or with one of the conditions that say why there is none.
func PodCertificateRequestStatusUpdate(changed, old *certificates.PodCertificateRequest) errs {
	status := field.NewPath("status")
	if all := podConditions(status.Child("conditions"), changed.Status.Conditions); len(all) > 0 {
		return all
	}
	same := apiequality.Semantic.DeepEqual(changed.Status, old.Status)
	switch {
	case podAnswer(old) != "" && !same:
		return errs{field.Invalid(status, "<value omitted>", "immutable after PodCertificateRequest is issued, denied, or failed")}
	case same:
		return nil
	case podAnswer(changed) == certificates.PodCertificateRequestConditionTypeIssued:
		return issued(status, changed)
	case podAnswer(changed) != "":
		if !apiequality.Semantic.DeepEqual(changed.Status,
			certificates.PodCertificateRequestStatus{Conditions: changed.Status.Conditions}) {
			return errs{field.Invalid(status, "<value omitted>",
				"non-condition status fields must be empty when denying or failing the PodCertificateRequest")}
		}
		return nil
	}
	return errs{field.Invalid(status, "<value omitted>", "may change only together with a condition of type Issued, Denied, or Failed")}
}

func podConditions(p *field.Path, list []metav1.Condition) errs {
	var all errs
	answers := 0
	for i, c := range list {
		at := p.Index(i)
		if !slices.Contains(podAnswers, c.Type) {
			all = append(all, field.NotSupported(at.Child("type"), c.Type, podAnswers))
			continue
		}
		if answers++; answers > 1 {
			all = append(all, field.Invalid(at.Child("type"), c.Type,
				`There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		if c.Status != metav1.ConditionTrue {
			all = append(all, field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	return append(all, metavalidation.ValidateConditions(list, p)...)
}

// podAnswer is the condition that ended the request, empty while it waits.
func podAnswer(r *certificates.PodCertificateRequest) string {
	for _, c := range r.Status.Conditions {
		if slices.Contains(podAnswers, c.Type) && c.Status == metav1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// issued checks the chain against the request, and the times against the leaf.
func issued(p *field.Path, r *certificates.PodCertificateRequest) errs {
	at := p.Child("certificateChain")
	leaf, all := chain(at, r.Status.CertificateChain)
	if len(all) > 0 {
		return all
	}
	all = append(all, leafNames(at, leaf)...)
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return append(all, field.Invalid(specPath.Child("stubPKCS10Request"), "<value omitted>", "must be a valid PKCS#10 request in DER"))
	}
	key, ok := request.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !key.Equal(leaf.PublicKey) {
		all = append(all, field.Invalid(at, "<value omitted>", "leaf certificate was not issued to the requested public key"))
	}
	if len(all) > 0 {
		return all
	}
	return issuedTimes(p, r, leaf)
}

// chain reads all blocks and returns the first certificate.
func chain(p *field.Path, text string) (*x509.Certificate, errs) {
	if len(text) > maxCertificateChain {
		return nil, errs{field.TooLong(p, "", maxCertificateChain)}
	}
	bad := func(why string) (*x509.Certificate, errs) { return nil, errs{field.Invalid(p, "<value omitted>", why)} }
	var leaf *x509.Certificate
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return bad("issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && leaf == nil:
			return bad("leaf certificate does not parse as valid X.509")
		case err != nil:
			return bad("intermediate certificate does not parse as valid X.509")
		case leaf == nil:
			leaf = c
		}
	}
	if leaf == nil {
		return bad("issued certificate chain must contain at least one certificate")
	}
	return leaf, nil
}

// leafNames wants names that clients can match.
func leafNames(p *field.Path, leaf *x509.Certificate) errs {
	var all errs
	for _, name := range leaf.DNSNames {
		switch {
		case name == "":
			all = append(all, field.Invalid(p, name, "leaf certificate should not contain empty DNSName"))
		case strings.Contains(name, ".."):
			all = append(all, field.Invalid(p, name, "leaf certificate's DNSName should not contain '..'"))
		case strings.HasPrefix(name, ".") || strings.HasSuffix(name, "."):
			all = append(all, field.Invalid(p, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			all = append(all, field.Invalid(p, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return all
}

func issuedTimes(p *field.Path, r *certificates.PodCertificateRequest, leaf *x509.Certificate) errs {
	s := &r.Status
	var all errs
	for _, t := range []struct {
		field, why string
		value      *metav1.Time
	}{
		{"notBefore", "must be present and consistent with the issued certificate", s.NotBefore},
		{"notAfter", "must be present and consistent with the issued certificate", s.NotAfter},
		{"beginRefreshAt", "must be present and in the range [notbefore+10min, notafter-10min]", s.BeginRefreshAt},
	} {
		if t.value == nil {
			all = append(all, field.Required(p.Child(t.field), t.why))
		}
	}
	if len(all) > 0 {
		return all
	}
	if !s.NotBefore.Time.Equal(leaf.NotBefore) {
		all = append(all, field.Invalid(p.Child("notBefore"), s.NotBefore.Time,
			"must be set to the NotBefore time encoded in the leaf certificate"))
	}
	if !s.NotAfter.Time.Equal(leaf.NotAfter) {
		all = append(all, field.Invalid(p.Child("notAfter"), s.NotAfter.Time,
			"must be set to the NotAfter time encoded in the leaf certificate"))
	}
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	if life < time.Hour {
		all = append(all, field.Invalid(p.Child("certificateChain"), life.String(), "leaf certificate lifetime must be >= 1 hour"))
	}
	if most := deref(r.Spec.MaxExpirationSeconds); life > time.Duration(most)*time.Second {
		all = append(all, field.Invalid(p.Child("certificateChain"), life.String(),
			fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%d)", most)))
	}
	at := p.Child("beginRefreshAt")
	if s.BeginRefreshAt.Time.Before(s.NotBefore.Time.Add(refreshMargin)) {
		all = append(all, field.Invalid(at, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore"))
	}
	if s.BeginRefreshAt.Time.After(s.NotAfter.Time.Add(-refreshMargin)) {
		all = append(all, field.Invalid(at, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter"))
	}
	return all
}

// PodCertificateFresh checks, at the time now, that a certificate is answered
// with the moment it was made: its life is counted from there.
func PodCertificateFresh(changed, old *certificates.PodCertificateRequest, now time.Time) field.ErrorList {
	s := &changed.Status
	if podAnswer(old) != "" || podAnswer(changed) != certificates.PodCertificateRequestConditionTypeIssued || s.NotBefore == nil {
		return nil
	}
	if off := s.NotBefore.Time.Sub(now); off.Abs() >= clockMargin {
		return errs{field.Invalid(field.NewPath("status", "notBefore"), s.NotBefore.Time,
			"must be set to within 5 minutes of kube-apiserver's current time")}
	}
	return nil
}
