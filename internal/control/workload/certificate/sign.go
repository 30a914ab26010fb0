package certificate

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	certv1 "k8s.io/api/certificates/v1"
)

// CA signs certificates.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	// Most is the longest a certificate may live.
	Most time.Duration
}

// backdate makes certificates valid on hosts whose clocks are behind.
const backdate = 5 * time.Minute

// shortest is the shortest life a requestor may ask for, by the API's rule.
const shortest = 10 * time.Minute

// NewCA reads a PEM-encoded certificate and key. A zero most means a year.
func NewCA(certPEM, keyPEM []byte, most time.Duration) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the signing CA: %w", err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("reading the signing CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !cert.IsCA {
		return nil, errors.New("reading the signing CA: want a CA certificate with its private key")
	}
	if most == 0 {
		most = 365 * 24 * time.Hour
	}
	return &CA{cert: cert, key: key, Most: most}, nil
}

// signers are the signers served, each with what it refuses. Upstream's
// kubernetes.io/legacy-unknown is not among them: certificates.k8s.io/v1 does
// not allow it, it has no rules, and it would sign with the client CA.
var signers = map[string]func([]certv1.KeyUsage, *x509.CertificateRequest) error{
	certv1.KubeAPIServerClientSignerName: func(u []certv1.KeyUsage, _ *x509.CertificateRequest) error {
		if !slices.Contains(u, certv1.UsageClientAuth) {
			return fmt.Errorf("usages must include %q", certv1.UsageClientAuth)
		}
		for _, x := range u {
			if x != certv1.UsageClientAuth && x != certv1.UsageDigitalSignature && x != certv1.UsageKeyEncipherment {
				return fmt.Errorf("usage %q is not allowed", x)
			}
		}
		return nil
	},
	certv1.KubeAPIServerClientKubeletSignerName: validKubeletClient,
	certv1.KubeletServingSignerName:             validKubeletServing,
}

// checkRequest says why a signer would refuse; known is false for other signers.
func checkRequest(csr *certv1.CertificateSigningRequest) (req *x509.CertificateRequest, known bool, err error) {
	refuses, known := signers[csr.Spec.SignerName]
	if !known {
		return nil, false, nil
	}
	if req, err = parse(csr); err != nil {
		return nil, true, err
	}
	return req, true, refuses(csr.Spec.Usages, req)
}

// Sign makes the PEM-encoded certificate for an approved request.
func (ca *CA) Sign(csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest, now time.Time) ([]byte, error) {
	life := ca.Most
	if s := csr.Spec.ExpirationSeconds; s != nil {
		life = min(max(time.Duration(*s)*time.Second, shortest), ca.Most)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	from, until := now.Add(-min(backdate, life/2)), now.Add(life)
	if csr.Spec.ExpirationSeconds == nil {
		until = until.Add(-backdate)
	}
	if until.After(ca.cert.NotAfter) {
		until = ca.cert.NotAfter
	}
	if !until.After(now) {
		return nil, fmt.Errorf("the signing CA expired on %s", ca.cert.NotAfter.Format(time.RFC3339))
	}
	usage, ext, err := usagesOf(csr.Spec.Usages)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: req.Subject, NotBefore: from, NotAfter: until, KeyUsage: usage, ExtKeyUsage: ext,
		BasicConstraintsValid: true, DNSNames: req.DNSNames, IPAddresses: req.IPAddresses,
		EmailAddresses: req.EmailAddresses, URIs: req.URIs,
	}, ca.cert, req.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

var keyUsages = map[certv1.KeyUsage]x509.KeyUsage{
	certv1.UsageSigning: x509.KeyUsageDigitalSignature, certv1.UsageDigitalSignature: x509.KeyUsageDigitalSignature,
	certv1.UsageContentCommitment: x509.KeyUsageContentCommitment, certv1.UsageKeyEncipherment: x509.KeyUsageKeyEncipherment,
	certv1.UsageKeyAgreement: x509.KeyUsageKeyAgreement, certv1.UsageDataEncipherment: x509.KeyUsageDataEncipherment,
	certv1.UsageCertSign: x509.KeyUsageCertSign, certv1.UsageCRLSign: x509.KeyUsageCRLSign,
	certv1.UsageEncipherOnly: x509.KeyUsageEncipherOnly, certv1.UsageDecipherOnly: x509.KeyUsageDecipherOnly,
}

var extUsages = map[certv1.KeyUsage]x509.ExtKeyUsage{
	certv1.UsageAny: x509.ExtKeyUsageAny, certv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
	certv1.UsageClientAuth:  x509.ExtKeyUsageClientAuth,
	certv1.UsageCodeSigning: x509.ExtKeyUsageCodeSigning, certv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certv1.UsageSMIME: x509.ExtKeyUsageEmailProtection, certv1.UsageIPsecEndSystem: x509.ExtKeyUsageIPSECEndSystem,
	certv1.UsageIPsecTunnel: x509.ExtKeyUsageIPSECTunnel, certv1.UsageIPsecUser: x509.ExtKeyUsageIPSECUser,
	certv1.UsageTimestamping: x509.ExtKeyUsageTimeStamping, certv1.UsageOCSPSigning: x509.ExtKeyUsageOCSPSigning,
	certv1.UsageMicrosoftSGC: x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certv1.UsageNetscapeSGC:  x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

func usagesOf(in []certv1.KeyUsage) (usage x509.KeyUsage, ext []x509.ExtKeyUsage, err error) {
	for _, u := range in {
		k, a := keyUsages[u]
		e, b := extUsages[u]
		if !a && !b {
			return 0, nil, fmt.Errorf("spec.usages: %q is not known", u)
		}
		usage |= k
		if b && !slices.Contains(ext, e) {
			ext = append(ext, e)
		}
	}
	slices.Sort(ext)
	return usage, ext, nil
}
